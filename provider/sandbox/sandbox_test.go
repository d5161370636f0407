package sandbox

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/market/work"
)

func job() Job {
	return Job{
		Lease: strings.Repeat("ab", 32),
		Image: Image{Args: []string{"/bin/run"}, Env: []string{"PATH=/opt/bin", "A=image"}, Dir: "/srv", User: "7:8"},
		Work:  work.Spec{},
		Folders: Folders{
			In: "/var/l/in", Out: "/var/l/out", Scratch: "/var/l/scratch", Record: "/var/l/record", Init: "/usr/lib/gpufair/init",
		},
		Policy: Policy{Cores: []int{3, 1}, MemoryBytes: 1 << 30, Pids: 100, OpenFiles: 4096, UserNamespace: true},
	}
}

func mustSpec(t *testing.T, j Job) *specs.Spec {
	t.Helper()
	s, err := Spec(j)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHardening names what must never get lost from a spec.
func TestHardening(t *testing.T) {
	s := mustSpec(t, job())
	p := s.Process
	if !p.NoNewPrivileges || p.Terminal {
		t.Error("new privileges or a terminal")
	}
	if len(p.Capabilities.Inheritable)+len(p.Capabilities.Ambient) > 0 {
		t.Error("capabilities that survive a change of user")
	}
	for _, bad := range []string{"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_CHROOT", "CAP_SETFCAP"} {
		if slices.Contains(p.Capabilities.Bounding, bad) {
			t.Errorf("%s is granted", bad)
		}
	}
	var kinds []specs.LinuxNamespaceType
	for _, n := range s.Linux.Namespaces {
		if n.Path != "" {
			t.Errorf("namespace %s is shared: %s", n.Type, n.Path)
		}
		kinds = append(kinds, n.Type)
	}
	for _, want := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.MountNamespace, specs.UTSNamespace, specs.CgroupNamespace,
		specs.UserNamespace,
	} {
		if !slices.Contains(kinds, want) {
			t.Errorf("no %s namespace of its own", want)
		}
	}
	if d := s.Linux.Resources.Devices; d[0].Allow || d[0].Access != "rwm" || d[0].Major != nil {
		t.Error("devices are not denied first")
	}
	for _, d := range s.Linux.Resources.Devices[1:] {
		if d.Type != "c" || (*d.Major != 1 && *d.Major != 5 && *d.Major != 136) {
			t.Errorf("device %+v is allowed", d)
		}
	}
	if !slices.Contains(s.Linux.MaskedPaths, "/proc/kcore") || !slices.Contains(s.Linux.ReadonlyPaths, "/proc/sys") {
		t.Error("/proc is open")
	}
}

// TestIDs shows that jobs with different cores have different ids, none of them the host's, and that the last core has room too.
func TestIDs(t *testing.T) {
	seen := map[uint32]int{}
	for _, core := range []int{0, 1, 2, 63, maxCores - 1} {
		j := job()
		j.Policy.Cores = []int{core + 1, core}[core/(maxCores-1):]
		l := mustSpec(t, j).Linux
		ids := j.Policy.IDs()
		want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: ids.Base, Size: 65536}}
		if !slices.Equal(l.UIDMappings, want) || !slices.Equal(l.GIDMappings, want) {
			t.Errorf("core %d: %+v and %+v", core, l.UIDMappings, l.GIDMappings)
		}
		if other, taken := seen[ids.Base]; taken || ids.Base%65536 != 0 || ids.Base < 0x70000000 || ids.Base > 0x7fff0000 {
			t.Errorf("core %d: ids from %#x, those of core %d", core, ids.Base, other)
		}
		seen[ids.Base] = core
	}
	j := job()
	j.Policy.UserNamespace = false
	if l := mustSpec(t, j).Linux; len(l.UIDMappings) > 0 || slices.ContainsFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }) {
		t.Errorf("without a user namespace: %+v", l)
	}
}

func TestLimits(t *testing.T) {
	s := mustSpec(t, job())
	r := s.Linux.Resources
	if r.CPU.Cpus != "1,3" || *r.CPU.Quota != 200_000 || *r.CPU.Period != 100_000 {
		t.Errorf("cpu %+v", r.CPU)
	}
	if *r.Memory.Limit != 1<<30 || *r.Memory.Swap != 1<<30 || *r.Pids.Limit != 108 {
		t.Errorf("memory %+v, pids %+v", r.Memory, r.Pids)
	}
	want := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096}, {Type: "RLIMIT_CORE"}}
	if !slices.Equal(s.Process.Rlimits, want) {
		t.Errorf("rlimits %+v", s.Process.Rlimits)
	}
}

// TestMounts shows that nothing of the host is mounted but the lease's folders, and that every tmpfs has both caps.
func TestMounts(t *testing.T) {
	j := job()
	allowed := map[string]string{
		InitPath: j.Folders.Init, RecordDir: j.Folders.Record, InDir: j.Folders.In, OutDir: j.Folders.Out, ScratchDir: j.Folders.Scratch,
	}
	for _, m := range mustSpec(t, j).Mounts {
		has := func(o string) bool {
			return slices.ContainsFunc(m.Options, func(s string) bool { return strings.HasPrefix(s, o) })
		}
		switch m.Type {
		case "bind":
			if allowed[m.Destination] != m.Source {
				t.Errorf("%s of the host is mounted at %s", m.Source, m.Destination)
			}
			if !has("nosuid") || !has("nodev") {
				t.Errorf("%s: %v", m.Destination, m.Options)
			}
			if ro := m.Destination == InDir || m.Destination == InitPath; ro != has("ro") && !slices.Contains(m.Options, "rprivate") {
				t.Errorf("%s: %v", m.Destination, m.Options)
			}
			delete(allowed, m.Destination)
		case "tmpfs":
			if !has("size=") || !has("nr_inodes=") || !has("nosuid") {
				t.Errorf("%s: %v", m.Destination, m.Options)
			}
		case "proc", "sysfs", "devpts", "mqueue", "cgroup":
			if (m.Type == "sysfs" || m.Type == "cgroup") && !slices.Contains(m.Options, "ro") {
				t.Errorf("%s: %v", m.Destination, m.Options)
			}
		default:
			t.Errorf("mount of type %s at %s", m.Type, m.Destination)
		}
	}
	if len(allowed) > 0 {
		t.Errorf("not mounted: %v", allowed)
	}
	for _, dst := range []string{InDir, InitPath} {
		i := slices.IndexFunc(mustSpec(t, j).Mounts, func(m specs.Mount) bool { return m.Destination == dst })
		if !slices.Contains(mustSpec(t, j).Mounts[i].Options, "ro") {
			t.Errorf("%s can be written", dst)
		}
	}
}

func TestProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Job)
		want func(*specs.Process) bool
	}{
		{"the image's command", func(*Job) {}, func(p *specs.Process) bool {
			return slices.Equal(p.Args, []string{InitPath, RecordDir, "--", "/bin/run"}) && p.Cwd == "/srv" && p.User.UID == 7 && p.User.GID == 8
		}},
		{"its own", func(j *Job) { j.Work = work.Spec{Command: []string{"a", "-b"}, Dir: "/d", User: "me"} }, func(p *specs.Process) bool {
			return slices.Equal(p.Args[3:], []string{"a", "-b"}) && p.Cwd == "/d" && p.User.Username == "me" && p.User.UID == 0
		}},
		{"nothing said", func(j *Job) { j.Image.Dir, j.Image.User, j.Image.Env = "", "", nil }, func(p *specs.Process) bool {
			return p.Cwd == "/" && p.User.UID == 0 && slices.Equal(p.Env, []string{"PATH=" + defaultPath, "HOME=/scratch", "GPUFAIR_LEASE=" + job().Lease})
		}},
		{"environment", func(j *Job) { j.Work.Env = []string{"A=job", "B=", "GPUFAIR_LEASE=forged"} }, func(p *specs.Process) bool {
			return slices.Equal(p.Env, []string{"PATH=/opt/bin", "HOME=/scratch", "A=job", "B=", "GPUFAIR_LEASE=" + job().Lease})
		}},
		{"a number alone", func(j *Job) { j.Work.User = "1000" }, func(p *specs.Process) bool { return p.User.Username == "1000" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job()
			c.edit(&j)
			if p := mustSpec(t, j).Process; !c.want(p) {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for says, edit := range map[string]func(*Job){
		"add it after --":                 func(j *Job) { j.Image.Args = nil },
		"its first word is empty":         func(j *Job) { j.Work.Command = []string{""} },
		"1025 arguments":                  func(j *Job) { j.Work.Command = slices.Repeat([]string{"x"}, work.MaxArgs+1) },
		"argument 1 holds a zero byte":    func(j *Job) { j.Work.Command = []string{"x", "a\x00b"} },
		"not KEY=value":                   func(j *Job) { j.Work.Env = []string{"novalue"} },
		`"=x" is not KEY=value`:           func(j *Job) { j.Work.Env = []string{"=x"} },
		"1025 variables":                  func(j *Job) { j.Image.Env, j.Work.Env = nil, slices.Repeat([]string{"A=b"}, work.MaxEnv+1) },
		"put long values into a file":     func(j *Job) { j.Work.Env = []string{"A=" + strings.Repeat("x", maxArgsBytes)} },
		"is not an absolute path":         func(j *Job) { j.Work.Dir = "here" },
		"is not user[:group]":             func(j *Job) { j.Work.User = "a:b:c" },
		`in: "relative"`:                  func(j *Job) { j.Folders.In = "relative" },
		`out: "/a/../etc"`:                func(j *Job) { j.Folders.Out = "/a/../etc" },
		`init: "/"`:                       func(j *Job) { j.Folders.Init = "/" },
		`resolv: "resolv.conf"`:           func(j *Job) { j.Folders.Resolv = "resolv.conf" },
		"cores: 0 named":                  func(j *Job) { j.Policy.Cores = nil },
		"named twice":                     func(j *Job) { j.Policy.Cores = []int{1, 1} },
		"a core's number is negative":     func(j *Job) { j.Policy.Cores = []int{-1} },
		"number 4096":                     func(j *Job) { j.Policy.Cores = []int{maxCores} },
		"ids up to 65535":                 func(j *Job) { j.Work.User = "65536:0" },
		"memory: 0 bytes":                 func(j *Job) { j.Policy.MemoryBytes = 0 },
		"pids: 0":                         func(j *Job) { j.Policy.Pids = 0 },
		"open files: 0":                   func(j *Job) { j.Policy.OpenFiles = 0 },
		"tmp and shm: a size is negative": func(j *Job) { j.Policy.ShmBytes = -1 },
	} {
		j := job()
		edit(&j)
		if _, err := Spec(j); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("want %q, got %v", says, err)
		}
	}
}

// TestNothingLeaksIn draws jobs: whatever a stranger asks, the guarded parts of the spec stay the same.
func TestNothingLeaksIn(t *testing.T) {
	guarded := func(t *rapid.T, s *specs.Spec) string {
		p := *s.Process
		p.Args, p.Env, p.Cwd, p.User = p.Args[:3], nil, "", specs.User{}
		c := *s
		c.Process = &p
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	plain, err := Spec(job())
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		j := job()
		j.Work = work.Spec{
			Command: rapid.SliceOf(rapid.String()).Draw(rt, "command"), Env: rapid.SliceOf(rapid.String()).Draw(rt, "env"),
			Dir: rapid.String().Draw(rt, "dir"), User: rapid.String().Draw(rt, "user"),
		}
		s, err := Spec(j)
		if err == nil && guarded(rt, s) != guarded(rt, plain) {
			rt.Fatalf("a job changed its sandbox: %+v", j.Work)
		}
	})
}
