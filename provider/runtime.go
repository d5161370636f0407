// Package provider is the owner's side: it offers what the devices were measured to do, sells leases in one durable transaction each,
// runs jobs, meters them, and after a crash finds every container and every lease again. It declares the Runtime, Network, Mounts,
// Devices and Presence that it needs and refuses to know containerd, NVML and libp2p.
package provider

import (
	"context"
	"os"
	"time"
)

// Runtime, Network and Mounts are plain request and response with file descriptors beside them, so that a small root helper can
// serve them over a socket while the network-facing daemon has no privileges. Requests and answers are JSON-encodable values; an
// *os.File argument travels as a descriptor. Every call may be repeated after a lost answer: making what is there already or removing
// what is gone is no error.

// Runtime runs containers.
type Runtime interface {
	// Info names the runtime and checks that it answers.
	Info(ctx context.Context) (RuntimeInfo, error)
	// Import reads an OCI archive (a tar of an OCI layout) from archive and unpacks the image whose manifest has the given digest. It is [ErrImage]
	// if that is not an image for this machine.
	Import(ctx context.Context, req ImportRequest, archive *os.File) (ImageInfo, error)
	// Image looks an imported image up; [ErrNotFound] if it is not there.
	Image(ctx context.Context, digest string) (ImageInfo, error)
	// Create makes a container and its first process up to, but not including, the execution of the job's command, so that its network can be
	// wired: PID is that process.
	Create(ctx context.Context, req CreateRequest) (Created, error)
	// Start executes the command. [ErrCommand] if the image has no such command.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to the job: to its first process, or to all.
	Signal(ctx context.Context, req SignalRequest) error
	// Freeze stops the job's processes, Thaw lets them go on.
	Freeze(ctx context.Context, id string) error
	Thaw(ctx context.Context, id string) error
	// Status is how one container stands; [ErrNotFound] if it is gone.
	Status(ctx context.Context, id string) (Container, error)
	// Wait returns when the container has stopped, with its last status.
	Wait(ctx context.Context, id string) (Container, error)
	// Usage reads what the container has used so far.
	Usage(ctx context.Context, id string) (Usage, error)
	// List gives every container of ours, running or not, after a restart too.
	List(ctx context.Context) ([]Container, error)
	// Delete kills what runs in the container, waits until its cgroup is empty, and removes it with its snapshot.
	Delete(ctx context.Context, id string) error
}

// RuntimeInfo is what Runtime says of itself.
type RuntimeInfo struct {
	Name    string `json:"name"`    // "containerd"
	Version string `json:"version"` // of the daemon
	Sandbox string `json:"sandbox"` // "runc"
}

// ImportRequest names the image that an archive must hold.
type ImportRequest struct {
	Digest   string `json:"digest"`    // of the manifest: "sha256:…"
	MaxBytes int64  `json:"max_bytes"` // of the unpacked layers together
}

// ImageInfo is an imported image.
type ImageInfo struct {
	Digest string   `json:"digest"`
	Size   int64    `json:"size"` // bytes of the compressed layers
	Args   []string `json:"args"` // entry point and command
	Env    []string `json:"env"`
	Dir    string   `json:"dir"`
	User   string   `json:"user"`
}

// CreateRequest is everything a container is made of. Spec is the OCI runtime spec as JSON, made by provider/sandbox.
type CreateRequest struct {
	ID     string            `json:"id"` // the lease's id in hex
	Image  string            `json:"image"`
	Spec   []byte            `json:"spec"`
	Labels map[string]string `json:"labels"`
	Logs   LogRequest        `json:"logs"`
	State  string            `json:"state"` // folder of ours that the job's init writes its exit record to
}

// LogRequest says where a job's output goes.
type LogRequest struct {
	Path     string `json:"path"`      // file of timestamped, tagged lines (provider/access reads them)
	MaxBytes int64  `json:"max_bytes"` // over which the oldest output is dropped
}

// Created is a container that waits for Start.
type Created struct {
	PID int `json:"pid"`
}

// SignalRequest is a signal for a job.
type SignalRequest struct {
	ID     string `json:"id"`
	Signal string `json:"signal"` // "SIGTERM"
	All    bool   `json:"all"`    // to every process, not only the first
}

// Container states.
const (
	ContainerCreated = "created"
	ContainerRunning = "running"
	ContainerFrozen  = "frozen"
	ContainerStopped = "stopped"
	ContainerLost    = "lost" // a record without a task: its end was not seen
)

// Container is one container of ours.
type Container struct {
	ID       string            `json:"id"`
	State    string            `json:"state"`
	PID      int               `json:"pid"`
	Labels   map[string]string `json:"labels"`
	Exit     *ExitStatus       `json:"exit,omitempty"` // once stopped
	ExitedAt time.Time         `json:"exited_at"`
}

// ExitStatus is how a job ended, from the init's own record where there is one.
type ExitStatus struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"` // "SIGSEGV"
	OOM    bool   `json:"oom"`
}

// Usage is what a container has used since its start.
type Usage struct {
	CPU         time.Duration `json:"cpu"`
	MemoryBytes uint64        `json:"memory_bytes"` // now
	MemoryPeak  uint64        `json:"memory_peak"`
	Pids        uint64        `json:"pids"`
}

// Network wires a job's network namespace between Create and Start.
type Network interface {
	// Wire gives the namespace of pid what the lease allows; first light: nothing but its own loopback.
	Wire(ctx context.Context, req WireRequest) error
	// Unwire removes what Wire made.
	Unwire(ctx context.Context, id string) error
}

// WireRequest names the namespace to wire.
type WireRequest struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"`
	Egress string `json:"egress"` // "none"
}

// Mounts makes a lease's folders.
type Mounts interface {
	// Make gives the lease its folders, with a quota where it can be held.
	Make(ctx context.Context, req MountRequest) (Folders, error)
	// Remove wipes them. It reports whether nothing is left.
	Remove(ctx context.Context, id string) (bool, error)
	// List names the leases that have folders, for the sweeper.
	List(ctx context.Context) ([]string, error)
}

// MountRequest is what a lease's folders must hold.
type MountRequest struct {
	ID       string `json:"id"`
	MaxBytes int64  `json:"max_bytes"`
	UID      uint32 `json:"uid"` // owner of /out and /scratch as the host sees it
	GID      uint32 `json:"gid"`
}

// Folders are a lease's folders on the host.
type Folders struct {
	In    string `json:"in"`    // /in, read-only in the job
	Out   string `json:"out"`   // /out
	State string `json:"state"` // exit record and log; not seen by the job but for the record
}
