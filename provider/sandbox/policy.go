package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Policy is what the lease gives the job. Nothing in it may be unlimited.
type Policy struct {
	Cores       []int // the host's core numbers that the job runs on; its quota is as many full cores
	MemoryBytes int64 // RAM, with the files of /tmp and /dev/shm; there is no swap on top
	Pids        int64 // processes and threads of the job
	TmpBytes    int64 // size of /tmp, which is in memory; 0: a quarter of MemoryBytes
	ShmBytes    int64 // size of /dev/shm; 0: half of MemoryBytes, since data loaders of training jobs live there
	OpenFiles   uint64
	// UserNamespace gives the job ids of its own: its root is nobody on the host. False only where the host can't: see
	// provider.RuntimeInfo.
	UserNamespace bool
}

// IDs is a job's range of users and groups on the host: container id n is host id Base+n, for n below Size.
type IDs struct{ Base, Size uint32 }

// The ranges lie where no distribution has users and where neither useradd's subordinate ids (/etc/subuid) nor systemd's containers go:
// 0x70000000 to 0x7fffffff is "unused" in systemd's table of ids (https://systemd.io/UIDS-GIDS), and has room for maxCores ranges.
const (
	firstID  = 0x70000000
	idsOfJob = 1 << 16
)

// IDs is the job's own range. No core is leased twice at a time, so its lowest core tells it apart from every other job that runs.
// Without a user namespace the range is zero: container ids are host ids.
func (p Policy) IDs() IDs {
	if !p.UserNamespace {
		return IDs{}
	}
	return IDs{Base: firstID + uint32(slices.Min(p.Cores))*idsOfJob, Size: idsOfJob}
}

func (i IDs) mappings() []specs.LinuxIDMapping {
	if i.Size == 0 {
		return nil
	}
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: i.Base, Size: i.Size}}
}

const (
	// minMemory is what init and the smallest command need.
	minMemory = 16 << 20
	// initPids is what gpufair-init's own threads take of the pids limit.
	initPids = 8
	// maxPids, maxOpenFiles and maxCores are far over any sane lease; they catch a wrong unit in a config.
	maxPids      = 1 << 22
	maxOpenFiles = 1 << 20
	maxCores     = 4096
	// inodesPerMiB bounds the files of a tmpfs, each of which takes kernel memory of about 1 KiB.
	inodesPerMiB = 256
	cpuPeriod    = 100_000 // microseconds, the kernel's own default
)

// Validate says what is wrong with the policy.
func (p Policy) Validate() error {
	switch {
	case len(p.Cores) == 0 || len(p.Cores) > maxCores:
		return fmt.Errorf("cores: %d named, 1 to %d are allowed", len(p.Cores), maxCores)
	case slices.Min(p.Cores) < 0:
		return errors.New("cores: a core's number is negative")
	case slices.Max(p.Cores) >= maxCores:
		return fmt.Errorf("cores: number %d, below %d is allowed", slices.Max(p.Cores), maxCores)
	case p.MemoryBytes < minMemory:
		return fmt.Errorf("memory: %d bytes are below the least, %d", p.MemoryBytes, minMemory)
	case p.Pids < 1 || p.Pids > maxPids:
		return fmt.Errorf("pids: %d, 1 to %d are allowed", p.Pids, maxPids)
	case p.TmpBytes < 0 || p.ShmBytes < 0:
		return errors.New("tmp and shm: a size is negative")
	case p.OpenFiles < 64 || p.OpenFiles > maxOpenFiles:
		return fmt.Errorf("open files: %d, 64 to %d are allowed", p.OpenFiles, maxOpenFiles)
	}
	sorted := slices.Sorted(slices.Values(p.Cores))
	if len(slices.Compact(sorted)) != len(p.Cores) {
		return errors.New("cores: a core is named twice")
	}
	return nil
}

// resources are the cgroup limits. runc translates the same fields for both versions of control groups.
func (p Policy) resources() *specs.LinuxResources {
	quota, period := int64(len(p.Cores))*cpuPeriod, uint64(cpuPeriod)
	memory, pids := p.MemoryBytes, p.Pids+initPids
	cores := make([]string, len(p.Cores))
	for i, c := range slices.Sorted(slices.Values(p.Cores)) {
		cores[i] = strconv.Itoa(c)
	}
	return &specs.LinuxResources{
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period, Cpus: strings.Join(cores, ",")},
		Memory:  &specs.LinuxMemory{Limit: &memory, Swap: &memory}, // the same number: no swap
		Pids:    &specs.LinuxPids{Limit: &pids},
		Devices: devices(),
	}
}

// devices denies all but what every program expects. The nodes themselves are made by the runtime.
func devices() []specs.LinuxDeviceCgroup {
	allow := func(major, minor int64) specs.LinuxDeviceCgroup {
		d := specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"}
		if minor >= 0 {
			d.Minor = &minor
		}
		return d
	}
	return []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		allow(1, 3), allow(1, 5), allow(1, 7), // null, zero, full
		allow(1, 8), allow(1, 9), // random, urandom
		allow(5, 0), allow(5, 1), allow(5, 2), // tty, console, ptmx
		allow(136, -1), // pts
	}
}

// oomScore makes the kernel take a job's processes before the owner's when the whole host is out of memory (proc(5), oom_score_adj).
const oomScore = 800

func (p Policy) rlimits() []specs.POSIXRlimit {
	soft := min(p.OpenFiles, 1024) // what select(2) can take; a program that knows better raises it
	return []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: soft, Hard: p.OpenFiles},
		{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
	}
}

// capabilities is the short list: what installers and servers need inside their own files, and nothing that reaches the kernel or
// the host. MKNOD, NET_RAW, SYS_CHROOT, SETFCAP and AUDIT_WRITE of docker's list are left out.
func capabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE",
	}
}

func (p Policy) namespaces() []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace},
		{Type: specs.CgroupNamespace},
	}
	if p.UserNamespace {
		list = append(list, specs.LinuxNamespace{Type: specs.UserNamespace})
	}
	return list
}

// maskedPaths tell of the host or reach into it (as containerd and docker have it).
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

// mounts are all that the job sees besides its image. Every tmpfs has a cap on bytes and on files: without the second a job that makes files
// is killed for memory instead of being told that the disk is full.
func mounts(f Folders, p Policy) []specs.Mount {
	tmp, shm := p.TmpBytes, p.ShmBytes
	if tmp == 0 {
		tmp = p.MemoryBytes / 4
	}
	if shm == 0 {
		shm = p.MemoryBytes / 2
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		tmpfs("/dev", 64<<10, "nosuid", "strictatime", "mode=755"),
		{
			Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=256"},
		},
		tmpfs("/dev/shm", shm, "nosuid", "noexec", "nodev", "mode=1777"),
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		tmpfs("/run", 16<<20, "nosuid", "nodev", "mode=755"),
		tmpfs("/tmp", tmp, "nosuid", "nodev", "mode=1777"),
		bind(InitPath, f.Init, "ro", "nosuid", "nodev"),
		bind(RecordDir, f.Record, "rw", "nosuid", "nodev", "noexec"),
		bind(InDir, f.In, "ro", "nosuid", "nodev"),
		bind(OutDir, f.Out, "rw", "nosuid", "nodev"),
		bind(ScratchDir, f.Scratch, "rw", "nosuid", "nodev"),
	}
	if f.Resolv != "" {
		list = append(list, bind(ResolvPath, f.Resolv, "ro", "nosuid", "nodev", "noexec"))
	}
	return list
}

func bind(dst, src string, options ...string) specs.Mount {
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: append([]string{"rbind", "rprivate"}, options...)}
}

func tmpfs(dst string, bytes int64, options ...string) specs.Mount {
	inodes := max(bytes>>20*inodesPerMiB, 256)
	options = append(options, fmt.Sprintf("size=%d", bytes), fmt.Sprintf("nr_inodes=%d", inodes))
	return specs.Mount{Destination: dst, Type: "tmpfs", Source: "tmpfs", Options: options}
}
