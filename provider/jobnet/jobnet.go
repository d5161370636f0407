// Package jobnet is the job's network: a namespace with nothing but its own loopback, or with one interface more whose other end is a
// user-mode stack of ours. Each connection that the stack lets out is a socket of a child process without privileges, opened after the
// address was judged (provider/reach): nothing of the host's firewall, routing or addresses is touched, and when the child is gone so is the
// job's way out. It fulfils provider.Network and knows neither containers nor leases.
package jobnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// Config is where networks are kept and how their children are started.
type Config struct {
	// Dir is a folder that only root may enter: for each job with egress a folder with its counters, and the resolv.conf of all jobs.
	Dir string
	// Flows is the folder of the flow logs, which outlive the jobs: 30 days, at most 1 GiB.
	Flows string
	// Command starts the child of one job's network: a program that calls [RunChild].
	Command []string
}

// Network wires namespaces. It may be used by several goroutines at once, but for one job by one at a time.
type Network struct {
	config Config
}

var _ provider.Network = (*Network)(nil)

// resolvConf is what every job with egress has as /etc/resolv.conf.
var resolvConf = fmt.Sprintf("nameserver %s\nnameserver %s\n", nameServer4, nameServer6)

// Open makes the folders. Children of an earlier process go on.
func Open(c Config) (*Network, error) {
	if len(c.Command) == 0 || !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Flows) {
		return nil, errors.New("jobs' networks: want absolute folders and the command of the child")
	}
	n := &Network{c}
	for _, dir := range []string{c.Dir, n.jobs(), c.Flows} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("jobs' networks: %w", err)
		}
	}
	if err := os.WriteFile(n.Resolv(), []byte(resolvConf), 0o644); err != nil {
		return nil, fmt.Errorf("jobs' networks: %w", err)
	}
	return n, nil
}

// Resolv is the path of the resolv.conf for jobs with egress.
func (n *Network) Resolv() string { return filepath.Join(n.config.Dir, "resolv.conf") }

func (n *Network) jobs() string { return filepath.Join(n.config.Dir, "jobs") }

func (n *Network) job(id string) string { return filepath.Join(n.jobs(), id) }

func (n *Network) counters(id string) string { return filepath.Join(n.job(id), "counters") }

var goodID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,75}$`)

// Wire implements provider.Network. It fails if the process shares our own namespace, or if its namespace has a way out that is not ours:
// any interface besides loopback that is up or has an address (the kernel may put idle tunnel devices into every new namespace). With egress
// it returns when the denial of what a job may never reach is proven in this very namespace.
func (n *Network) Wire(ctx context.Context, req provider.WireRequest) error {
	if err := check(req); err != nil {
		return fmt.Errorf("wire job %q: %w", req.ID, err)
	}
	ns, err := os.Open("/proc/" + strconv.Itoa(req.PID) + "/ns/net")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("wire job %s: process %d: %w", req.ID, req.PID, provider.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	defer ns.Close()
	if err := notOurs(ns); err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	if req.Egress == provider.EgressInternet {
		err = n.connect(ctx, ns, req)
	} else {
		err = within(ctx, ns, isolate)
	}
	if err != nil {
		return fmt.Errorf("wire job %s: %w", req.ID, err)
	}
	return nil
}

// check refuses what no owner can have meant.
func check(req provider.WireRequest) error {
	switch {
	case !goodID.MatchString(req.ID):
		return fmt.Errorf("the id is not 1 to 76 of a-z, 0-9 and -: %w", provider.ErrRequest)
	case req.Egress != provider.EgressNone && req.Egress != provider.EgressInternet:
		return fmt.Errorf("egress %q: want none or internet: %w", req.Egress, provider.ErrRequest)
	case req.Egress == provider.EgressInternet && (req.Rate == 0 || req.Cap == 0):
		return fmt.Errorf("egress without a rate or a byte cap: %w", provider.ErrRequest)
	}
	for _, d := range req.Deny {
		if _, err := netip.ParsePrefix(d); err != nil {
			return fmt.Errorf("deny %q: want a network such as 203.0.113.0/24: %w", d, provider.ErrRequest)
		}
	}
	return nil
}

// within runs f in the namespace, or gives up waiting for it.
func within(ctx context.Context, ns *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- inside(ns, f) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Traffic implements provider.Network.
func (n *Network) Traffic(_ context.Context, id string) (provider.Traffic, error) {
	if !goodID.MatchString(id) {
		return provider.Traffic{}, fmt.Errorf("traffic of job %q: %w", id, provider.ErrRequest)
	}
	t, err := traffic(n.counters(id))
	if errors.Is(err, fs.ErrNotExist) {
		return t, fmt.Errorf("traffic of job %s: %w", id, provider.ErrNotFound)
	}
	if err != nil {
		return t, fmt.Errorf("traffic of job %s: %w", id, err)
	}
	return t, nil
}

// Unwire implements provider.Network. A namespace without egress goes with its processes: there is nothing to remove.
func (n *Network) Unwire(ctx context.Context, id string) error {
	if !goodID.MatchString(id) {
		return fmt.Errorf("unwire job %q: %w", id, provider.ErrRequest)
	}
	if err := endChild(ctx, n.counters(id)); err != nil {
		return fmt.Errorf("unwire job %s: %w", id, err)
	}
	if err := os.RemoveAll(n.job(id)); err != nil {
		return fmt.Errorf("unwire job %s: %w", id, err)
	}
	return nil
}

// List implements provider.Network.
func (n *Network) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(n.jobs())
	if err != nil {
		return nil, fmt.Errorf("list jobs' networks: %w", err)
	}
	ids := make([]string, 0, len(entries))
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}

// isolate turns loopback on and looks for a way out, in the current thread's namespace.
func isolate() error {
	if err := up("lo"); err != nil {
		return err
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	loopback := false
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			loopback = i.Flags&net.FlagUp != 0
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", i.Name, err)
		}
		if i.Flags&net.FlagUp != 0 || len(addrs) > 0 {
			return fmt.Errorf("the job's namespace has interface %s, a way out that was not agreed: it must not run", i.Name)
		}
	}
	if !loopback {
		return errors.New("the loopback interface is not up")
	}
	return nil
}

// up turns an interface of the current thread's namespace on.
func up(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("turn on %s: %w", name, err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err == nil {
		req.SetUint16(req.Uint16() | unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("turn on %s: %w", name, err)
	}
	return nil
}
