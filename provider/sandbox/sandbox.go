// Package sandbox turns a lease, its image, its job and the owner's policy into an OCI runtime spec: what the job may see, use and do.
// It is pure: it reads no disk and asks no runtime, and knows nothing of containerd. The seccomp profile, the cgroup's path and the
// numbers behind a user's name need the host and are filled in by provider/containerd.
package sandbox

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpufair/gpufair/market/work"
)

// Image is what an image says about how to run it.
type Image struct {
	Args []string // entry point and command
	Env  []string
	Dir  string
	User string
}

// Folders are the host's folders that the job gets.
type Folders struct {
	In      string // bound read-only at /in
	Out     string // bound at /out
	Scratch string // bound at /scratch
	Record  string // bound at [RecordDir]
	Init    string // the static gpufair-init, bound read-only at [InitPath]
}

// Policy is what the lease gives the job. [Policy.Validate] refuses zero limits: no default is infinite.
type Policy struct {
	Cores       []int // host's core numbers that the job may run on; its quota is as many full cores
	MemoryBytes int64 // RAM with tmpfs; there is no swap on top
	Pids        int64 // processes and threads of the job
	TmpBytes    int64 // size of /tmp, which is in memory; 0: a quarter of MemoryBytes
	ShmBytes    int64 // size of /dev/shm; 0: half of MemoryBytes
	OpenFiles   uint64
}

// Job is everything a spec is made of.
type Job struct {
	Lease   string // id of the lease in hex
	Image   Image
	Work    work.Spec
	Folders Folders
	Policy  Policy
}

// Paths inside the job.
const (
	InitPath  = "/run/gpufair/init"   // PID 1
	RecordDir = "/run/gpufair/record" // where it writes its exit record
)

// Validate says what is wrong with the policy.
func (p Policy) Validate() error { return nil }

// Spec makes the OCI runtime spec of a job. Errors name the field of the job that is wrong; nothing is cut silently.
func Spec(j Job) (*specs.Spec, error) { return nil, nil }
