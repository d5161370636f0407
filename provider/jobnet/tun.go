package jobnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// What a job sees of its network. No packet with these addresses leaves its namespace: the other end of the interface is our stack.
var (
	jobAddr4    = netip.MustParsePrefix("10.0.2.100/24")
	jobAddr6    = netip.MustParsePrefix("fd6a:6f62:6e65:7400::100/64")
	gateway4    = netip.MustParseAddr("10.0.2.2")
	gateway6    = netip.MustParseAddr("fd6a:6f62:6e65:7400::2")
	nameServer4 = netip.MustParseAddr("10.0.2.3")
	nameServer6 = netip.MustParseAddr("fd6a:6f62:6e65:7400::3")
)

const (
	tunName = "eth0"
	// mtu is the largest that both ends take: fewer, larger packets are what makes a user-mode stack fast.
	mtu = 65520
)

// openTUN makes the job's interface in the current thread's namespace and gives its other end. The interface is gone when the last
// descriptor of it is.
func openTUN() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w: egress needs the kernel's tun module: modprobe tun", err)
	}
	f := os.NewFile(uintptr(fd), "tun")
	if err := setUpTUN(fd); err != nil {
		f.Close()
		return nil, fmt.Errorf("make the job's interface: %w", err)
	}
	return f, nil
}

func setUpTUN(fd int) error {
	req, err := unix.NewIfreq(tunName)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return err
	}
	l, err := openLink(tunName)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.up(mtu); err != nil {
		return fmt.Errorf("turn it on: %w", err)
	}
	for _, n := range []struct {
		addr    netip.Prefix
		gateway netip.Addr
	}{{jobAddr4, gateway4}, {jobAddr6, gateway6}} {
		err := l.address(n.addr)
		if n.addr.Addr().Is6() && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)) {
			continue // the kernel has IPv6 turned off: the job has IPv4
		}
		if err != nil {
			return fmt.Errorf("address %s: %w", n.addr, err)
		}
		if err := l.route(n.gateway); err != nil {
			return fmt.Errorf("route by %s: %w", n.gateway, err)
		}
	}
	return nil
}
