package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/renter/control/api"
)

// seen is what a run has told so far.
type seen struct {
	events []api.RunEvent
	id     market.LeaseID
	last   api.RunEvent
}

// order is a run request for the job image.
func (r *tenant) order(m *fair, args ...string) api.RunRequest {
	return api.RunRequest{
		Image: m.image, Command: append([]string{"job"}, args...), Output: filepath.Join(r.dir, "out-"+time.Now().Format("150405.000000")),
		Query: "kind=cpu", Budget: "1",
	}
}

// submit runs a job to its end.
func (r *tenant) submit(req api.RunRequest) (seen, error) {
	var s seen
	err := r.agent.Submit(r.t.Context(), req, func(e api.RunEvent) error {
		s.events, s.last = append(s.events, e), e
		if e.Job != nil {
			return s.id.UnmarshalText([]byte(e.Job.ID))
		}
		return nil
	})
	return s, err
}

// sees waits until the renter's book has n offers.
func (r *tenant) sees(n int) {
	r.t.Helper()
	until(r.t, "offers in the renter's book", patience, func() bool {
		found, err := r.agent.Search(context.Background(), api.SearchRequest{Query: "kind=cpu"})
		return err == nil && len(found.Offers) == n
	})
}

// output is what a job wrote to one stream.
func (r *tenant) output(id market.LeaseID) (out, err string) {
	r.t.Helper()
	var o, e strings.Builder
	lerr := r.agent.Logs(context.Background(), id, time.Time{}, false, func(l api.LogLine) error {
		if l.Stream == "err" {
			e.Write(l.Data)
		} else {
			o.Write(l.Data)
		}
		return nil
	})
	if lerr != nil {
		r.t.Fatal(lerr)
	}
	return o.String(), e.String()
}

// statementOf is what a party's ledger says of a lease; its signatures were checked just now.
func statementOf(t *testing.T, b *books.Books, id market.LeaseID) (s statement.Statement) {
	t.Helper()
	err := b.View(context.Background(), func(r *books.Reader) (err error) { s, err = r.ShowLane(ledger.Lane(id)); return err })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sameMoney checks that both ledgers show the same amount for a lease with both signatures, and verify.
func sameMoney(t *testing.T, o *owner, r *tenant, id market.LeaseID) statement.Statement {
	t.Helper()
	theirs, mine := statementOf(t, o.base.Books, id), statementOf(t, r.base.Books, id)
	if theirs.Amount != mine.Amount || theirs.Voucher != mine.Voucher {
		t.Errorf("the ledgers differ: provider %s by %s, renter %s by %s", theirs.Amount, theirs.Voucher, mine.Amount, mine.Voucher)
	}
	want := 2
	if mine.Sequence == 0 {
		want = 1 // the opening voucher gets no receipt
	}
	if len(mine.Signed) != want || len(theirs.Signed) != want {
		t.Errorf("signatures: provider's ledger %v, renter's %v", theirs.Signed, mine.Signed)
	}
	for _, b := range []*books.Books{o.base.Books, r.base.Books} {
		v, err := b.Verify(context.Background())
		if err != nil || v.Result != books.ResultOK {
			t.Errorf("verify: %+v %v", v, err)
		}
	}
	return mine
}

func TestJourney(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	in := filepath.Join(t.TempDir(), "in")
	if err := os.MkdirAll(filepath.Join(in, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(in, "deep", "a.txt"), []byte("input"), 0o644); err != nil {
		t.Fatal(err)
	}
	req := r.order(m, "copy", "/in/deep/a.txt", "/out/b.txt", "12s")
	req.Input, req.Env = in, []string{"GREETING=hi"}
	s, err := r.submit(req)
	if err != nil || s.last.Step != api.StepDone || s.last.Error != nil {
		t.Fatalf("run: %v, last %+v", err, s.last)
	}
	job := s.last.Job
	if job.Exit == nil || job.Exit.Code != 0 || job.Results != "complete" || job.State != "ended" || job.Reason != "completed" {
		t.Fatalf("job ended as %+v (exit %+v)", job, job.Exit)
	}
	b, err := os.ReadFile(filepath.Join(req.Output, "b.txt"))
	if err != nil || string(b) != "input" {
		t.Fatalf("result: %q %v", b, err)
	}
	if out, _ := r.output(s.id); !strings.Contains(out, "copied") || !strings.Contains(out, "GREETING=hi") {
		t.Fatalf("output: %q", out)
	}
	stmt := sameMoney(t, o, r, s.id)
	if stmt.Amount != job.Cost || job.Seconds < 11 || job.Seconds > 30 {
		t.Fatalf("cost %s for %.1f s, statement %s", job.Cost, job.Seconds, stmt.Amount)
	}
	until(t, "the provider to wipe the lease", patience, func() bool {
		l, err := o.agent.FindLease(context.Background(), s.id.String())
		return err == nil && l.Wiped
	})
	if left, err := os.ReadDir(filepath.Join(o.dir, "leases")); err != nil || len(left) != 0 {
		t.Fatalf("left on the provider's disk: %v %v", left, err)
	}
}

func TestRefusedBeforePaying(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner") // serves nobody yet
	r.meet(o.party)
	if _, err := r.submit(r.order(m, "exit", "0")); err == nil || !strings.Contains(err.Error(), "no live offer") {
		t.Fatalf("nothing is offered: %v", err)
	}
	conf := o.conf
	conf.Accounts = append(conf.Accounts, o.account()) // somebody else
	if err := o.agent.Reload(conf); err != nil {
		t.Fatal(err)
	}
	r.sees(1)
	s, err := r.submit(r.order(m, "exit", "0"))
	if err != nil || s.last.Error == nil || s.last.Error.Code != "not_served" {
		t.Fatalf("a renter that is not served: %v %+v", err, s.last.Error)
	}
	for name, spoil := range map[string]func(*api.RunRequest){
		"output exists": func(q *api.RunRequest) { q.Output = t.TempDir() },
		"not an image":  func(q *api.RunRequest) { q.Image = m.init },
		"no budget":     func(q *api.RunRequest) { q.Budget = "0" },
		"small budget":  func(q *api.RunRequest) { q.Budget = "0.000001" },
		"bad query":     func(q *api.RunRequest) { q.Query = "kind=cpu pirce<1" },
		"no input":      func(q *api.RunRequest) { q.Input = "/nowhere" },
	} {
		req := r.order(m, "exit", "0")
		spoil(&req)
		if s, err := r.submit(req); err == nil || len(s.events) > 0 {
			t.Errorf("%s: taken: %v %+v", name, err, s.events)
		}
	}
	var held int
	err = r.base.Books.View(context.Background(), func(b *books.Reader) error {
		totals, err := b.Totals()
		for _, x := range totals {
			if x.HeldByMe > 0 || x.IOwe > 0 {
				held++
			}
		}
		return err
	})
	if err != nil || held > 0 {
		t.Fatalf("something is held or owed: %d %v", held, err)
	}
}

// Each way for a job to end arrives at its renter as what it is, and costs what it ran.
func TestEnds(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	for name, c := range map[string]struct {
		args   []string
		reason string
		code   int
		signal string
		free   bool // nothing is charged
	}{
		"exit code":       {args: []string{"job", "exit", "7"}, reason: "completed", code: 7},
		"killed":          {args: []string{"job", "crash", "9"}, reason: "completed", code: 137, signal: "SIGKILL"},
		"out of memory":   {args: []string{"job", "eat", "2000"}, reason: "out_of_memory", code: 137, signal: "SIGKILL"},
		"missing command": {args: []string{"nothing-like-it"}, reason: "command_missing", free: true},
	} {
		t.Run(name, func(t *testing.T) {
			r.sees(1) // the device is free again
			req := r.order(m)
			req.Command = c.args
			s, err := r.submit(req)
			if err != nil || s.last.Job == nil {
				t.Fatalf("run: %v %+v", err, s.last)
			}
			job := s.last.Job
			if job.Reason != c.reason || job.State != "ended" {
				t.Fatalf("ended with %q (%s), want %q", job.Reason, job.Detail, c.reason)
			}
			if c.free {
				if job.Exit != nil || job.Cost != "0" {
					t.Fatalf("a job that never ran: exit %+v, cost %s", job.Exit, job.Cost)
				}
			} else if job.Exit == nil || job.Exit.Code != c.code || job.Exit.Signal != c.signal {
				t.Fatalf("exit %+v, want %d %s", job.Exit, c.code, c.signal)
			}
			sameMoney(t, o, r, s.id)
		})
	}
}

// start runs a job beside the test and waits until it runs.
func (r *tenant) background(req api.RunRequest) (id market.LeaseID, done <-chan seen) {
	r.t.Helper()
	ended := make(chan seen, 1)
	running := make(chan market.LeaseID, 1)
	go func() {
		var s seen
		err := r.agent.Submit(context.Background(), req, func(e api.RunEvent) error {
			s.events, s.last = append(s.events, e), e
			if e.Job != nil {
				if err := s.id.UnmarshalText([]byte(e.Job.ID)); err != nil {
					return err
				}
			}
			if e.Step == api.StepRunning {
				select {
				case running <- s.id:
				default:
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			r.t.Logf("submit: %v", err)
		}
		ended <- s
	}()
	select {
	case id = <-running:
	case s := <-ended:
		r.t.Fatalf("the job ended before it ran: %+v", s.last)
	case <-time.After(patience):
		r.t.Fatal("the job does not run")
	}
	return id, ended
}

// job is a job as its renter sees it now.
func (r *tenant) job(id market.LeaseID) api.Job {
	r.t.Helper()
	_, j, err := r.agent.FindJob(context.Background(), id.String())
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

func (r *tenant) ends(id market.LeaseID, limit time.Duration) api.Job {
	r.t.Helper()
	until(r.t, "the job to end", limit, func() bool { return r.job(id).State == "ended" })
	return r.job(id)
}

func TestStopAndSignal(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	for name, c := range map[string]struct {
		req    api.SignalRequest
		reason string
		exit   int
	}{
		"stop":    {req: api.SignalRequest{}, reason: "stopped_renter", exit: 3},
		"signal":  {req: api.SignalRequest{Signal: "SIGTERM"}, reason: "completed", exit: 3},
		"release": {req: api.SignalRequest{Release: true}, reason: "stopped_renter", exit: -1},
	} {
		t.Run(name, func(t *testing.T) {
			r.sees(1) // the device is free again
			id, _ := r.background(r.order(m, "trap"))
			until(t, "the job's first line", patience, func() bool { out, _ := r.output(id); return strings.Contains(out, "ready") })
			if err := r.agent.Signal(t.Context(), id, c.req); err != nil {
				t.Fatal(err)
			}
			job := r.ends(id, patience)
			if job.Reason != c.reason || (c.exit >= 0 && (job.Exit == nil || job.Exit.Code != c.exit)) {
				t.Fatalf("ended with %q, exit %+v", job.Reason, job.Exit)
			}
			until(t, "the device to be free again", patience, o.free)
			sameMoney(t, o, r, id)
		})
	}
}

// The owner's pause frees the device within 2 s, and the reclaim credit comes off the charge.
func TestOwnerFirst(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	id, _ := r.background(r.order(m, "sleep"))
	until(t, "a voucher", patience, func() bool { return r.job(id).Cost != "0" })
	if err := o.agent.Pause(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	job := r.ends(id, patience)
	if job.Reason != "owner_reclaimed" || job.Cost != "0" {
		t.Fatalf("ended with %q at %s: the first minute should be free", job.Reason, job.Cost)
	}
	sameMoney(t, o, r, id)
	if _, err := r.submit(r.order(m, "exit", "0")); err == nil {
		t.Fatal("a paused owner sold")
	}
	if err := o.agent.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.sees(1)
}

// A daemon of either side may restart in the middle of a job: it goes on, and nothing is billed twice.
func TestRestarts(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	req := r.order(m, "copy", "/etc/passwd", "/out/a", "25s")
	id, _ := r.background(req)
	o.stop()
	o.start()
	r.meet(o.party)
	until(t, "the lease to be adopted", patience, func() bool { return r.job(id).State == "running" && !r.job(id).Suspected })
	r.stop()
	r.start()
	r.meet(o.party)
	job := r.ends(id, patience)
	if job.Reason != "completed" || job.Exit == nil || job.Exit.Code != 0 || job.Results != "complete" {
		t.Fatalf("ended with %q (%s), exit %+v, results %s", job.Reason, job.Detail, job.Exit, job.Results)
	}
	if _, err := os.Stat(filepath.Join(req.Output, "a")); err != nil {
		t.Fatal(err)
	}
	if job.Seconds > 27 {
		t.Fatalf("%.1f s were billed of 25 that the job ran", job.Seconds)
	}
	sameMoney(t, o, r, id)
}

// Two renters want one device at once: one gets it, the other a reason.
func TestTwoRentersOneDevice(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	a, b := m.tenant("a"), m.tenant("b")
	o := m.owner("owner", a.account(), b.account())
	a.meet(o.party)
	b.meet(o.party)
	a.sees(1)
	b.sees(1)
	results := make(chan seen, 2)
	for _, r := range []*tenant{a, b} {
		go func() {
			s, err := r.submit(r.order(m, "copy", "/etc/passwd", "/out/a", "3s"))
			if err != nil {
				s.last.Error = &api.Failed{Code: "device_taken", Detail: err.Error()} // the offer showed no free device any more
			}
			results <- s
		}()
	}
	won, lost := 0, 0
	for range 2 {
		switch s := <-results; {
		case s.last.Error == nil && s.last.Job.Reason == "completed":
			won++
		case s.last.Error != nil && s.last.Error.Code == "device_taken":
			lost++
		default:
			t.Errorf("%+v", s.last)
		}
	}
	if won != 1 || lost != 1 {
		t.Fatalf("%d won, %d lost", won, lost)
	}
}

// A stranger's credit ends the job, settling opens the door again, and the strangers' total shuts it for all of them.
func TestCredit(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r, other := m.tenant("renter"), m.tenant("other")
	o := m.owner("owner", r.account(), other.account())
	conf, stranger, total := o.conf, money.Micro(20_000), money.Micro(25_000) // 20 s and 25 s of rent
	conf.Credit.Stranger, conf.Credit.StrangersTotal = &stranger, &total
	if err := o.agent.Reload(conf); err != nil {
		t.Fatal(err)
	}
	r.meet(o.party)
	other.meet(o.party)
	r.sees(1)
	id, _ := r.background(r.order(m, "sleep"))
	job := r.ends(id, patience)
	if job.Reason != "credit_over" {
		t.Fatalf("ended with %q (%s)", job.Reason, job.Detail)
	}
	stmt := sameMoney(t, o, r, id)
	if owed, err := money.Parse(stmt.Amount); err != nil || owed > stranger+4_000 {
		t.Fatalf("the stranger owes %v, its limit is %v", owed, stranger)
	}
	if s, err := r.submit(r.order(m, "exit", "0")); err == nil && s.last.Error == nil {
		t.Fatal("sold on to a stranger at its limit")
	}
	other.sees(1)
	if s, err := other.submit(other.order(m, "exit", "0")); err == nil && (s.last.Error == nil || s.last.Error.Code != "strangers_total") {
		t.Fatalf("sold to another stranger with the total full: %+v", s.last)
	}
}
