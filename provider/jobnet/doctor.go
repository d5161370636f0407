package jobnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/reach"
)

// Proof is what [Prove] has tried.
type Proof struct {
	Tried      int          // addresses, this machine's and its neighbours' among them; none was reached
	Host       []netip.Addr // addresses of this machine
	Neighbours []netip.Addr // IPv4 neighbours that this machine has talked with lately
}

// Prove gives a process that does nothing the network of a job, tries from there what no job may reach, as it is tried before each job with
// egress starts, and the neighbours that this machine has talked with; all of it is gone afterwards. An [ErrHole] says that the denial does
// not hold, any other error that it could not be tried. It takes root. The command is that of [Config].
func Prove(ctx context.Context, command []string, egress string, deny []string) (p Proof, err error) {
	dir, err := os.MkdirTemp("", "gpufair-network-")
	if err != nil {
		return p, fmt.Errorf("prove the denial: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	n, err := Open(Config{Dir: filepath.Join(dir, "net"), Flows: filepath.Join(dir, "flows"), Command: command})
	if err != nil {
		return p, err
	}
	pid, end, err := n.idle()
	if err != nil {
		return p, fmt.Errorf("prove the denial: %w", err)
	}
	defer end()
	req := provider.WireRequest{ID: "proof", PID: pid, Egress: egress, Rate: 1 << 20, Cap: 1 << 20, Deny: deny}
	if err := n.Wire(ctx, req); err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, n.Unwire(context.WithoutCancel(ctx), req.ID)) }()
	return n.proveNow(ctx, req)
}

// proveNow tries everything in the namespace of a job that is wired.
func (n *Network) proveNow(ctx context.Context, req provider.WireRequest) (p Proof, err error) {
	host, err := (&reach.Host{}).Networks()
	if err != nil {
		return p, err
	}
	for _, h := range host {
		if a := h.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			p.Host = append(p.Host, a)
		}
	}
	if p.Neighbours, err = neighbours("/proc/net/arp"); err != nil {
		return p, err
	}
	list := forbidden(host)
	for _, a := range p.Neighbours {
		list = append(list, netip.AddrPortFrom(a, 80))
	}
	ns, err := os.Open("/proc/" + strconv.Itoa(req.PID) + "/ns/net")
	if err != nil {
		return p, err
	}
	defer ns.Close()
	if req.Egress == provider.EgressInternet {
		p.Tried, err = n.refuses(ctx, ns, req, list)
		return p, err
	}
	p.Tried = len(list)
	return p, within(ctx, ns, func() error { return noWay(list) })
}

// maxNeighbours is how many neighbours are tried at most.
const maxNeighbours = 64

// neighbours reads the kernel's table of IPv4 neighbours (proc_pid_net(5), arp): those that have answered.
func neighbours(path string) (list []netip.Addr, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("neighbours of this machine: %w", err)
	}
	defer f.Close()
	const complete = 0x2 // ATF_COM (linux/if_arp.h)
	lines := bufio.NewScanner(f)
	for lines.Scan() && len(list) < maxNeighbours {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		flags, ferr := strconv.ParseUint(fields[2], 0, 32)
		if err != nil || ferr != nil || flags&complete == 0 || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue // the heading, and who has not answered
		}
		list = append(list, a)
	}
	return list, lines.Err()
}

// noWay connects to each address in the current thread's namespace, which leads nowhere: no packet may even be sent.
func noWay(list []netip.AddrPort) error {
	for _, to := range list {
		fd, err := unix.Socket(int(family(to.Addr())), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Connect(fd, sockaddr(to))
		unix.Close(fd)
		if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("%s: %w: there is a way to it (%v)", to, ErrHole, err)
		}
	}
	return nil
}

// idle starts a process in a network namespace of its own that does nothing: a child that waits for its settings. It ends with end, or with
// this process.
func (n *Network) idle() (pid int, end func(), err error) {
	program, err := os.Open(n.config.Command[0])
	if err != nil {
		return 0, nil, err
	}
	defer program.Close()
	cmd := n.child(program)
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, fmt.Errorf("a process in a network namespace: %w", err)
	}
	return cmd.Process.Pid, func() {
		stdin.Close()
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()         // it was killed: no other word is wanted
	}, nil
}
