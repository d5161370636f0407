package jobnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// sleeper is a process in namespaces of its own, as a created container is, which ends with the test. It takes root.
func sleeper(t *testing.T, flags uintptr) int {
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

// within runs f on a thread of its own in the network namespace of pid.
func within(t *testing.T, pid int, f func() error) {
	t.Helper()
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() { done <- inside(ns, f) }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// addVeth asks the kernel for a pair of interfaces, both down (rtnetlink(7): RTM_NEWLINK with the kind in IFLA_LINKINFO).
func addVeth() error {
	const infoKind = 1 // IFLA_INFO_KIND
	kind := attribute(infoKind, []byte("veth"))
	body := append(make([]byte, unix.SizeofIfInfomsg), attribute(unix.IFLA_LINKINFO, kind)...)
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, unix.RTM_NEWLINK)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg = append(msg, make([]byte, 8)...) // sequence and port
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	if n, _, err := unix.Recvfrom(fd, answer, 0); err != nil || n < 20 {
		return fmt.Errorf("answer of %d bytes: %w", n, err)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func attribute(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), data...)
	return append(b, make([]byte, (4-len(data)%4)%4)...)
}

func wire(t *testing.T, pid int) error {
	t.Helper()
	return Network{}.Wire(t.Context(), provider.WireRequest{ID: "j", PID: pid, Egress: EgressNone})
}

func TestLoopbackOnly(t *testing.T) {
	pid := sleeper(t, syscall.CLONE_NEWNET)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := wire(t, pid); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Readlink("/proc/self/ns/net")
	if err != nil || after != before {
		t.Errorf("we are in %s, were in %s", after, before)
	}
	within(t, pid, func() error {
		ifs, err := net.Interfaces()
		if err == nil && (len(ifs) != 1 || ifs[0].Flags&net.FlagUp == 0) {
			err = fmt.Errorf("interfaces %+v", ifs)
		}
		return err
	})
	if err := (Network{}).Unwire(t.Context(), "j"); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	if err := wire(t, sleeper(t, syscall.CLONE_NEWUTS)); err == nil || !strings.Contains(err.Error(), "shares the host's network") {
		t.Errorf("a process in our namespace: %v", err)
	}
	if err := wire(t, 1<<30); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("no process: %v", err)
	}
	err := Network{}.Wire(t.Context(), provider.WireRequest{ID: "j", PID: os.Getpid(), Egress: "internet"})
	if !errors.Is(err, provider.ErrRequest) {
		t.Errorf("egress that is not offered: %v", err)
	}
}

// TestWayOut puts an interface into the namespace: idle it is nothing, up or with an address it is a way out.
func TestWayOut(t *testing.T) {
	pid := sleeper(t, syscall.CLONE_NEWNET)
	within(t, pid, addVeth)
	if err := wire(t, pid); err != nil {
		t.Fatalf("an idle interface: %v", err)
	}
	within(t, pid, func() error { return up("veth0") })
	if err := wire(t, pid); err == nil || !strings.Contains(err.Error(), "veth0") {
		t.Errorf("an interface that is up: %v", err)
	}
}
