package containerd_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/providertest"
)

var update = flag.Bool("update", false, "write the table of what is denied into docs/sandbox.md")

// guard is one thing that stands between a job and the host. open takes it away.
type guard struct {
	name string
	open func(*specs.Spec)
}

// The guards that rows name.
var (
	seccompFilter = guard{"seccomp filter", func(s *specs.Spec) { s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow} }}
	capabilities  = guard{"dropped capabilities", func(s *specs.Spec) {
		all := allCapabilities()
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	}}
	userNS = guard{"user namespace", func(s *specs.Spec) {
		s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
		without(s, specs.UserNamespace)
	}}
	namespaces = guard{"own namespaces", func(s *specs.Spec) {
		for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.IPCNamespace, specs.NetworkNamespace, specs.CgroupNamespace} {
			without(s, kind)
		}
	}}
	deviceRules = guard{"device rules", func(s *specs.Spec) {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	}}
	masks         = guard{"masked paths", func(s *specs.Spec) { s.Linux.MaskedPaths = nil }}
	readonlyPaths = guard{"read-only paths", func(s *specs.Spec) { s.Linux.ReadonlyPaths = nil }}
	readonly      = guard{"read-only mounts", func(s *specs.Spec) { dropOption(s, "ro") }}
	noNewPrivs    = guard{"no new privileges", func(s *specs.Spec) { s.Process.NoNewPrivileges = false }}
	noSetuid      = guard{"nosuid mounts", func(s *specs.Spec) { dropOption(s, "nosuid") }}
	mountNS       = guard{"nothing of the host mounted", nil} // the test mounts it
	limits        = guard{"limits of the lease", nil}         // the test raises them
	quota         = guard{"quota of the disk", nil}           // the test raises it
)

// row is attempts that the same guards deny. That they come off once those are open shows that it is they.
type row struct {
	guards   []guard
	attempts []string
}

func rows() []row {
	return []row{
		{[]guard{seccompFilter}, []string{"user namespace of its own", "key ring", "keyctl", "userfaultfd", "personality", "socket to the host", "kernel crypto"}},
		{[]guard{seccompFilter, capabilities}, []string{
			"mount namespace", "mount a tmpfs", "mount control groups", "new mount interface", "unmask /proc/interrupts", "remount /proc/sys", "pivot_root",
			"chroot", "host name", "raw socket", "packet socket", "change an interface",
		}},
		{[]guard{userNS}, []string{"be the host's root"}},
		{[]guard{seccompFilter, capabilities, userNS}, []string{
			"load a module", "swap", "set the clock", "kernel log", "bpf", "perf events", "handle of a file", "priority over the owner", "make a device",
		}},
		{[]guard{seccompFilter, capabilities, userNS, deviceRules}, []string{"open a disk"}},
		{[]guard{masks}, []string{"interrupts", "firmware"}},
		{[]guard{masks, readonlyPaths, userNS, capabilities}, []string{"core pattern", "sysrq", "interrupt routes", "memory of the kernel", "timers"}},
		{[]guard{readonly, userNS}, []string{"write /sys", "its own limits", "change the inputs", "replace init"}},
		{[]guard{noNewPrivs, noSetuid}, []string{"set-user-id program"}},
		{[]guard{namespaces, userNS, capabilities, seccompFilter}, []string{
			"see the host's processes", "signal a process of the host", "trace a process of the host", "root of a process of the host", "abstract socket of the host",
			"shared memory of the host", "name of its control group",
		}},
		{[]guard{mountNS, userNS}, []string{"a file of the host", "a link to the host", "runtime's socket"}},
		{[]guard{limits}, []string{
			"fork bomb", "all memory", "open files", "cores of others", "fill /tmp", "files in /tmp", "fill /dev/shm", "fill /run", "fill /dev", "files in /dev",
		}},
		{[]guard{quota}, []string{"fill /scratch", "fill /out", "fill the image", "fill the exit record", "files in /scratch"}},
	}
}

func allCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
		"CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
		"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_SYS_TIME", "CAP_MKNOD", "CAP_SYSLOG", "CAP_PERFMON", "CAP_BPF",
	}
}

func without(s *specs.Spec, kind specs.LinuxNamespaceType) {
	s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

func dropOption(s *specs.Spec, option string) {
	for i := range s.Mounts {
		if option == "nosuid" && s.Mounts[i].Type != "tmpfs" {
			continue // the kernel does not give it up for a mount of the host's
		}
		s.Mounts[i].Options = slices.DeleteFunc(slices.Clone(s.Mounts[i].Options), func(o string) bool { return o == option })
	}
}

// host is what of the test's machine the attempts are about.
type host struct {
	env []string
	dir string // has the secret file and containerd's socket
}

// newHost makes a process, a file, a socket and shared memory that are none of a job's business.
func newHost(t *testing.T, d *containerdtest.Daemon) host {
	t.Helper()
	secret := filepath.Join(d.Dir, "secret")
	if err := os.WriteFile(secret, []byte("none of your business"), 0o644); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = victim.Process.Kill(), victim.Wait() })
	abstract := fmt.Sprintf("gpufair-test-%d", os.Getpid())
	l, err := net.Listen("unix", "@"+abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	key := os.Getpid() | 0x47000000
	shm, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(shm, unix.IPC_RMID, nil) })
	return host{dir: d.Dir, env: []string{
		"SECRET=" + secret, "SOCKET=" + d.Address, fmt.Sprintf("VICTIM=%d", victim.Process.Pid), "ABSTRACT=" + abstract, fmt.Sprintf("SHM=%d", key),
	}}
}

// outcome is what the hostile program says of an attempt.
type outcome struct{ came, why string }

// attack runs attempts, all if none is named, with the guards open.
func attack(t *testing.T, rig providertest.Rig, h host, id string, open []guard, attempts ...string) (providertest.Job, map[string]outcome) {
	t.Helper()
	p, disk := providertest.Policy(), int64(16<<20)
	p.TmpBytes = 16 << 20
	names := map[string]bool{}
	for _, g := range open {
		names[g.name] = true
	}
	if names[limits.name] {
		p.Cores, p.MemoryBytes, p.Pids, p.OpenFiles, p.TmpBytes, p.ShmBytes = []int{0, 1}, 1<<30, 1000, 8192, 256<<20, 512<<20
	}
	if names[quota.name] {
		disk = 1 << 30
	}
	edit := func(s *specs.Spec) {
		for _, g := range open {
			if g.open != nil {
				g.open(s)
			}
		}
		if names[namespaces.name] {
			s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "mqueue" }) // belongs to an IPC namespace
		}
		if names[mountNS.name] {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: h.dir, Type: "bind", Source: h.dir, Options: []string{"bind", "ro"}})
		}
		for i := range s.Mounts {
			if m := &s.Mounts[i]; names[limits.name] && (m.Destination == "/run" || m.Destination == "/dev") {
				m.Options = []string{"mode=755"}
			}
		}
	}
	if names[userNS.name] {
		p.UserNamespace = false // so that its folders belong to the host's root, too
	}
	w := work.Spec{Command: append([]string{"hostile"}, attempts...), Env: h.env}
	j := rig.CreateEdited(t, id, p, w, disk, func(raw []byte) []byte {
		var s specs.Spec
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		edit(&s)
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	})
	if names[namespaces.name] {
		if err := rig.Runtime.Start(providertest.Context(t), j.ID); err != nil { // there is no network of its own to wire
			t.Fatal(err)
		}
	} else {
		j.Start(t)
	}
	end, out, errs := j.Finish(t)
	if end.Exit == nil || end.Exit.Code != 0 {
		t.Fatalf("the hostile job ended with %+v\n%s%s", end.Exit, out, errs)
	}
	got := map[string]outcome{}
	for line := range strings.Lines(out) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(f) == 3 {
			got[f[0]] = outcome{f[1], f[2]}
		}
	}
	return j, got
}

// own is what a job may do in what is its own; it stands in no row.
const own = "write its own image"

// TestHostile runs an image that tries to get out, to harm and to take all there is. Each attempt is denied; and each comes off once the
// guards in its row are open, so that a row whose guard does nothing fails.
func TestHostile(t *testing.T) {
	d, rig := newRig(t)
	img := containerdtest.HostileImage(t)
	rig.Archive, rig.Digest = img.Archive(t), img.Digest
	h := newHost(t, d)
	t.Run("denied", func(t *testing.T) { allDenied(t, rig, h) })
	for i, r := range rows() {
		t.Run("without "+strings.Join(guardNames(r.guards), " and "), func(t *testing.T) {
			_, freed := attack(t, rig, h, fmt.Sprintf("bad%d", i+1), r.guards, r.attempts...)
			for _, a := range r.attempts {
				switch o := freed[a]; o.came {
				case "done":
				case "absent":
					t.Logf("not tried: %s: %s", a, o.why)
				default:
					t.Errorf("%s: %s %s", a, o.came, o.why)
				}
			}
		})
	}
	t.Run("the next job", func(t *testing.T) {
		if _, next := attack(t, rig, h, "bad99", nil, own); next[own].came != "done" {
			t.Errorf("it finds: %+v", next)
		}
	})
	t.Run("docs", func(t *testing.T) { documented(t) })
	t.Run("nothing left", func(t *testing.T) { nothingLeft(t, d) })
}

// documented holds the table of docs/sandbox.md to the rows.
func documented(t *testing.T) {
	const path, begin, end = "../../docs/sandbox.md", "<!-- denied: written by go test ./provider/containerd -run TestHostile -update -->\n", "<!-- end -->"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	var table strings.Builder
	table.WriteString("\n| what a job tries | denied by |\n|---|---|\n")
	for _, r := range rows() {
		fmt.Fprintf(&table, "| %s | %s |\n", strings.Join(r.attempts, "; "), strings.Join(guardNames(r.guards), ", "))
	}
	want := before + begin + table.String() + "\n" + end + after
	if want == string(b) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what is tested: run the test with -update", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// allDenied makes every attempt with all guards in place.
func allDenied(t *testing.T, rig providertest.Rig, h host) {
	j, got := attack(t, rig, h, "bad0", nil)
	for _, r := range rows() {
		for _, a := range r.attempts {
			if o := got[a]; o.came != "denied" && o.came != "absent" {
				t.Errorf("%s: %s %s", a, o.came, o.why)
			}
			delete(got, a)
		}
	}
	if o := got[own]; o.came != "done" || len(got) > 1 {
		t.Errorf("in no row: %+v", got)
	}
	collect(t, j)
}

func guardNames(list []guard) []string {
	var out []string
	for _, g := range list {
		out = append(out, g.name)
	}
	return out
}

// collect packs the results of a job that left a link to the host among them. A reader that follows links gets the host's file: so it is the
// packing that does not.
func collect(t *testing.T, j providertest.Job) {
	t.Helper()
	link := filepath.Join(j.Folders.Out, "link")
	if b, err := os.ReadFile(link); err != nil || len(b) == 0 {
		t.Fatalf("the link leads nowhere: %q, %v", b, err)
	}
	pack, err := blob.Pack(t.Context(), j.Folders.Out, blob.PackOptions{Skip: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer pack.Close()
	for _, e := range pack.Manifest.Entries {
		if e.Type == blob.File {
			t.Errorf("a file is among the results: %+v", e)
		}
	}
}
