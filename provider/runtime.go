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
	// Import reads an OCI archive (a tar of an OCI layout) from archive, which may be a pipe, and unpacks the image whose manifest has the
	// given digest; nothing else of the archive is kept. It is [ErrImage] if that is not an image for this machine or a larger one than
	// MaxBytes, and [ErrNoSpace] if the disk is full. An image that is there already is answered without reading.
	Import(ctx context.Context, req ImportRequest, archive *os.File) (ImageInfo, error)
	// Image looks an imported image up; [ErrNotFound] if it is not there.
	Image(ctx context.Context, digest string) (ImageInfo, error)
	// Images lists the imported images, for the sweeper.
	Images(ctx context.Context) ([]ImageInfo, error)
	// RemoveImage forgets an image and frees its disk space, but for what a container still uses.
	RemoveImage(ctx context.Context, digest string) error
	// Create makes a container and its first process up to, but not including, the execution of the job's command, so that its network can be
	// wired: PID is that process.
	Create(ctx context.Context, req CreateRequest) (Created, error)
	// Start executes the command and returns when it runs or could not be run: [ErrCommand] if the image has no such command; the container
	// has stopped then, with ExitStatus.ExecError.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to the job: to its first process, or to all.
	Signal(ctx context.Context, req SignalRequest) error
	// Freeze stops the job's processes, Thaw lets them go on.
	Freeze(ctx context.Context, id string) error
	Thaw(ctx context.Context, id string) error
	// Status is how one container stands; [ErrNotFound] if it is gone.
	Status(ctx context.Context, id string) (Container, error)
	// Wait returns when the container has stopped or is lost, with its last status. It outlasts a restart of the runtime: while the runtime
	// does not answer it goes on waiting (Status says [ErrUnavailable] then). [ErrNotFound] if the container is gone.
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
	Cgroup  int    `json:"cgroup"`  // version of the host's control groups: 1 or 2
	// UserNamespace says that jobs can have user namespaces: the kernel and the disk of the images show files with shifted ids.
	UserNamespace bool `json:"user_namespace"`
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
	Record string            `json:"record"` // Folders.Record: where the job's init writes its exit record
	Root   RootFolders       `json:"root"`   // what the job changes of its image
}

// RootFolders are where a job's root file system is put together: the image's layers under what the job writes.
type RootFolders struct {
	Upper string `json:"upper"` // what the job changes
	Work  string `json:"work"`  // overlayfs's own, on the same file system
	Lower string `json:"lower"` // for mount points, while the container is made
}

// LogRequest says where a job's output goes.
type LogRequest struct {
	Path     string `json:"path"`      // folder of timestamped, tagged records (provider/access reads them)
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
	OOM    bool   `json:"oom"`              // the kernel killed a process of the job over its memory limit, and the job did not end well
	// ExecError is why the command could not be executed ("not found in PATH"); Code is 127 or 126 then, and the job never ran.
	ExecError string `json:"exec_error,omitempty"`
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
	// Wire gives the namespace of a process what the lease allows, and returns when it is proven that nothing else can be reached. With
	// [EgressNone] that is its own loopback. With [EgressInternet] it is TCP, UDP and names of the internet, at the rate and up to the byte cap
	// of the request, and never what provider/reach denies; it lasts as long as the process, whoever called. [ErrNotFound] if the process is gone.
	Wire(ctx context.Context, req WireRequest) error
	// Traffic is what the egress of a job has come to, also after its end, until Unwire; [ErrNotFound] for a job without egress.
	Traffic(ctx context.Context, id string) (Traffic, error)
	// Unwire removes what Wire made.
	Unwire(ctx context.Context, id string) error
	// List names the jobs of which Unwire would remove something, for the sweeper.
	List(ctx context.Context) ([]string, error)
}

// Kinds of egress, as offers have them.
const (
	EgressNone     = "none"
	EgressInternet = "internet"
)

// WireRequest names the namespace to wire.
type WireRequest struct {
	ID     string   `json:"id"`
	PID    int      `json:"pid"`
	Egress string   `json:"egress"`         // "none" or "internet"
	Rate   uint64   `json:"rate"`           // bytes a second each way; not 0 with egress
	Cap    uint64   `json:"cap"`            // bytes of the lease, both ways together; not 0 with egress
	Deny   []string `json:"deny,omitempty"` // networks ("203.0.113.0/24") that the owner denies besides
}

// Traffic is what a job's egress has come to: payload of TCP and UDP, without packet headers; questions for names and their answers count too.
type Traffic struct {
	In      uint64 `json:"in" cbor:"1,keyasint"`  // bytes to the job
	Out     uint64 `json:"out" cbor:"2,keyasint"` // bytes from it
	Flows   uint64 `json:"flows" cbor:"3,keyasint"`
	Refused uint64 `json:"refused" cbor:"4,keyasint"` // connections that a rule denied
	Over    uint64 `json:"over" cbor:"5,keyasint"`    // connections that a limit of the lease denied, or that could not be logged
	Capped  bool   `json:"capped" cbor:"6,keyasint"`  // the byte cap was reached: nothing goes out or in any more
}

// Mounts makes a lease's folders.
type Mounts interface {
	// Info says what disks leases get here, and what is left for more of them.
	Info(ctx context.Context) (MountsInfo, error)
	// Free is how many bytes there are for more, on the file system of the folders.
	Free(ctx context.Context) (int64, error)
	// Make gives the lease its folders, on a disk of the kind that Info says. One that is not whole, or was lost with a reboot, is made anew.
	Make(ctx context.Context, req MountRequest) (Folders, error)
	// Usage counts what the job has written so far, so that a lease over its disk can be ended.
	Usage(ctx context.Context, id string) (DiskUsage, error)
	// Remove wipes them, the key of an encrypted disk first. It reports whether nothing is left.
	Remove(ctx context.Context, id string) (bool, error)
	// List names the leases that have folders, for the sweeper.
	List(ctx context.Context) ([]string, error)
}

// Kinds of disks that leases get.
const (
	DiskEncrypted = "encrypted" // with quotas that the kernel holds and a key that is only in its memory and goes with the lease
	DiskQuota     = "quota"     // with quotas; wiping removes the files, and a later reader of the bare disk may find traces
	DiskPlain     = "plain"     // folders on the owner's disk: quotas are counted, and kept by ending the job
)

// MountsInfo is what Mounts says of itself.
type MountsInfo struct {
	Disk string `json:"disk"`          // DiskEncrypted, DiskQuota or DiskPlain
	Why  string `json:"why,omitempty"` // it is no better one
}

// MountRequest is what a lease's folders must hold.
type MountRequest struct {
	ID       string `json:"id"`
	MaxBytes int64  `json:"max_bytes"` // of all folders but State together; files are at most one for each 8 KiB, a million at most
	UID      uint32 `json:"uid"`       // owner of /out and /scratch as the host sees it
	GID      uint32 `json:"gid"`
}

// Folders are a lease's folders on the host. Every one is a folder that only root can reach.
type Folders struct {
	In      string      `json:"in"`      // /in, read-only in the job
	Out     string      `json:"out"`     // /out, the results
	Scratch string      `json:"scratch"` // /scratch, wiped at the end
	Record  string      `json:"record"`  // exit record; the job's init writes it, so it is a claim of the job's
	State   string      `json:"state"`   // the log and what else the job must not reach
	Root    RootFolders `json:"root"`
}

// DiskUsage is what a job holds on disk: /out, /scratch, its changes of the image and its exit record together; where Held, with /in and what
// the file system takes for itself.
type DiskUsage struct {
	Bytes  int64 `json:"bytes"`  // allocated, not apparent: a sparse file counts what it holds
	Inodes int64 `json:"inodes"` // files, folders and links
	Held   bool  `json:"held"`   // the kernel holds the lease to its quota: it can't be over
}
