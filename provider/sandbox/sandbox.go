// Package sandbox turns a lease, its image, its job and the owner's policy into an OCI runtime spec: what the job may see, use and do.
// It is pure: it reads no disk and asks no runtime, and knows nothing of containerd. The seccomp profile, the cgroup's path and the
// numbers behind a user's name need the host and are filled in by provider/containerd.
package sandbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpufair/gpufair/market/work"
)

// Paths inside the job.
const (
	InitPath   = "/run/gpufair/init"   // PID 1
	RecordDir  = "/run/gpufair/record" // where it writes its exit record
	InDir      = "/in"
	OutDir     = "/out"
	ScratchDir = "/scratch"
	ResolvPath = "/etc/resolv.conf"
)

// Environment that every job gets.
const (
	EnvLease = "GPUFAIR_LEASE" // id of the lease in hex
	// defaultPath is PATH where the image sets none, as docker has it.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// maxArgsBytes bounds arguments and environment together: far over any real job, far under the kernel's limit for one exec, so that
// a job that is too large is refused here and not at its start.
const maxArgsBytes = 512 << 10

// Image is what an image says about how to run it.
type Image struct {
	Args []string // entry point and command
	Env  []string
	Dir  string
	User string
}

// Folders are the host's folders that the job gets; absolute paths.
type Folders struct {
	In      string // bound read-only at [InDir]
	Out     string // bound at [OutDir]
	Scratch string // bound at [ScratchDir]
	Record  string // bound at [RecordDir]
	Resolv  string // a resolv.conf, bound read-only at [ResolvPath]; empty: none, since there is no network to ask
	Init    string // the static gpufair-init, bound read-only at [InitPath]
}

// Job is everything a spec is made of.
type Job struct {
	Lease   string // id of the lease in hex
	Image   Image
	Work    work.Spec
	Folders Folders
	Policy  Policy
}

// Spec makes the OCI runtime spec of a job: an image that no change reaches, own namespaces, no capability but a short list, limits on all that can be
// limited. Errors name the field that is wrong; nothing is cut silently. A user given by name is left in Process.User.Username for the
// runtime to look up in the image.
func Spec(j Job) (*specs.Spec, error) {
	if err := j.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("policy for lease %s: %w", j.Lease, err)
	}
	if err := j.Folders.validate(); err != nil {
		return nil, fmt.Errorf("folders for lease %s: %w", j.Lease, err)
	}
	process, err := j.process()
	if err != nil {
		return nil, fmt.Errorf("job of lease %s: %w", j.Lease, err)
	}
	return &specs.Spec{
		Version:  "1.0.2", // all that is asked for here; runc 1.1 and crun 1.8 take it
		Process:  process,
		Root:     &specs.Root{Path: "rootfs"}, // what the job changes lies in the lease's own layer, under its quota
		Hostname: hostname(j.Lease),
		Mounts:   mounts(j.Folders, j.Policy),
		Linux: &specs.Linux{
			Resources:     j.Policy.resources(),
			Namespaces:    j.Policy.namespaces(),
			UIDMappings:   j.Policy.IDs().mappings(),
			GIDMappings:   j.Policy.IDs().mappings(),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}, nil
}

// hostname is a name of at most 63 bytes that tells jobs apart.
func hostname(lease string) string { return "job-" + lease[:min(len(lease), 12)] }

func (f Folders) validate() error {
	for _, folder := range []struct{ name, path string }{
		{"in", f.In}, {"out", f.Out}, {"scratch", f.Scratch}, {"record", f.Record}, {"resolv", f.Resolv}, {"init", f.Init},
	} {
		if folder.name == "resolv" && folder.path == "" {
			continue
		}
		if p := folder.path; !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return fmt.Errorf("%s: %q is not a clean absolute path", folder.name, p)
		}
	}
	return nil
}

// process is the job's first process: init, with the job's command behind it.
func (j Job) process() (*specs.Process, error) {
	args, err := j.args()
	if err != nil {
		return nil, err
	}
	env, err := j.env()
	if err != nil {
		return nil, err
	}
	if n := size(args) + size(env); n > maxArgsBytes {
		return nil, fmt.Errorf("command and environment: %d bytes, %d are allowed: put long values into a file in /in", n, maxArgsBytes)
	}
	dir := j.Work.Dir
	if dir == "" {
		dir = j.Image.Dir
	}
	if dir == "" {
		dir = "/"
	}
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) {
		return nil, fmt.Errorf("dir: %q is not an absolute path", dir)
	}
	name := j.Work.User
	if name == "" {
		name = j.Image.User
	}
	user, err := parseUser(name)
	if err != nil {
		return nil, err
	}
	caps, oom := capabilities(), oomScore
	return &specs.Process{
		User: user, Args: append([]string{InitPath, RecordDir, "--"}, args...), Env: env, Cwd: dir,
		Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		Rlimits:         j.Policy.rlimits(),
		NoNewPrivileges: true,
		OOMScoreAdj:     &oom,
	}, nil
}

func size(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s) + 1
	}
	return n
}

// args is the job's command: its own, else the image's.
func (j Job) args() ([]string, error) {
	args := j.Work.Command
	if len(args) == 0 {
		args = j.Image.Args
	}
	switch {
	case len(args) == 0:
		return nil, errors.New("command: neither the job nor the image names one: add it after --")
	case len(args) > work.MaxArgs:
		return nil, fmt.Errorf("command: %d arguments, %d are allowed", len(args), work.MaxArgs)
	case args[0] == "":
		return nil, errors.New("command: its first word is empty")
	}
	for i, a := range args {
		if strings.ContainsRune(a, 0) {
			return nil, fmt.Errorf("command: argument %d holds a zero byte", i)
		}
	}
	return args, nil
}

// env is the image's environment under the job's own, later settings replacing earlier ones.
func (j Job) env() ([]string, error) {
	if n := len(j.Image.Env) + len(j.Work.Env); n > work.MaxEnv {
		return nil, fmt.Errorf("env: %d variables, %d are allowed", n, work.MaxEnv)
	}
	var order []string
	values := map[string]string{}
	set := func(kv string) error {
		key, value, ok := strings.Cut(kv, "=")
		if !ok || key == "" || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("env: %q is not KEY=value", kv)
		}
		if _, known := values[key]; !known {
			order = append(order, key)
		}
		values[key] = value
		return nil
	}
	defaults := []string{"PATH=" + defaultPath, "HOME=" + ScratchDir}
	ours := []string{EnvLease + "=" + j.Lease}
	for _, kv := range slices.Concat(defaults, j.Image.Env, j.Work.Env, ours) {
		if err := set(kv); err != nil {
			return nil, err
		}
	}
	env := make([]string, 0, len(order))
	for _, key := range order {
		env = append(env, key+"="+values[key])
	}
	return env, nil
}

// parseUser reads docker's user[:group]. Numbers become ids; names are left for who can read the image.
func parseUser(s string) (specs.User, error) {
	if s == "" {
		return specs.User{}, nil
	}
	if len(s) > 256 || strings.ContainsAny(s, "\x00\n/") || strings.Count(s, ":") > 1 || strings.HasPrefix(s, ":") {
		return specs.User{}, fmt.Errorf("user: %q is not user[:group]", s)
	}
	name, group, _ := strings.Cut(s, ":")
	uid, uerr := strconv.ParseUint(name, 10, 31)
	gid, gerr := strconv.ParseUint(group, 10, 31)
	if uerr != nil || (group != "" && gerr != nil) || group == "" {
		return specs.User{Username: s}, nil // a number alone too: its group stands in the image's passwd
	}
	if max(uid, gid) >= idsOfJob {
		return specs.User{}, fmt.Errorf("user: %q: a job has ids up to %d", s, idsOfJob-1)
	}
	return specs.User{UID: uint32(uid), GID: uint32(gid)}, nil
}
