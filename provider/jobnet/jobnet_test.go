package jobnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/reach"
)

const (
	// childVerb makes the test's program a job's child, with the rules left out that follow.
	childVerb = "jobnet-child"
	// alone marks the process that runs the tests in a network namespace of its own, which plays the owner's machine.
	alone = "GPUFAIR_TEST_ALONE"
)

// TestMain lets the test's program be the child of a job's network and the logger beside a job, and moves the tests out of the network of
// the machine that they run on.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == childVerb:
		finish(RunChild(context.Background(), func(owner []netip.Prefix) *reach.Policy { return without(reach.New(owner), os.Args[2:]) }))
	case len(os.Args) == 3 && os.Args[1] == containerd.LoggerVerb:
		finish(access.RunLogger(os.Args[2]))
	case os.Getenv(alone) == "":
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), alone+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		finish(err)
	}
	if err := settle(); err != nil {
		finish(fmt.Errorf("run these tests as root: %w", err))
	}
	os.Exit(m.Run())
}

// settle makes the namespaces of this process a machine: its loopback is up, and its resolver is one of the tests.
func settle() error {
	if err := up("lo"); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	conf, err := os.CreateTemp("", "resolv")
	if err != nil {
		return err
	}
	defer os.Remove(conf.Name()) // the mount holds it
	if _, err := conf.WriteString("nameserver 127.0.0.1\n"); err != nil {
		return err
	}
	return errors.Join(conf.Chmod(0o644), conf.Close(), unix.Mount(conf.Name(), "/etc/resolv.conf", "", unix.MS_BIND, ""))
}

func finish(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// without leaves rules out of a policy, and the host's own networks if they are named.
func without(p *reach.Policy, names []string) *reach.Policy {
	p.Rules = slices.DeleteFunc(p.Rules, func(r reach.Rule) bool { return slices.Contains(names, r.Name) })
	if slices.Contains(names, reach.OwnNet) {
		p.Host = nil
	}
	return p
}

// open makes a Network whose children leave out the rules.
func open(t testing.TB, rules ...string) *Network {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	n, err := Open(Config{Dir: filepath.Join(dir, "net"), Flows: filepath.Join(dir, "flows"), Command: append([]string{self, childVerb}, rules...)})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sleeper is a process in namespaces of its own, as a created container is, which ends with the test. It takes root.
func sleeper(t testing.TB, flags uintptr) int {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: flags}
	if err := cmd.Start(); err != nil {
		t.Fatalf("make a namespace (run these tests as root): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	return cmd.Process.Pid
}

// enter runs f on a thread of its own in the network namespace of pid.
func enter(t testing.TB, pid int, f func() error) {
	t.Helper()
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := within(t.Context(), ns, f); err != nil {
		t.Fatal(err)
	}
}

// addVeth asks the kernel for a pair of interfaces, both down, the second in the namespace of a process (rtnetlink(7): RTM_NEWLINK with the
// kind in IFLA_LINKINFO, veth's peer in its data).
func addVeth(name, peer string, pid int) error {
	const infoKind, infoData, infoPeer = 1, 2, 1 // IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER
	l, err := openLink("lo")
	if err != nil {
		return err
	}
	defer l.close()
	other := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, append([]byte(peer), 0))...)
	other = append(other, attribute(unix.IFLA_NET_NS_PID, binary.NativeEndian.AppendUint32(nil, uint32(pid)))...)
	info := append(attribute(infoKind, []byte("veth")), attribute(infoData, attribute(infoPeer, other))...)
	body := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_IFNAME, append([]byte(name), 0))...)
	return l.ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, append(body, attribute(unix.IFLA_LINKINFO, info)...))
}

func wire(t *testing.T, n *Network, pid int) error {
	t.Helper()
	return n.Wire(t.Context(), provider.WireRequest{ID: "j", PID: pid, Egress: provider.EgressNone})
}

func TestLoopbackOnly(t *testing.T) {
	n := open(t)
	pid := sleeper(t, syscall.CLONE_NEWNET)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := wire(t, n, pid); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Readlink("/proc/self/ns/net")
	if err != nil || after != before {
		t.Errorf("we are in %s, were in %s", after, before)
	}
	enter(t, pid, func() error {
		ifs, err := net.Interfaces()
		if err == nil && (len(ifs) != 1 || ifs[0].Flags&net.FlagUp == 0) {
			err = fmt.Errorf("interfaces %+v", ifs)
		}
		return err
	})
	if _, err := n.Traffic(t.Context(), "j"); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("traffic without egress: %v", err)
	}
	if err := n.Unwire(t.Context(), "j"); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	n := open(t)
	if err := wire(t, n, sleeper(t, syscall.CLONE_NEWUTS)); err == nil || !strings.Contains(err.Error(), "shares the host's network") {
		t.Errorf("a process in our namespace: %v", err)
	}
	if err := wire(t, n, 1<<30); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("no process: %v", err)
	}
	good := provider.WireRequest{ID: "j", PID: os.Getpid(), Egress: provider.EgressInternet, Rate: 1, Cap: 1}
	for what, spoil := range map[string]func(*provider.WireRequest){
		"an egress that is none": func(r *provider.WireRequest) { r.Egress = "lan" },
		"an id that leads out":   func(r *provider.WireRequest) { r.ID = "../x" },
		"no rate":                func(r *provider.WireRequest) { r.Rate = 0 },
		"no byte cap":            func(r *provider.WireRequest) { r.Cap = 0 },
		"a network that is none": func(r *provider.WireRequest) { r.Deny = []string{"x"} },
	} {
		req := good
		spoil(&req)
		if err := n.Wire(t.Context(), req); !errors.Is(err, provider.ErrRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestWayOut puts an interface into the namespace: idle it is nothing, up or with an address it is a way out.
func TestWayOut(t *testing.T) {
	n := open(t)
	pid := sleeper(t, syscall.CLONE_NEWNET)
	enter(t, pid, func() error { return addVeth("veth0", "veth1", pid) })
	if err := wire(t, n, pid); err != nil {
		t.Fatalf("an idle interface: %v", err)
	}
	enter(t, pid, func() error { return up("veth0") })
	if err := wire(t, n, pid); err == nil || !strings.Contains(err.Error(), "veth0") {
		t.Errorf("an interface that is up: %v", err)
	}
}
