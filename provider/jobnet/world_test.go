package jobnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// What there is outside of the test's own machine: the two ends of its line, servers of the internet, a home's network and neighbours.
const (
	hostAddr   = "9.9.9.2"
	hostAddr6  = "2600:9::2"
	neighbour  = "9.9.9.7"
	neighbour6 = "2600:9::7"
	server     = "8.8.4.4"
	server6    = "2600:1::1"
)

// theWorld are the addresses that answer outside, each an address of the world's namespace, reached by the host's default routes.
var theWorld = []string{
	server, server6, "192.168.50.1", "10.1.2.3", "172.16.5.5", "100.64.1.1", "169.254.169.254", "168.63.129.16", "192.0.2.9", "198.18.0.7",
	"fd12::1", "64:ff9b::808:404", "2002:808:404::1", "2001:0:808:404::1", "2001:db8::9",
}

// world is the internet as this test's machine sees it: a namespace behind a link. It is made once for all tests of the process.
var world = sync.OnceValues(func() (int, error) {
	// It ends with the process: a namespace lives as long as something in it.
	pid, err := unshared()
	if err != nil {
		return 0, err
	}
	if err := addVeth("up0", "w0", pid); err != nil {
		return 0, fmt.Errorf("veth: %w", err)
	}
	if err := dress("up0", []string{hostAddr + "/24", hostAddr6 + "/64", "fe80::2/64"}, "9.9.9.1", "2600:9::1"); err != nil {
		return 0, fmt.Errorf("host's end: %w", err)
	}
	// The host's address twice over: on a card of its own, and as its neighbours see it.
	ns, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	return pid, inside(ns, func() error {
		if err := up("lo"); err != nil {
			return err
		}
		if err := dress("w0", []string{"9.9.9.1/24", neighbour + "/24", "2600:9::1/64", neighbour6 + "/64", "fe80::7/64"}, hostAddr, hostAddr6); err != nil {
			return err
		}
		var own []string
		for _, a := range theWorld {
			own = append(own, a+"/"+strconv.Itoa(netip.MustParseAddr(a).BitLen()))
		}
		return dress("lo", own)
	})
})

// unshared is a process in a network namespace of its own that ends with this one.
func unshared() (int, error) {
	self := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "3600"}, &os.ProcAttr{Sys: self})
	if err != nil {
		return 0, fmt.Errorf("make a namespace (run these tests as root): %w", err)
	}
	return p.Pid, nil
}

// dress gives an interface of the current namespace addresses and routes, and turns it on.
func dress(name string, addrs []string, gateways ...string) error {
	l, err := openLink(name)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.up(65535 &^ 0xf); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := l.address(netip.MustParsePrefix(a)); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	for _, g := range gateways {
		if err := l.route(netip.MustParseAddr(g)); err != nil {
			return fmt.Errorf("route by %s: %w", g, err)
		}
	}
	return nil
}

// servers answers on the ports, TCP and UDP, in the namespace of a process (0: the host's own): "hello from PLACE" to whoever connects, after
// which it sends back what it gets; until the test's end.
func servers(t testing.TB, pid int, place string, ports ...int) {
	t.Helper()
	var listeners []net.Listener
	var packets []net.PacketConn
	listen := func() error {
		for _, p := range ports {
			l, err := net.Listen("tcp", ":"+strconv.Itoa(p))
			if err != nil {
				return err
			}
			listeners = append(listeners, l)
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				return err
			}
			for _, a := range addrs { // each by itself, so that answers come from the address that was asked
				ip := a.(*net.IPNet).IP
				if ip.IsLinkLocalUnicast() && ip.To4() == nil {
					continue // those have a zone, and jobs ask them by TCP
				}
				u, err := net.ListenPacket("udp", net.JoinHostPort(ip.String(), strconv.Itoa(p)))
				if err != nil {
					return err
				}
				packets = append(packets, u)
			}
		}
		return nil
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		for _, l := range listeners {
			l.Close()
		}
		for _, u := range packets {
			u.Close()
		}
		all.Wait()
	})
	if pid != 0 {
		enter(t, pid, listen)
	} else if err := listen(); err != nil {
		t.Fatal(err)
	}
	for _, l := range listeners {
		all.Go(func() { serveTCP(l, place, &all) })
	}
	for _, u := range packets {
		all.Go(func() {
			b := make([]byte, 64<<10)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = u.WriteTo([]byte("hello from "+place), from) // lost: the other side says so
			}
		})
	}
}

func serveTCP(l net.Listener, place string, all *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		all.Go(func() {
			defer c.Close()
			if _, err := c.Write([]byte("hello from " + place + "\n")); err == nil {
				_, _ = io.Copy(c, c) // a test sees what comes back
			}
		})
	}
}

// nameServer answers names in the host's own namespace on 127.0.0.1:53, as the resolver of a PC does: each to the addresses given, and
// counts nothing.
func nameServer(t testing.TB, names map[string][]string) {
	t.Helper()
	u, err := net.ListenPacket("udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			k, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			if answer := answerFrom(b[:k], names); answer != nil {
				_, _ = u.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() { u.Close(); <-done })
}

func answerFrom(query []byte, names map[string][]string) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	h.Response, h.RecursionAvailable, h.RCode = true, true, dnsmessage.RCodeNameError
	addrs, known := names[q.Name.String()]
	if known {
		h.RCode = dnsmessage.RCodeSuccess
	}
	b := dnsmessage.NewBuilder(nil, h)
	_ = errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers()) // a whole answer or none: the client says so
	for _, a := range addrs {
		ip := netip.MustParseAddr(a)
		rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
		switch {
		case ip.Is4() && q.Type == dnsmessage.TypeA:
			_ = b.AResource(rh, dnsmessage.AResource{A: ip.As4()})
		case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
			_ = b.AAAAResource(rh, dnsmessage.AAAAResource{AAAA: ip.As16()})
		}
	}
	answer, err := b.Finish()
	if err != nil {
		return nil
	}
	return answer
}
