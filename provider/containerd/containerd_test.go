package containerd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/jobnet"
	"github.com/gpufair/gpufair/provider/mounts"
	"github.com/gpufair/gpufair/provider/providertest"
)

// TestMain lets the test's own program be the jobs' logger, as the daemon's is.
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

func config(t testing.TB, d *containerdtest.Daemon) containerd.Config {
	t.Helper()
	return containerd.Config{Address: d.Address, Namespace: "gpufair-test", RuntimeRoot: d.RuntimeRoot, Logger: containerdtest.Logger(t)}
}

func connect(t testing.TB, c containerd.Config) *containerd.Client {
	t.Helper()
	client, err := containerd.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
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

// newRig is a containerd of the test's own with all that a job needs.
func newRig(t testing.TB) (*containerdtest.Daemon, providertest.Rig) {
	t.Helper()
	d := containerdtest.Start(t)
	m, err := mounts.Open(d.Dir + "/leases")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	img := containerdtest.JobImage(t)
	return d, providertest.Rig{
		Runtime: connect(t, config(t, d)), Network: network(t), Mounts: m,
		Archive: img.Archive(t), Digest: img.Digest, Init: containerdtest.Build(t, containerdtest.InitPackage),
	}
}

func TestConformance(t *testing.T) {
	_, rig := newRig(t)
	providertest.Conformance(t, rig)
}
