package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	hash "github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/containerd"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/jobnet"
	"github.com/gpufair/gpufair/provider/mounts"
	"github.com/gpufair/gpufair/provider/reach"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/image"
)

// jobnetVerb makes the test binary the child of a job's network.
const jobnetVerb = "jobnet-child"

// TestMain lets the test binary be the logger beside each job, the child of its network and the child that measures, as the daemon's own binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == containerd.LoggerVerb {
		if err := access.RunLogger(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == jobnetVerb {
		if err := jobnet.RunChild(context.Background(), reach.New); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 2 && os.Args[1] == measureVerb {
		measure()
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil { // the tests wait more than they work
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// fair is a containerd, an image and whoever takes part.
type fair struct {
	t          testing.TB
	containerd *containerdtest.Daemon
	init       string // path of gpufair-init
	image      string // path of an archive of the job image
	images     image.Opener
	pulls      []string // registries that owners pull from, and how
	registries provider.Registries
}

func newFair(t testing.TB) *fair {
	t.Helper()
	m := &fair{t: t, containerd: containerdtest.Start(t), init: containerdtest.Build(t, containerdtest.InitPackage)}
	m.image = filepath.Join(t.TempDir(), "job.tar")
	if err := os.WriteFile(m.image, containerdtest.JobImage(t).Archive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// report is one real measurement of core 0, made once for all tests: they are about what follows from it.
var report = sync.OnceValues(func() (r benchmark.Report, err error) {
	exe, err := os.Executable()
	if err != nil {
		return r, err
	}
	out, err := exec.Command(exe, measureVerb).Output()
	if err != nil {
		return r, fmt.Errorf("measure core 0: %w", err)
	}
	return r, json.Unmarshal(out, &r)
})

const measureVerb = "measure-core-0"

// measure is the child: it binds itself to the core, measures, and prints the report.
func measure() {
	cpu, err := suite.OpenCPU(benchmark.Cores{0})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	r := benchmark.Report{Device: cpu.Describe(), Profile: benchmark.Quick, KernelSet: benchmark.KernelSet, Started: time.Now()}
	r.Measurements, err = suite.Run(context.Background(), oneKernel{cpu}, benchmark.Quick, nil)
	r.Finished = time.Now()
	if err := errors.Join(err, json.NewEncoder(os.Stdout).Encode(r)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// oneKernel is a device of which only the memory's reading is measured: the tests need a true figure, not all of them.
type oneKernel struct{ *suite.CPU }

func (d oneKernel) Kernels() []suite.Kernel {
	for _, k := range d.CPU.Kernels() {
		if f, _, _, _ := k.Name(); f == benchmark.FigureMemRead {
			return []suite.Kernel{k}
		}
	}
	return nil
}

// devices offers core 0 as it was measured once.
type devices struct{ benchmark.Device }

func (d devices) List(context.Context) ([]provider.Device, error) {
	return []provider.Device{{Device: d.Device, UUID: d.Hash.String()}}, nil
}

func (d devices) Read(context.Context, []hash.Hash) (provider.Reading, error) {
	return provider.Reading{}, nil
}

func (d devices) Measure(context.Context, hash.Hash, benchmark.Profile, func(string, float64)) (benchmark.Report, error) {
	return report()
}

// party is one side, open and running.
type party struct {
	t    testing.TB
	name string
	dir  string
	conf wire.Config

	base   *wire.Base
	cancel context.CancelFunc
	done   chan error
}

func (m *fair) party(name string, role ledger.Role) *party {
	dir := filepath.Join(m.t.TempDir(), name)
	net := wire.DefaultNet()
	net.Network, net.Listen, net.MDNS = "e2e", []string{p2ptest.Loopback(m.t)}, false
	return &party{t: m.t, name: name, dir: dir, conf: wire.Config{
		Program: name, Title: name, Dirs: cli.Dirs{Config: dir, State: dir, Run: shortDir(m.t)}, Network: net, Unit: money.Credit, Role: role,
		Log: slog.New(slog.NewTextHandler(logWriter{m.t, name}, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}}
}

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "gf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(containerdtest.Unmount(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// logWriter shows a party's log with the test's output.
type logWriter struct {
	t    testing.TB
	name string
}

func (w logWriter) Write(b []byte) (int, error) {
	_, timed := w.t.(*testing.B)
	if !timed && w.t.Context().Err() == nil { // after the test's end there is nobody to show it to
		w.t.Logf("%s: %s", w.name, b[:len(b)-1])
	}
	return len(b), nil
}

// run opens nothing: it runs an opened base with one more part until stop.
func (p *party) run(part wire.Part) {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan error, 1)
	go func() { p.done <- p.base.Run(ctx, part) }()
	p.t.Cleanup(p.stop)
}

// stop ends the party as SIGTERM does. A second call does nothing.
func (p *party) stop() {
	if p.cancel == nil {
		return
	}
	p.cancel()
	p.cancel = nil
	if err := <-p.done; err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
	if err := p.base.Close(); err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
}

func (p *party) open() {
	p.t.Helper()
	base, err := wire.Open(context.Background(), p.conf)
	if err != nil {
		p.t.Fatal(err)
	}
	p.base = base
}

// owner is a provider.
type owner struct {
	*party
	m     *fair
	conf  provider.Config
	agent *provider.Agent
}

// price is 3.6 CREDIT an hour: 1,000 micro-units a second.
const price = money.Rate(3_600_000)

func (m *fair) owner(name string, serve ...identity.AccountID) *owner {
	m.t.Helper()
	r, err := report()
	if err != nil {
		m.t.Fatal(err)
	}
	o := &owner{party: m.party(name, ledger.AsProvider), m: m, conf: provider.Config{
		Network: "e2e", Unit: money.Credit, Accounts: serve, Registries: m.pulls, Methods: []string{"manual"}, DueDays: 14, LogBytes: 1 << 20, Reclaim: 60 * time.Second,
		Lots: []provider.Lot{{
			Device: r.Device.Hash, Price: price, MinTerm: 10 * time.Second, MaxTerm: time.Hour, Cores: []int{0}, MemoryMiB: 256, DiskMiB: 512, Pids: 64,
		}},
	}}
	o.start()
	return o
}

// start opens and runs the provider; again after stop.
func (o *owner) start() {
	o.t.Helper()
	o.open()
	r, err := report()
	if err != nil {
		o.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		o.t.Fatal(err)
	}
	rt, err := containerd.New(containerd.Config{
		Address: o.m.containerd.Address, Namespace: "gpufair-" + o.name, RuntimeRoot: o.m.containerd.RuntimeRoot, Logger: exe,
	})
	if err != nil {
		o.t.Fatal(err)
	}
	mnt, err := mounts.Open(filepath.Join(o.dir, "leases"))
	if err != nil {
		o.t.Fatal(err)
	}
	network, err := jobnet.Open(jobnet.Config{Dir: filepath.Join(o.dir, "net"), Flows: filepath.Join(o.dir, "flows"), Command: []string{exe, jobnetVerb}})
	if err != nil {
		o.t.Fatal(err)
	}
	b := o.base
	o.agent, err = provider.New(context.Background(), provider.Deps{
		Device: b.Device, Network: b.Network, Books: b.Books, Board: b.Board, Delegations: b.Delegations, Runtime: rt, Jobnet: network, Resolv: network.Resolv(),
		Mounts: mnt, Registries: o.m.registries, Devices: devices{r.Device}, Inbox: filepath.Join(o.dir, "inbox"), InboxBytes: 1 << 30, Init: o.m.init, Log: b.Log,
	}, o.conf)
	if err != nil {
		o.t.Fatal(err)
	}
	o.run(wire.Part{Name: "provider", Run: o.agent.Run})
	o.t.Cleanup(func() {
		o.stop()
		o.clean(rt)
		if err := errors.Join(rt.Close(), mnt.Close(), containerdtest.Unmount(o.dir)); err != nil {
			o.t.Error(err)
		}
	})
}

// clean removes what jobs of a test are left: they outlive their provider.
func (o *owner) clean(rt *containerd.Client) {
	ctx := context.Background()
	left, err := rt.List(ctx)
	if err != nil {
		return // containerd is gone, and its harness cleans up
	}
	for _, c := range left {
		if err := rt.Delete(ctx, c.ID); err != nil {
			o.t.Error(err)
		}
	}
}

// tenant is a renter.
type tenant struct {
	*party
	agent  *renter.Agent
	images image.Opener
	give   time.Duration
}

func (m *fair) tenant(name string) *tenant {
	m.t.Helper()
	r := &tenant{party: m.party(name, ledger.AsRenter), images: m.images, give: 5 * time.Minute} // a provider on a busy machine may be silent for long
	r.start()
	return r
}

func (r *tenant) start() {
	r.t.Helper()
	r.open()
	b := r.base
	var err error
	r.agent, err = renter.New(renter.Deps{
		Device: b.Device, Network: b.Network, Books: b.Books, Board: b.Board, Delegations: b.Delegations, Settle: b.Settle, Images: r.images, Log: b.Log,
	}, renter.Config{Network: "e2e", Dir: filepath.Join(r.dir, "agent"), Results: 1 << 30, GiveUp: r.give})
	if err != nil {
		r.t.Fatal(err)
	}
	agent := r.agent
	r.run(wire.Part{Name: "renter", Run: func(ctx context.Context) error {
		return errors.Join(agent.Run(ctx), agent.Close())
	}})
}

// account is whom the party acts for.
func (p *party) account() identity.AccountID { return p.base.Device.Account() }

// meet connects the party to others.
func (p *party) meet(others ...*party) {
	p.t.Helper()
	for _, o := range others {
		to := p2p.PeerAddr{Peer: o.base.Network.Self(), Addrs: o.base.Network.Addrs()}
		var err error
		for end := time.Now().Add(patience); ; { // a dial has its own deadline, too short where all tests run at once
			if err = p.base.Network.Connect(context.Background(), to); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// until waits for cond; what says what was waited for.
func until(t testing.TB, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			t.Logf("%s", buf[:runtime.Stack(buf, true)])
			t.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond) // a look at a real system's state, not a wait for time to pass
	}
}
