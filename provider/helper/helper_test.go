package helper_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/helper"
	"github.com/gpufair/gpufair/provider/jobnet"
	"github.com/gpufair/gpufair/provider/mounts"
	"github.com/gpufair/gpufair/provider/providertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == containerd.LoggerVerb {
		if err := access.RunLogger(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// network wires jobs without egress, which need no child.
func network(t testing.TB) *jobnet.Network {
	t.Helper()
	n, err := jobnet.Open(jobnet.Config{Dir: filepath.Join(t.TempDir(), "net"), Flows: filepath.Join(t.TempDir(), "flows"), Command: []string{"/bin/false"}})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// serve serves s on a socket until the test's end and gives a client of it.
func serve(t *testing.T, s *helper.Server) (*helper.Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return helper.NewClient(path), path
}

// TestConformance runs the contracts' suite over the socket, with a real containerd behind it.
func TestConformance(t *testing.T) {
	d := containerdtest.Start(t)
	rt, err := containerd.New(containerd.Config{Address: d.Address, Namespace: "gpufair-helper", RuntimeRoot: d.RuntimeRoot, Logger: containerdtest.Logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	m, err := mounts.Open(filepath.Join(d.Dir, "leases"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	client, _ := serve(t, &helper.Server{Runtime: rt, Network: network(t), Mounts: m})
	img := containerdtest.JobImage(t)
	providertest.Conformance(t, providertest.Rig{
		Runtime: client.Runtime(), Network: client.Network(), Mounts: client.Mounts(),
		Archive: img.Archive(t), Digest: img.Digest, Init: containerdtest.Build(t, containerdtest.InitPackage),
	})
}

// fake answers what the tests below need.
type fake struct {
	provider.Runtime
	err      error
	called   chan struct{}
	canceled chan struct{}
}

func (f fake) Start(context.Context, string) error { return f.err }

func (f fake) Wait(ctx context.Context, _ string) (provider.Container, error) {
	close(f.called)
	<-ctx.Done()
	close(f.canceled)
	return provider.Container{}, ctx.Err()
}

// TestErrors shows that every kind of error keeps its identity and its text.
func TestErrors(t *testing.T) {
	for _, kind := range []error{
		provider.ErrNotFound, provider.ErrImage, provider.ErrCommand, provider.ErrUnavailable, provider.ErrNoSpace, provider.ErrRequest,
		provider.ErrState, context.Canceled, context.DeadlineExceeded, errors.New("of no kind"),
	} {
		c, _ := serve(t, &helper.Server{Runtime: fake{err: errors.Join(kind, errors.New("the reason"))}, Network: network(t), Mounts: &mounts.Mounts{}})
		err := c.Runtime().Start(providertest.Context(t), "x")
		if err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), kind.Error()) {
			t.Errorf("%v came as %v", kind, err)
		}
		if kind.Error() != "of no kind" && !errors.Is(err, kind) {
			t.Errorf("%v lost its kind: %v", kind, err)
		}
	}
}

func TestCancel(t *testing.T) {
	f := fake{called: make(chan struct{}), canceled: make(chan struct{})}
	c, _ := serve(t, &helper.Server{Runtime: f, Network: network(t), Mounts: &mounts.Mounts{}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-f.called
		cancel()
	}()
	if _, err := c.Runtime().Wait(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	select {
	case <-f.canceled:
	case <-time.After(time.Minute):
		t.Error("the server works on for a caller that has gone")
	}
}

func TestMisuse(t *testing.T) {
	c, path := serve(t, &helper.Server{Runtime: fake{}, Network: network(t), Mounts: &mounts.Mounts{}})
	for name, raw := range map[string]string{
		"too long": "\xff\xff\xff\xff", "not JSON": "\x00\x00\x00\x03abc", "unknown call": "\x00\x00\x00\x0f{\"call\":\"nope\"}", "cut off": "\x00",
	} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(raw)); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, _ := conn.Read(b)
		if got := string(b[:n]); (name == "unknown call") != strings.Contains(got, "unknown") {
			t.Errorf("%s: %q", name, got)
		}
		conn.Close()
	}
	if _, err := c.Runtime().Import(providertest.Context(t), provider.ImportRequest{}, nil); !errors.Is(err, provider.ErrRequest) {
		t.Errorf("import without an archive: %v", err)
	}
	gone := helper.NewClient(filepath.Join(t.TempDir(), "none"))
	if err := gone.Runtime().Start(providertest.Context(t), "x"); !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("no helper: %v", err)
	}
}
