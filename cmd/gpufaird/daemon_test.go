package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/control/api"
)

// patience is how long a test waits for what a busy machine does in seconds.
const patience = 90 * time.Second

// home is a daemon's home for a test: its settings, and the programs that a person runs there.
type home struct {
	t    *testing.T
	dir  string
	self string // the test's own program, which is gpufaird under that name

	running *process // the daemon that was started last
}

// settings of one daemon of a test: one core, loopback only.
const settings = `network = "trial"
listen = ["127.0.0.1:0"]
mdns = false
locks = %q
[runtime]
address = %q
root = %q
namespace = %q
init = %q
[serve]
accounts = [%s]
[[cpu]]
cores = "0"
price = "0.10"
memory = "256MiB"
disk = "256MiB"
min_term = "10s"
max_term = "1h"
max_pids = 64
`

// site is what the daemons of a test share: containerd, locks and the job's init.
type site struct {
	daemon *containerdtest.Daemon
	locks  string
	init   string
}

func newSite(t *testing.T) site {
	t.Helper()
	dir := t.TempDir()
	s := site{daemon: containerdtest.Start(t), locks: filepath.Join(dir, "locks"), init: filepath.Join(dir, initName)}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.init, "../gpufair-init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", initName, err, out)
	}
	return s
}

// home makes a home on the site whose daemon uses a namespace of containerd and serves accounts.
func (s site) home(t *testing.T, namespace string, accounts ...string) *home {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gfd") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(containerdtest.Unmount(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	h := &home{t: t, dir: dir, self: self}
	s.configure(h, namespace, accounts...)
	return h
}

func (s site) configure(h *home, namespace string, accounts ...string) {
	h.t.Helper()
	for i, a := range accounts {
		accounts[i] = fmt.Sprintf("%q", a)
	}
	text := fmt.Sprintf(settings, s.locks, s.daemon.Address, s.daemon.RuntimeRoot, namespace, s.init, strings.Join(accounts, ","))
	if err := os.WriteFile(filepath.Join(h.dir, "config.toml"), []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *home) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.self, args...)
	cmd.Args[0] = "gpufaird"
	cmd.Env = append(os.Environ(), "GPUFAIR_HOME="+h.dir, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// verb runs a verb that must end with an exit code, and gives what it printed.
func (h *home) verb(want int, args ...string) (stdout, stderr string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := h.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != want {
		h.t.Fatalf("gpufaird %v ended with %d (%v), want %d\n%s%s", args, got, err, want, out.String(), errs.String())
	}
	return out.String(), errs.String()
}

// see runs a verb that must end well and print every one of wants.
func (h *home) see(args []string, wants ...string) {
	h.t.Helper()
	out, _ := h.verb(0, args...)
	for _, want := range wants {
		if !strings.Contains(out, want) {
			h.t.Errorf("gpufaird %v: %q is missing in\n%s", args, want, out)
		}
	}
}

func (h *home) client() api.Client { return api.New(filepath.Join(h.dir, "run", "api.sock")) }

// process is a running daemon.
type process struct {
	h    *home
	cmd  *exec.Cmd
	mu   sync.Mutex
	log  bytes.Buffer // guarded by mu
	done chan struct{}
}

// Write takes the daemon's log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start runs the daemon and waits until it answers.
func (h *home) start() *process {
	h.t.Helper()
	p := &process{h: h, cmd: h.command(context.Background(), "run"), done: make(chan struct{})}
	p.cmd.Stderr, h.running = p, p
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // the exit code says it
		close(p.done)
	}()
	h.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // a failed test must not leave it
		<-p.done
		if h.t.Failed() {
			h.t.Logf("log of the daemon in %s:\n%s", h.dir, p.text())
		}
	})
	deadline := time.After(patience)
	for {
		_, err := h.client().Status(h.t.Context())
		if err == nil {
			return p
		}
		select {
		case <-p.done:
			h.t.Fatalf("the daemon ended at its start:\n%s", p.text())
		case <-deadline:
			h.t.Fatalf("the daemon does not answer: %v", err)
		case <-time.After(20 * time.Millisecond): // the socket has no way to tell when it is there
		}
	}
}

// until waits until the daemon's status is as wanted.
func (h *home) until(what string, ok func(api.Status) bool) {
	h.t.Helper()
	found := errors.New("found")
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	var last api.Status
	err := h.client().Watch(ctx, func(s api.Status) error {
		if last = s; ok(s) {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		h.t.Fatalf("waiting until %s: %v; the status is %+v", what, err, last)
	}
}

// stop sends SIGTERM and expects a clean end.
func (p *process) stop() {
	p.h.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.h.t.Errorf("SIGTERM ended the daemon with %d:\n%s", code, p.text())
	}
}

func (p *process) signal(s os.Signal) {
	p.h.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.h.t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(patience):
		p.h.t.Fatalf("the daemon does not end after %v:\n%s", s, p.text())
	}
}

func free(s api.Status) bool {
	return s.State == api.Serving && len(s.Devices) == 1 && s.Devices[0].State == api.DeviceFree && len(s.Devices[0].Figures) > 0
}

// TestDaemon runs the daemon as its owner does: a real process on a private containerd, measured, asked, reloaded, killed and stopped.
func TestDaemon(t *testing.T) {
	s := newSite(t)
	h := s.home(t, "one")
	p := h.start()
	guest := s.home(t, "two")
	account := guest.account()

	refusals(t, s, h)
	h.until("the device is measured", func(st api.Status) bool { return len(st.Devices) == 1 && st.Devices[0].State == api.DeviceFree })
	if out, _ := h.verb(13, "status"); !strings.Contains(out, "idle") || !strings.Contains(out, "no account is served") {
		t.Errorf("nobody is served: %s", out)
	}
	s.configure(h, "one", account)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	h.until("the account is served", free)

	cut := h.benchmark()
	verbsOf(h, account)
	reloads(h, account)
	meet(t, h, guest)
	cut()
	h.until("the benchmark that was cut off is over, and the old figures hold", free)
	pauses(h)
	metrics(t, h)

	p.signal(syscall.SIGKILL) // as a power cut
	p = h.start()
	h.until("it serves again, with the figures of before", free)
	if strings.Contains(p.text(), "device measured") {
		t.Error("a restart measured again, though the passport is valid")
	}
	p.stop()
	nothingLeft(t, s, h)
}

// benchmark starts to measure again and waits until it does; cut interrupts it.
func (h *home) benchmark() (cut func()) {
	h.t.Helper()
	cmd := h.command(h.t.Context(), "benchmark", "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for measuring := false; !measuring; {
		if !lines.Scan() {
			h.t.Fatalf("the benchmark ended before it measured: %v", cmd.Wait())
		}
		var e api.BenchmarkEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Error != "" {
			h.t.Fatalf("line of a benchmark: %v: %s", err, lines.Text())
		}
		measuring = e.Step == "fp32_matmul: measure"
	}
	h.verb(1, "benchmark") // one at a time
	return func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			h.t.Error(err)
		}
		for lines.Scan() {
		}
		_ = cmd.Wait() // it was interrupted
	}
}

// account makes the home's identity.
func (h *home) account() string {
	h.t.Helper()
	out, _ := h.verb(0, "identity", "show", "--json")
	var id local.Identity
	if err := json.Unmarshal([]byte(out), &id); err != nil || id.Account == "" {
		h.t.Fatalf("identity show: %v: %s", err, out)
	}
	return id.Account
}

// refusals are the starts that a running daemon stands in the way of.
func refusals(t *testing.T, s site, h *home) {
	t.Helper()
	second := *h // the same home, another namespace
	_, text := second.verb(9, "run", "--set", "runtime.namespace=other")
	if !strings.Contains(text, "another gpufaird uses") || !strings.Contains(text, "next: ") {
		t.Errorf("a second daemon on the same state: %s", text)
	}
	other := s.home(t, "one")
	if _, text := other.verb(9, "run"); !strings.Contains(text, fmt.Sprintf("namespace \"one\": process %d", h.running.cmd.Process.Pid)) {
		t.Errorf("a second daemon in the same namespace: %s", text)
	}
	_, text = other.verb(9, "run", "--set", "runtime.namespace=other", "--set", "socket="+filepath.Join(h.dir, "run", "api.sock"))
	if !strings.Contains(text, "another process listens there") {
		t.Errorf("a second daemon on the same socket: %s", text)
	}
	addr := h.status().Addrs[1] // /ip4/127.0.0.1/tcp/PORT
	port := addr[strings.LastIndexByte(addr, '/')+1:]
	if _, text := other.verb(9, "run", "--set", "runtime.namespace=other", "--set", "listen=127.0.0.1:"+port); !strings.Contains(text, "is taken by another program") {
		t.Errorf("a busy port: %s", text)
	}
	if _, text := h.verb(6, "identity", "import", "-"); !strings.Contains(text, "is running") {
		t.Errorf("identity import beside a running daemon: %s", text)
	}
}

func (h *home) status() api.Status {
	h.t.Helper()
	s, err := h.client().Status(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// verbsOf asks the running daemon everything that changes nothing.
func verbsOf(h *home, account string) {
	h.t.Helper()
	h.see([]string{"status"}, "state", "account", "0.1 CREDIT/h")
	h.see([]string{"status", "--line"}, "serving · measuring 1")
	h.see([]string{"offers"}, "cpu", "fp32_matmul")
	h.see([]string{"offers", "--json"}, account, `"price":"0.1"`, `"min_term_s":10`)
	h.see([]string{"leases", "--all"}, "LEASE")
	h.see([]string{"ledger", "show", "--json"}, `"entries":0`)
	h.see([]string{"ledger", "verify"}, "result      ok")
	h.see([]string{"ledger", "entries"}, "INDEX")
	h.see([]string{"ledger", "export"}, "time,entry,kind,account")
	h.see([]string{"credit", "show"}, "stranger          0.05 CREDIT")
	h.see([]string{"credit", "set", account, "--limit", "3"}, account, "hand")
	h.see([]string{"credit", "set", account, "--rule", "--json"}, `"limit":"0.05"`)
	h.see([]string{"settle", "list"}, "REFERENCE")
	h.see([]string{"peers", "--json"}, `"peers":[]`)
	h.see([]string{"identity", "show"}, "trial", "/ip4/127.0.0.1/udp/")
	h.verb(5, "leases", "show", "3fa9")
	h.verb(5, "leases", "stop", "3fa9")
	h.verb(5, "ledger", "statement", "3fa9")
	h.verb(2, "settle", account, "--amount", "1", "--reference", "x")
	h.verb(5, "settle", "accept", "5c1e")
	h.verb(5, "benchmark", "nothing")
	if out, _ := h.verb(13, "doctor"); !strings.Contains(out, "ok    containerd") || !strings.Contains(out, "warn  peers: connected to nobody") {
		h.t.Errorf("doctor of a running daemon:\n%s", out)
	}
}

// reloads changes the settings of the running daemon, well and badly.
func reloads(h *home, account string) {
	h.t.Helper()
	path := filepath.Join(h.dir, "config.toml")
	good, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	change := func(old, new string) {
		if err := os.WriteFile(path, bytes.Replace(good, []byte(old), []byte(new), 1), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	change(`"0.10"`, `"0.25"`)
	h.verb(0, "config", "reload")
	h.see([]string{"status"}, "0.25 CREDIT/h")
	change(`max_pids = 64`, `max_pids = 1`)
	if _, text := h.verb(3, "config", "reload"); !strings.Contains(text, "config.toml:19:1: cpu[0].max_pids") || !strings.Contains(text, "nothing has changed") {
		h.t.Errorf("reload with a mistake: %s", text)
	}
	h.see([]string{"status", "--line"}, "serving") // verbs go on while the file is wrong
	change(`network = "trial"`, `network = "other"`)
	if _, text := h.verb(3, "config", "reload"); !strings.Contains(text, "network") || !strings.Contains(text, "restart") {
		h.t.Errorf("reload of a key that needs a restart: %s", text)
	}
	h.see([]string{"status"}, "0.25 CREDIT/h", "trial")
	change("", "")
	h.verb(0, "config", "reload")
	h.see([]string{"offers", "--json"}, account)
}

// meet lets another daemon of the machine join, which finds the cores taken.
func meet(t *testing.T, h, guest *home) {
	t.Helper()
	q := guest.start()
	guest.until("the cores are found taken", func(st api.Status) bool {
		return len(st.Devices) == 1 && strings.Contains(st.Devices[0].Detail, fmt.Sprintf("in use by process %d (gpufaird run)", h.running.cmd.Process.Pid))
	})
	invite, _ := h.verb(0, "invite", "--credit", "2.5")
	guest.see([]string{"join", invite}, "1 known", "trial")
	h.see([]string{"peers"}, "gpufaird/")
	guest.see([]string{"peers", "--json"}, h.status().Account)
	if _, text := guest.verb(2, "join", "gpufair-invite:abc"); !strings.Contains(text, "not a valid invite") {
		t.Errorf("join by a broken invite: %s", text)
	}
	own, _ := guest.verb(0, "invite")
	guest.verb(6, "join", own)
	h.until("the offer is told", func(api.Status) bool {
		out, err := h.command(t.Context(), "doctor").Output()
		return err != nil || bytes.Contains(out, []byte("published and told"))
	})
	q.stop()
}

// pauses stops renting out and goes on.
func pauses(h *home) {
	h.t.Helper()
	h.see([]string{"pause", "2h", "--json"}, `"state":"paused","paused_until":"`)
	h.until("nothing is offered", func(api.Status) bool {
		out, _ := h.verb(0, "offers", "--json")
		return strings.Contains(out, "paused by the owner")
	})
	h.see([]string{"resume"}, "serving")
	h.until("it is offered again", free)
}

func metrics(t *testing.T, h *home) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://daemon/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(h.dir, "run", "api.sock"))
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gpufair_peers ", "gpufair_leases 0", "gpufair_own_lots 1", "gpufair_offers ", "process_resident_memory_bytes", "go_goroutines"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("/metrics: %q is missing", want)
		}
	}
}

// nothingLeft looks for what a stopped daemon must not leave.
func nothingLeft(t *testing.T, s site, h *home) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(h.dir, "run", "api.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	held, err := lock.Acquire(s.locks, "test", lock.CoreKeys(benchmark.Cores{0}))
	if err != nil {
		t.Errorf("the core is still held: %v", err)
	} else if err := held.Release(); err != nil {
		t.Error(err)
	}
	h.verb(4, "status")
}
