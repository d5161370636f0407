package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	provided "github.com/gpufair/gpufair/provider/control/api"
)

// begin runs a job beside the test that works for so many tenths of a second, and waits until it does.
func (p *pair) begin(name string, tenths int) *process {
	p.t.Helper()
	p.sees(p.renter)
	run := p.renter.start("run", p.image, "-q", "kind=cpu", "--budget", "1", "--name", name, "--output", p.out(name), "--", "job", "work", fmt.Sprint(tenths), "/out/result")
	run.says("line 5\n")
	return run
}

func (p *pair) out(name string) string { return filepath.Join(p.work, name) }

// finished checks that a job of begin ended well, with all of its output and results, and is billed for what it ran at the most.
func (p *pair) finished(name string, tenths int) {
	p.t.Helper()
	job := p.job(name)
	if job.State != "ended" || job.Reason != "completed" || job.Exit == nil || job.Exit.Code != 0 || job.Results != "complete" {
		p.t.Errorf("%s: ps says %+v, exit %+v", name, job, job.Exit)
	}
	if b, err := os.ReadFile(filepath.Join(p.out(name), "result")); err != nil || string(b) != "done\n" {
		p.t.Errorf("%s: result: %q %v", name, b, err)
	}
	p.sound(name, tenths)
	// A loop of so many sleeps takes longer than their sum; what the daemon was away for is not billed.
	if stmt := p.sameMoney(job.ID); amount(p.t, stmt.Amount) > rent(tenths)+rent(tenths)/5+rent(20) || stmt.Amount != job.Cost {
		p.t.Errorf("%s: billed %s, ps says %s, for %v", name, stmt.Amount, job.Cost, time.Duration(tenths)*time.Second/10)
	}
}

// rent is that of so many tenths of a second.
func rent(tenths int) money.Micro { return money.Micro(tenths * 100) }

// sound checks that a job's first lines of output are there, each once and in order; it returns how many there are.
func (p *pair) sound(name string, tenths int) int {
	p.t.Helper()
	logs := p.renter.ok("logs", name)
	var want strings.Builder
	for i := range tenths {
		want.WriteString(fmt.Sprintln("line", i))
	}
	if logs != want.String() {
		p.t.Errorf("%s: logs have %d lines of %d:\n%s", name, strings.Count(logs, "\n"), tenths, logs)
	}
	return strings.Count(logs, "\n")
}

// A provider that is back before it is given up adopts its job: the command that follows it sees its end and its exit code.
func providerBack(t *testing.T, s *site) {
	p := s.newPair(t, s.daemon, "back")
	run := p.begin("adopted", 150)
	p.owner.running.kill()
	p.owner.daemon()
	if code := run.ends(patience); code != 0 {
		p.t.Errorf("run ended with %d:\n%s", code, run.err.String())
	}
	p.finished("adopted", 150)
}

// An agent that was killed is started again by any command, and finds its job.
func agentKilled(t *testing.T, s *site) {
	p := s.newPair(t, s.daemon, "agent")
	run := p.begin("orphan", 120)
	pid := p.renter.agent().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	if code := run.ends(patience); code != 125 || !strings.Contains(run.err.String(), "any command starts the agent again") {
		p.t.Errorf("run without its agent ended with %d:\n%s", code, run.err.String())
	}
	if job := p.job("orphan"); job.State != "running" {
		p.t.Errorf("ps after the agent was killed: %+v", job)
	}
	if again := p.renter.agent().PID; again == pid || again == 0 {
		p.t.Errorf("agent %d was killed, now it is %d", pid, again)
	}
	follow := p.renter.start("logs", "-f", "orphan")
	if code := follow.ends(patience); code != 0 || !strings.Contains(follow.out.String(), "line 119\n") {
		p.t.Errorf("logs -f ended with %d\n%s%s", code, follow.out.String(), follow.err.String())
	}
	eventually(p.t, "the results", patience, func() bool { return p.job("orphan").State == "ended" })
	p.finished("orphan", 120)
}

// A provider that stays away is shown as silent within seconds and given up after give_up; what had come home by then is kept, and nothing
// is paid for the silence. When it comes back it learns of the release, ends the job and agrees on the money.
func providerAway(t *testing.T, s *site) {
	p := s.newPair(t, s.daemon, "away")
	run := p.begin("lost", 6000)
	run.says("line 200\n") // by then what /out held has come home
	killed := time.Now()
	p.owner.running.kill()
	run.says("the provider is silent")
	silent := time.Since(killed)
	if job := p.job("lost"); !job.Suspected {
		p.t.Errorf("ps of a silent provider: %+v", job)
	}
	code := run.ends(patience)
	gone := time.Since(killed)
	p.t.Logf("told after %v, given up after %v", silent.Round(100*time.Millisecond), gone.Round(100*time.Millisecond))
	if code != 125 || !strings.Contains(run.err.String(), "sign of life") {
		p.t.Errorf("run of a lost job ended with %d:\n%s", code, run.err.String())
	}
	job := p.job("lost")
	if job.State != "ended" || job.Reason != "provider_gone" || job.Results != "partial" {
		p.t.Errorf("ps of a lost job: %+v", job)
	}
	lines := strings.Count(run.out.String(), "\n")
	if p.sound("lost", lines); lines < 200 {
		p.t.Errorf("%d lines were kept", lines)
	}
	if b, err := os.ReadFile(filepath.Join(p.out("lost"), "result.begun")); err != nil || string(b) != "begun\n" {
		p.t.Errorf("what had come home: %q %v", b, err)
	}
	most := rent(int(killed.Sub(job.Started.Add(-2*time.Second)).Milliseconds() / 100))
	if amount(p.t, job.Cost) > most {
		p.t.Errorf("billed %s, the job ran until %v at most", job.Cost, most)
	}
	p.owner.daemon()
	eventually(p.t, "the owner to end the lease", patience, func() bool { return p.lease(job.ID).State == "ended" })
	eventually(p.t, "the device to be free", patience, func() bool { return p.owner.status().Devices[0].State == provided.DeviceFree })
	if left := containers(p.t, p.daemon, "gpufair-away"); slices.Contains(left, job.ID) {
		p.t.Errorf("the job's container is left: %v", left)
	}
	if stmt := p.sameMoney(job.ID); amount(p.t, stmt.Amount) > most {
		p.t.Errorf("billed %s after the provider was back, %v at most before", stmt.Amount, most)
	}
}

// containerdGone takes containerd away: in the middle of a job, at rest, and before the start.
func containerdGone(t *testing.T, s *site) {
	d := containerdtest.Start(t)
	p := s.newPair(t, d, "runtime")
	run := p.begin("survivor", 100)
	d.Kill()
	eventually(t, "the daemon to miss containerd", patience, func() bool { return p.owner.run("status").code == 13 })
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	if code := run.ends(patience); code != 0 {
		t.Errorf("run ended with %d:\n%s", code, run.err.String())
	}
	p.finished("survivor", 100)
	p.sees(p.renter)
	d.Kill()
	eventually(t, "doctor to miss containerd", patience, func() bool { return strings.Contains(p.owner.run("doctor").out, "FAIL  containerd") })
	r := p.renter.run("run", p.image, "-q", "kind=cpu", "--budget", "1", "--output", p.out("none"), "--", "job", "exit", "0")
	if r.code != 125 || p.job("none").Cost != "" && p.job("none").Cost != "0" {
		t.Errorf("run at a provider without containerd ended with %d: %s", r.code, r.err)
	}
	p.owner.running.stop()
	p.owner.refused(9, []string{"run"}, "reach containerd at "+d.Address, "next: ")
	p.owner.refused(13, []string{"doctor"}, "FAIL  containerd")
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	p.owner.daemon()
	p.sees(p.renter)
}
