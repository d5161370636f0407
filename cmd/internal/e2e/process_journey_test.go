package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	provided "github.com/gpufair/gpufair/provider/control/api"
	rented "github.com/gpufair/gpufair/renter/control/api"
)

// TestPrograms lets real programs meet good and bad luck, by documented commands and settings alone. Its scenarios run beside each other:
// they mostly wait, and only the measuring before them needs the machine.
func TestPrograms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var scenarios sync.WaitGroup
	for name, run := range map[string]func(*testing.T, *site){
		"journey":          journey,
		"provider is back": providerBack,
		"provider is away": providerAway,
		"agent is killed":  agentKilled,
		"sealed bid":       sealedBid,
		"interrupts":       interrupts,
		"containerd":       containerdGone,
		"refusals":         refusals,
	} {
		scenarios.Go(func() { t.Run(name, func(t *testing.T) { run(t, s) }) })
	}
	scenarios.Wait()
}

// journey is the whole way by commands, from the invite to the settlement, and then what a stranger does to those who walked it.
func journey(t *testing.T, s *site) {
	p := s.newPair(t, s.daemon, "journey")
	offer := p.sees(p.renter)
	if len(offer.Figures) < 3 || offer.Price != "3.6" || offer.Kind != "cpu" {
		t.Errorf("offer: %+v", offer)
	}
	shown := one[rented.Explanation](p.renter.ok("show", offer.ID, "--json"))
	if !shown.Passport.Checked || shown.Offer.ID != offer.ID {
		t.Errorf("show: %+v", shown)
	}
	in, out := filepath.Join(p.work, "in"), filepath.Join(p.work, "out")
	if err := os.MkdirAll(filepath.Join(in, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(in, "deep", "a.txt"), "input")
	r := p.renter.run("run", p.image, "-q", "kind=cpu", "--input", in, "--output", out, "--budget", "0.5", "--name", "first", "-e", "GREETING=hi", "--",
		"job", "copy", "/in/deep/a.txt", "/out/b.txt", "11s")
	if r.code != 0 || !strings.Contains(r.out, "copied /in/deep/a.txt") || !strings.Contains(r.out, "GREETING=hi") || !strings.Contains(r.err, "results in "+out) {
		t.Fatalf("run ended with %d\n%s%s", r.code, r.out, r.err)
	}
	if b, err := os.ReadFile(filepath.Join(out, "b.txt")); err != nil || string(b) != "input" {
		t.Errorf("result: %q %v", b, err)
	}
	if r := p.renter.run("run", p.image, "--offer", p.sees(p.renter).ID, "--budget", "0.5", "--output", out+"7", "--", "job", "exit", "7"); r.code != 7 {
		t.Errorf("a job that ends with 7: %d\n%s", r.code, r.err)
	}
	job := p.job("first")
	if job.State != "ended" || job.Reason != "completed" || job.Exit == nil || job.Exit.Code != 0 || job.Results != "complete" || job.Seconds < 10 || job.Seconds > 20 {
		t.Errorf("ps: %+v", job)
	}
	if logs := p.renter.ok("logs", "first"); logs != r.out {
		t.Errorf("logs are %q, run printed %q", logs, r.out)
	}
	if where := strings.TrimSpace(p.renter.ok("results", "first")); where != out {
		t.Errorf("results: %q", where)
	}
	again := filepath.Join(p.work, "again")
	p.renter.ok("results", "first", "--output", again)
	if b, err := os.ReadFile(filepath.Join(again, "b.txt")); err != nil || string(b) != "input" {
		t.Errorf("results again: %q %v", b, err)
	}
	if stmt := p.sameMoney(job.ID); stmt.Amount != job.Cost {
		t.Errorf("ps says %s, the ledger %s", job.Cost, stmt.Amount)
	}
	settles(p)
	badOrders(p)
	noise(p)
	leavesNothing(p)
}

// job is a job as its renter's ps shows it, by id or name.
func (p *pair) job(id string) (found rented.Job) {
	p.t.Helper()
	for _, j := range all[rented.Job](p.renter.ok("ps", "--all", "--json")) {
		if strings.HasPrefix(j.ID, id) || j.Name == id {
			return j
		}
	}
	return found
}

// lease is a lease as the owner sees it.
func (p *pair) lease(id string) (found provided.Lease) {
	p.t.Helper()
	for _, l := range all[provided.Lease](p.owner.ok("leases", "--all", "--json")) {
		if l.ID == id {
			return l
		}
	}
	return found
}

// sameMoney checks that both ledgers show the same amount for a lease by the same voucher with all signatures, and verify.
func (p *pair) sameMoney(id string) statement.Statement {
	p.t.Helper()
	var theirs, mine statement.Statement
	eventually(p.t, "both ledgers to show the same", patience, func() bool {
		theirs = one[statement.Statement](p.owner.ok("ledger", "statement", id, "--json"))
		mine = one[statement.Statement](p.renter.ok("ledger", "statement", id, "--json"))
		return theirs.Amount == mine.Amount && theirs.Voucher == mine.Voucher && theirs.Receipt == mine.Receipt
	})
	want := 2
	if mine.Sequence == 0 {
		want = 1 // the opening voucher gets no receipt
	}
	slices.Sort(theirs.Signed)
	slices.Sort(mine.Signed)
	if len(mine.Signed) != want || !slices.Equal(mine.Signed, theirs.Signed) {
		p.t.Errorf("signatures on lease %s: owner's ledger %v, renter's %v", id, theirs.Signed, mine.Signed)
	}
	p.owner.ok("ledger", "verify")
	p.renter.ok("ledger", "verify")
	return mine
}

// settles pays what is owed, which counts once the owner has signed, too.
func settles(p *pair) {
	p.t.Helper()
	owed := one[statement.Ledger](p.renter.ok("ledger", "show", "--json"))
	if len(owed.Balances) != 1 || owed.Balances[0].IOwe == "0" || owed.Balances[0].Held != "0" {
		p.t.Fatalf("the renter's ledger before the settlement: %+v", owed)
	}
	proposed := one[statement.Settlement](p.renter.ok("settle", owed.Balances[0].Account, "--reference", "2026-1", "--json"))
	if proposed.Amount != owed.Balances[0].IOwe || !proposed.ByMe {
		p.t.Errorf("proposed: %+v, owed %s", proposed, owed.Balances[0].IOwe)
	}
	signed := one[statement.Settlement](p.owner.ok("settle", "accept", proposed.ID, "--json"))
	if signed.State != "signed" || len(signed.Signed) != 2 {
		p.t.Errorf("accepted: %+v", signed)
	}
	eventually(p.t, "the renter to hear of the signature", patience, func() bool {
		v := one[statement.Settlement](p.renter.ok("settle", "list", "--json"))
		return v.State == "signed" && len(v.Signed) == 2
	})
	after, got := one[statement.Ledger](p.renter.ok("ledger", "show", "--json")), one[statement.Ledger](p.owner.ok("ledger", "show", "--json"))
	if b := after.Balances[0]; b.IOwe != "0" || b.Settled != proposed.Amount {
		p.t.Errorf("the renter's ledger after the settlement: %+v", b)
	}
	if b := got.Balances[0]; b.OwedToMe != "0" || b.Settled != proposed.Amount {
		p.t.Errorf("the owner's ledger after the settlement: %+v", b)
	}
	p.owner.ok("ledger", "verify")
	p.renter.ok("ledger", "verify")
	for _, h := range []*home{p.owner, p.renter} {
		if csv := h.ok("ledger", "export", "--format", "csv"); !strings.HasPrefix(csv, "time,entry,kind,account") || !strings.Contains(csv, "2026-1") {
			p.t.Errorf("export: %s", csv)
		}
	}
}

// leavesNothing stops both sides and looks for what they must not leave.
func leavesNothing(p *pair) {
	p.t.Helper()
	eventually(p.t, "the owner to wipe what the jobs left", patience, func() bool {
		return !slices.ContainsFunc(all[provided.Lease](p.owner.ok("leases", "--all", "--json")), func(l provided.Lease) bool { return !l.Wiped })
	})
	p.renter.ok("agent", "stop")
	p.owner.running.stop()
	if left := containers(p.t, p.daemon, "gpufair-journey"); len(left) > 0 {
		p.t.Errorf("containers left: %v", left)
	}
	for _, h := range []*home{p.owner, p.renter} {
		if left, err := filepath.Glob(filepath.Join(h.dir, "run", "*.sock")); err != nil || len(left) > 0 {
			p.t.Errorf("sockets left: %v %v", left, err)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), h.dir+"/") {
			p.t.Errorf("mounts below %s: %v\n%s", h.dir, err, mounts)
		}
	}
	jobs, err := os.ReadDir(filepath.Join(p.owner.dir, "state", "jobs"))
	if err != nil {
		p.t.Error(err)
	}
	for _, j := range jobs {
		p.t.Errorf("folder of a job left: %s", j.Name())
	}
	p.owner.refused(4, []string{"status"})
	p.renter.refused(4, []string{"agent", "status"})
}

// amount is a decimal text as an amount.
func amount(t testing.TB, text string) money.Micro {
	t.Helper()
	m, err := money.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
