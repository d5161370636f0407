package jobnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/reach"
)

// ErrHole says that a job could reach what no job may, or that nothing has proven the opposite.
var ErrHole = errors.New("the job must not run")

// proveIn bounds all of a self-test's connections together. A refusal takes microseconds.
const proveIn = 5 * time.Second

// forbidden is one address of each kind that no job may reach.
func forbidden(host []netip.Prefix) []netip.AddrPort {
	var out []netip.AddrPort
	add := func(a netip.Addr, port uint16) { out = append(out, netip.AddrPortFrom(a, port)) }
	for _, a := range []string{
		"10.0.0.1", "172.16.0.1", "192.168.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200", "169.254.169.254", "168.63.129.16", "192.0.0.192",
		"198.18.0.1", "192.0.2.1", "fd00:ec2::254", "fc00::1", "64:ff9b::a00:1", "2002:a00:1::1", "2001:0:a00:1::1",
	} {
		add(netip.MustParseAddr(a), 80)
	}
	add(gateway4, 22)                       // the host's alias, if there were one
	add(netip.MustParseAddr("1.1.1.1"), 25) // mail: an address that nothing else denies
	for _, p := range host {
		if a := p.Addr(); !a.IsLoopback() && !a.IsLinkLocalUnicast() { // those are the job's own in its namespace
			add(a, 22)
			if next := p.Masked().Addr().Next(); p.Contains(next) { // a neighbour, often the router; an address by itself has none
				add(next, 80)
			}
		}
	}
	return out
}

// prove connects from the job's namespace to what may never be reached, before the job's first instruction, and wants each refused by a
// rule of the stack: an address that merely does not answer proves nothing. What it counted is taken back, and the job is noted as wired.
func (n *Network) prove(ctx context.Context, ns *os.File, req provider.WireRequest) error {
	host, err := (&reach.Host{}).Networks()
	if err != nil {
		return err
	}
	_, err = n.refuses(ctx, ns, req, forbidden(host))
	return err
}

// refuses does it for a list, and says how many of it were refused.
func (n *Network) refuses(ctx context.Context, ns *os.File, req provider.WireRequest, list []netip.AddrPort) (int, error) {
	f, err := os.OpenFile(n.counters(req.ID), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	c, err := mapCounters(f)
	if err != nil {
		return 0, err
	}
	defer c.unmap()
	before := atomic.LoadUint64(&c.refused)
	var tried int
	err = within(ctx, ns, func() (err error) {
		tried, err = refuseAll(list)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("self-test of the denial: %w", err)
	}
	if got := atomic.LoadUint64(&c.refused) - before; got < uint64(tried) {
		return 0, fmt.Errorf("self-test of the denial: %d addresses tried, only %d refused by a rule: %w", tried, got, ErrHole)
	}
	atomic.StoreUint64(&c.refused, before)
	atomic.StoreUint64(&c.pid, uint64(req.PID))
	return tried, nil
}

// refuseAll connects to each address in the current thread's namespace, all at once, and says how many connections were refused. One that
// comes about, or is left without an answer, is an error. Where the namespace has no IPv6 there is none to refuse.
func refuseAll(list []netip.AddrPort) (int, error) {
	var polls []unix.PollFd
	var open []netip.AddrPort
	defer func() {
		for _, p := range polls {
			unix.Close(int(p.Fd))
		}
	}()
	refused := 0
	for _, to := range list {
		fd, err := unix.Socket(int(family(to.Addr())), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		switch err := unix.Connect(fd, sockaddr(to)); {
		case errors.Is(err, unix.EINPROGRESS):
			polls, open = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}), append(open, to)
			continue
		case errors.Is(err, unix.ECONNREFUSED):
			refused++
		case to.Addr().Is6() && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EADDRNOTAVAIL)):
		default:
			unix.Close(fd)
			return 0, fmt.Errorf("%s: %w", to, orReached(err))
		}
		unix.Close(fd)
	}
	for deadline := time.Now().Add(proveIn); len(open) > 0; {
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s: neither reached nor refused: %w", open[0], ErrHole)
		}
		if _, err := unix.Poll(polls, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		for i := len(polls) - 1; i >= 0; i-- {
			if polls[i].Revents == 0 {
				continue
			}
			code, err := unix.GetsockoptInt(int(polls[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil || unix.Errno(code) != unix.ECONNREFUSED {
				return 0, fmt.Errorf("%s: %w", open[i], orReached(errors.Join(err, errno(code))))
			}
			refused++
			unix.Close(int(polls[i].Fd))
			polls, open = append(polls[:i], polls[i+1:]...), append(open[:i], open[i+1:]...)
		}
	}
	return refused, nil
}

func sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

// errno is nil for 0.
func errno(code int) error {
	if code == 0 {
		return nil
	}
	return unix.Errno(code)
}

// orReached is err, or that the address was reached.
func orReached(err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("it is reached: %w", ErrHole)
}
