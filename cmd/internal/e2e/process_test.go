package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	provided "github.com/gpufair/gpufair/provider/control/api"
	rented "github.com/gpufair/gpufair/renter/control/api"
)

// patience is how long a test waits for what a busy machine does in seconds.
const patience = 2 * time.Minute

// programs are built once for all tests, as the Makefile builds them.
type programs struct{ gpufaird, gpufair string }

func buildPrograms(t testing.TB) programs {
	t.Helper()
	dir := t.TempDir()
	for _, p := range []struct{ name, cgo string }{{"gpufaird", "1"}, {"gpufair", "0"}, {"gpufair-init", "0"}} {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, p.name), "../../"+p.name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+p.cgo)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", p.name, err, out)
		}
	}
	return programs{filepath.Join(dir, "gpufaird"), filepath.Join(dir, "gpufair")}
}

// site is what the real programs of all scenarios share: a containerd, an image, and homes whose owner has measured core 0 and whose renter
// has an account. Scenarios run on copies of them, each on a network of its own that knows nobody else.
type site struct {
	programs
	daemon *containerdtest.Daemon
	image  string
	owner  string // home of an owner that was measured and has sold nothing yet
	renter string // home of a renter that has bought nothing yet
	lent   string // the renter's account
}

// ownerSettings are those of an owner of one core, at 1,000 micro-units a second. The locks are the scenario's own: all share the core.
const ownerSettings = `network = "e2e"
listen = [%q]
locks = %q
[runtime]
address = %q
root = %q
namespace = %q
[serve]
accounts = [%q]
[[cpu]]
cores = "0"
price = "3.6"
memory = "256MiB"
disk = "1GiB"
min_term = "10s"
max_term = "1h"
max_pids = 64
`

const renterSettings = `network = "e2e"
listen = [%q]
give_up = "%s"
`

// newSite measures for real, once: it is what takes longest.
func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{programs: buildPrograms(t), daemon: containerdtest.Start(t), image: filepath.Join(t.TempDir(), "job.tar")}
	if err := os.WriteFile(s.image, containerdtest.JobImage(t).Archive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	s.renter, s.owner = shortDir(t), shortDir(t)
	buyer := &home{t: t, program: s.gpufair, dir: s.renter}
	s.lent = one[local.Identity](buyer.ok("identity", "show", "--json")).Account
	seller := s.ownerAt(t, s.owner, s.daemon, "template")
	p := seller.daemon()
	seller.until("the core is measured", func(st provided.Status) bool {
		return len(st.Devices) == 1 && st.Devices[0].State == provided.DeviceFree && len(st.Devices[0].Figures) > 0
	})
	p.stop()
	return s
}

// home is where one side's programs keep everything, and how a person runs them.
type home struct {
	t       testing.TB
	program string
	dir     string
	running *process // the daemon that was started last
}

// ownerAt writes an owner's settings into a home.
func (s *site) ownerAt(t testing.TB, dir string, d *containerdtest.Daemon, namespace string) *home {
	t.Helper()
	write(t, filepath.Join(dir, "config.toml"), fmt.Sprintf(ownerSettings, p2ptest.Loopback(t), filepath.Join(dir, "locks"), d.Address, d.RuntimeRoot, namespace, s.lent))
	return &home{t: t, program: s.gpufaird, dir: dir}
}

// pair is an owner and a renter of a scenario, who have met.
type pair struct {
	*site
	t      testing.TB
	owner  *home
	renter *home
	work   string // folder of the renter's files
}

// newPair copies both homes, starts the daemon and lets the renter join. Nothing of it is left at the end.
func (s *site) newPair(t testing.TB, d *containerdtest.Daemon, name string) *pair {
	t.Helper()
	p := s.strangers(t, d, name)
	p.owner.daemon()
	p.meet(p.renter)
	return p
}

// strangers are a pair of which nothing runs yet.
func (s *site) strangers(t testing.TB, d *containerdtest.Daemon, name string) *pair {
	t.Helper()
	p := &pair{site: s, t: t, work: t.TempDir()}
	sold, bought := shortDir(t), shortDir(t)
	for from, to := range map[string]string{s.owner: sold, s.renter: bought} {
		if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil { // with modes: keys are their owner's alone
			t.Fatalf("copy a home: %v %s", err, out)
		}
	}
	p.owner = s.ownerAt(t, sold, d, "gpufair-"+name)
	write(t, filepath.Join(bought, "config.toml"), fmt.Sprintf(renterSettings, p2ptest.Loopback(t), "10s"))
	p.renter = &home{t: t, program: s.gpufair, dir: bought}
	t.Cleanup(func() { p.renter.endAgent(); sweep(t, d, "gpufair-"+name) })
	return p
}

// meet invites a renter and waits until it sees the offer.
func (p *pair) meet(r *home) {
	p.t.Helper()
	r.ok("join", strings.TrimSpace(p.owner.ok("invite")))
	p.sees(r)
}

// sees waits until a renter sees the offer with a free device.
func (p *pair) sees(r *home) (offer rented.Offer) {
	p.t.Helper()
	var last result
	defer func() {
		if offer.Free != 1 {
			p.t.Logf("the last search gave %d: %s%s", last.code, last.out, last.err)
		}
	}()
	eventually(p.t, "a free device", patience, func() bool {
		last = r.run("search", "kind=cpu", "--json")
		offer = one[rented.Offer](last.out)
		return last.code == 0 && offer.Free == 1
	})
	return offer
}

// eventually is until for conditions that take a command to look at: less often, since a command costs a process.
func eventually(t testing.TB, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
		time.Sleep(200 * time.Millisecond) // between looks at a real system's state, not a wait for time to pass
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// result is what a command left.
type result struct {
	code     int
	out, err string
}

func (h *home) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Env = append(os.Environ(), "GPUFAIR_HOME="+h.dir, "NO_COLOR=1")
	return cmd
}

// run runs a command to its end.
func (h *home) run(args ...string) result {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := h.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil || cmd.ProcessState == nil {
		h.t.Fatalf("%s %q: %v\n%s%s", filepath.Base(h.program), args, err, out.String(), errs.String())
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// ok runs a command that must end well, and gives its output.
func (h *home) ok(args ...string) string {
	h.t.Helper()
	r := h.run(args...)
	if r.code != 0 {
		h.t.Fatalf("%s %q ended with %d\n%s%s", filepath.Base(h.program), args, r.code, r.out, r.err)
	}
	return r.out
}

// refused runs a command that must end with an exit code and say every one of wants.
func (h *home) refused(code int, args []string, wants ...string) {
	h.t.Helper()
	r := h.run(args...)
	if r.code != code {
		h.t.Errorf("%s %q ended with %d, want %d\n%s%s", filepath.Base(h.program), args, r.code, code, r.out, r.err)
	}
	for _, want := range wants {
		if !strings.Contains(r.out+r.err, want) {
			h.t.Errorf("%s %q does not say %q:\n%s%s", filepath.Base(h.program), args, want, r.out, r.err)
		}
	}
}

// all are the objects of a command's --json, one a line; one is the first.
func all[T any](out string) (list []T) {
	for line := range strings.Lines(out) {
		var v T
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			return nil
		}
		list = append(list, v)
	}
	return list
}

func one[T any](out string) (v T) {
	if list := all[T](out); len(list) > 0 {
		v = list[0]
	}
	return v
}

// process is a program that runs beside the test.
type process struct {
	h    *home
	cmd  *exec.Cmd
	out  log
	err  log
	done chan struct{}
}

// log is what a process has written so far.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a command beside the test.
func (h *home) start(args ...string) *process {
	h.t.Helper()
	p := &process{h: h, cmd: h.command(context.Background(), args...)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.launch()
	return p
}

// launch starts the process and kills it at the test's end.
func (p *process) launch() {
	p.h.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.h.t.Fatal(err)
	}
	p.done = make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // the exit code says it
		close(p.done)
	}()
	p.h.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has mostly ended by itself
		<-p.done
		if p.h.t.Failed() {
			p.h.t.Logf("%s %q:\n%s%s", filepath.Base(p.h.program), p.cmd.Args[1:], p.out.String(), p.err.String())
		}
	})
}

// daemon starts `gpufaird run` and waits until it answers.
func (h *home) daemon() *process {
	h.t.Helper()
	p := h.start("run")
	h.running = p
	eventually(h.t, "the daemon to answer", patience, func() bool {
		if p.ended() {
			h.t.Fatalf("the daemon ended at its start:\n%s", p.err.String())
		}
		return h.run("status").code != 4
	})
	return p
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ends waits for the process's end and gives its exit code.
func (p *process) ends(limit time.Duration) int {
	p.h.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.h.t.Fatalf("%s %q has not ended after %v:\n%s%s", filepath.Base(p.h.program), p.cmd.Args[1:], limit, p.out.String(), p.err.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// says waits until the process has written text, to either stream.
func (p *process) says(text string) {
	p.h.t.Helper()
	eventually(p.h.t, fmt.Sprintf("%q", text), patience, func() bool {
		found := strings.Contains(p.out.String()+p.err.String(), text)
		if !found && p.ended() {
			p.h.t.Fatalf("%s ended with %d and never said %q:\n%s%s", filepath.Base(p.h.program), p.cmd.ProcessState.ExitCode(), text, p.out.String(), p.err.String())
		}
		return found
	})
}

func (p *process) signal(s os.Signal) {
	p.h.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.h.t.Fatal(err)
	}
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	p.h.t.Helper()
	p.signal(syscall.SIGKILL)
	p.ends(patience)
}

// stop asks the process to end, which must end well.
func (p *process) stop() {
	p.h.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.ends(patience); code != 0 {
		p.h.t.Errorf("SIGTERM ended %s with %d:\n%s", filepath.Base(p.h.program), code, p.err.String())
	}
}

// until waits until the daemon's status is as wanted.
func (h *home) until(what string, ok func(provided.Status) bool) {
	h.t.Helper()
	eventually(h.t, what, patience, func() bool { return ok(h.status()) })
}

// status is how the daemon stands; zero while it does not answer.
func (h *home) status() provided.Status { return one[provided.Status](h.run("status", "--json").out) }

// agent is how the renter's agent stands; it does not start it.
func (h *home) agent() rented.Status {
	return one[rented.Status](h.run("agent", "status", "--json").out)
}

// endAgent ends the agent that some command started.
func (h *home) endAgent() {
	pid := h.agent().PID
	if pid == 0 {
		return
	}
	if r := h.run("agent", "stop", "--force"); r.code != 0 {
		h.t.Errorf("agent stop ended with %d: %s", r.code, r.err)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have died meanwhile
	}
	if h.t.Failed() {
		b, err := os.ReadFile(filepath.Join(h.dir, "state", "agent.log"))
		h.t.Logf("the agent's log: %v\n%s", err, b)
	}
}

// sweep removes the containers that a scenario's daemon left when it was killed: they outlive it.
func sweep(t testing.TB, d *containerdtest.Daemon, namespace string) {
	for _, id := range containers(t, d, namespace) {
		for _, args := range [][]string{{"tasks", "rm", "-f", id}, {"containers", "rm", id}} {
			if out, err := ctr(d, namespace, args...).CombinedOutput(); err != nil {
				t.Logf("ctr %q: %v %s", args, err, out) // what it leaves, the end of containerd finds
			}
		}
	}
}

func ctr(d *containerdtest.Daemon, namespace string, args ...string) *exec.Cmd {
	return exec.Command("ctr", append([]string{"-a", d.Address, "-n", namespace}, args...)...)
}

// containers are those that are left in a namespace.
func containers(t testing.TB, d *containerdtest.Daemon, namespace string) []string {
	out, err := ctr(d, namespace, "containers", "ls", "-q").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Errorf("list containers: %v %s", err, exit.Stderr)
	}
	return strings.Fields(string(out))
}
