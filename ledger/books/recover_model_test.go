package books

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// deed is one thing that may happen among three parties, of which each rents from the next.
type deed struct {
	what, pair, lane, by uint
	amount               money.Micro
}

// deeds are what may happen; the first ones are the most frequent.
var deeds = []func(*society, deed){
	(*society).sell, (*society).sell, (*society).tick, (*society).tick, (*society).tick, (*society).end, (*society).end, (*society).settle, (*society).net,
	(*society).dispute, (*society).note, (*society).note,
}

// society is a ring of three, with the lanes of each pair and a count of what each owes: the simple model.
type society struct {
	*ring
	lanes   [3][]ledger.Lane
	owed    [3]int64                    // by the simple model
	amounts map[ledger.Lane]money.Micro // that each lane comes to
	ended   map[ledger.Lane]bool
	records map[ledger.Lane]Terms
	n       byte
	paid    int
}

func newSociety(t *testing.T) *society {
	s := &society{
		ring:    &ring{t: t, all: []*party{newParty(t), newParty(t), newParty(t)}},
		amounts: map[ledger.Lane]money.Micro{}, ended: map[ledger.Lane]bool{}, records: map[ledger.Lane]Terms{},
	}
	for i := range s.all {
		s.pair(i).meet()
	}
	return s
}

func (s *society) pick(d deed) (p pairOf, at int, lane ledger.Lane, ok bool) {
	at = int(d.pair % 3)
	if len(s.lanes[at]) == 0 {
		return p, at, lane, false
	}
	return s.pair(at), at, s.lanes[at][d.lane%uint(len(s.lanes[at]))], true
}

func (s *society) sell(d deed) {
	at := int(d.pair % 3)
	p := s.pair(at)
	o := p.opening(s.n+1, d.amount%50)
	o.DueDays = uint32(d.by % 40)
	if err := p.provider.View(s.t.Context(), func(r *Reader) error { return r.checkNew(ledger.AsProvider, money.Credit, p.renter.Self()) }); err != nil {
		return
	}
	s.n++
	must(s.t, p.trySell(o))
	s.lanes[at] = append(s.lanes[at], o.Lane)
	s.records[o.Lane] = Terms{Hold: o.Hold, DueDays: o.DueDays}
}

// tick pays a lane; both keep the evidence that the receipt names, and some that it does not.
func (s *society) tick(d deed) {
	p, at, lane, ok := s.pick(d)
	if !ok || s.ended[lane] || p.renter.lane(lane).Frozen() {
		return
	}
	was := p.renter.lane(lane)
	amount, evidence := was.Amount+1+d.amount%100, fmt.Sprint(uint64(was.Amount+1+d.amount%100))
	p.payFor(lane, amount, was.Seq+1, evidence, evidence)
	p.renter.update(func(t *Tx) error {
		return t.KeepInterval(lane, Interval{At: was.Seq + 1, Evidence: []byte(evidence), Voucher: p.renter.seqIn(t, lane)})
	})
	s.owed[at] += int64(amount - was.Amount)
	s.amounts[lane] = amount
}

func (p *party) seqIn(t *Tx, lane ledger.Lane) uint64 {
	l, err := t.Lane(lane)
	must(p.tb, err)
	return l.Seq
}

// end ends a lane, often with a credit: the provider signs for its charge.
func (s *society) end(d deed) {
	p, at, lane, ok := s.pick(d)
	if !ok || s.ended[lane] {
		return
	}
	charge := s.amounts[lane] - min(s.amounts[lane], d.amount%20)
	if d.by%2 == 0 {
		charge = s.amounts[lane] + 5 // metered, and not vouchered any more
	}
	p.close(lane, charge)
	t := s.records[lane]
	t.Charge = &charge
	s.records[lane], s.ended[lane] = t, true
	s.owed[at] -= int64(s.amounts[lane] - min(s.amounts[lane], charge))
	s.amounts[lane] = min(s.amounts[lane], charge)
}

func (s *society) settle(d deed) {
	at := int(d.pair % 3)
	p := s.pair(at)
	from, to := p.renter, p.provider
	if d.by%2 == 0 {
		from, to = to, from
	}
	amount := 1 + d.amount%150
	s.paid++
	p.settle(from, to, amount, fmt.Sprint("transfer ", s.paid))
	s.owed[at] -= int64(amount)
}

// net clears the circle by what all three owe.
func (s *society) net(deed) {
	most := money.Max
	for i := range s.all {
		s.pair(i).renter.view(func(r *Reader) error {
			m, err := r.Clearable(ledger.AsRenter, money.Credit, s.pair(i).provider.Self())
			most = min(most, m)
			return err
		})
	}
	if most == 0 {
		return
	}
	terms := s.terms(most)
	s.gather(terms)
	done, err := s.all[0].complete(s.id(terms))
	must(s.t, err)
	for _, p := range s.all[1:] {
		p.hear(terms, done.Words())
	}
	for i := range s.owed {
		s.owed[i] -= int64(most)
	}
}

func (s *society) dispute(d deed) {
	p, _, lane, ok := s.pick(d)
	if !ok || s.amounts[lane] == 0 || p.renter.lane(lane).Agreed {
		return
	}
	from, to := p.renter, p.provider
	if d.by%2 == 0 {
		from, to = to, from
	}
	p.pairOfDispute(from, to, lane)
}

func (p pairOf) pairOfDispute(from, to *party, lane ledger.Lane) {
	if d, err := disputeHere(from, lane); err == nil && d.Mine != nil {
		return
	}
	p.dispute(from, to, lane)
}

func disputeHere(p *party, lane ledger.Lane) (d Dispute, err error) {
	err = p.View(p.tb.Context(), func(r *Reader) error { d, err = r.Dispute(lane); return err })
	return d, err
}

// note proposes what a disputed lane comes to; two that are the same end the dispute.
func (s *society) note(d deed) {
	p, at, lane, ok := s.pick(d)
	if !ok || !s.ended[lane] || !p.renter.lane(lane).Frozen() || p.renter.lane(lane).Agreed {
		return
	}
	from, to := p.renter, p.provider
	if d.by%2 == 0 {
		from, to = to, from
	}
	amount := s.amounts[lane] / 2
	p.offer(from, to, lane, amount)
	if p.renter.lane(lane).Agreed {
		s.owed[at] -= int64(s.amounts[lane] - amount)
		s.amounts[lane] = amount
	}
}

// look is all that a party is told of its ledger and that it can have back: no entries, which are made anew, and no time of a last change.
func (s *society) look(p *party) string {
	var out strings.Builder
	p.view(func(r *Reader) error {
		owed, err := r.ShowOwed()
		must(s.t, err)
		for _, d := range owed.Owed {
			d.LastPayment = nil
			fmt.Fprintf(&out, "owed %v %v %v\n", d, show(d.Since), show(d.DueAt))
		}
		err = r.eachStanding(func(role ledger.Role, _ money.Unit, peer identity.AccountID, a Account) error {
			fmt.Fprintf(&out, "account %v %s owed %d bad %v open %v settled %v running %v lanes %d due %d disputed %d\n",
				role, peer.Short(), a.Owed, a.BadDebt, a.Open, a.Settled, a.Running, a.Lanes, a.DueAt, a.DisputedUntil)
			return nil
		})
		must(s.t, err)
		n, err := r.ShowClearings()
		must(s.t, err)
		for _, c := range n {
			c.Time = time.Time{}
			fmt.Fprintf(&out, "clearing %+v\n", c)
		}
		return r.EachLane(func(l Lane) error {
			s.lookLane(&out, r, l)
			return nil
		})
	})
	return out.String()
}

func show(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.String()
}

func (s *society) lookLane(out *strings.Builder, r *Reader, l Lane) {
	fmt.Fprintf(out, "lane %s owed %v seq %d amount %v held %v voucher %s receipt %s/%d settled %v opened %d ended %d due %d disputed %d agreed %v\n", l.Lane.Short(),
		l.Owed(), l.Seq, l.Amount, l.HoldLeft, l.Voucher.Short(), l.Receipt.Short(), l.Receipts, l.Settled, l.Opened, l.Ended, l.Due(), l.Disputed, l.Agreed)
	must(s.t, r.ShowIntervals(l.Lane, readInterval, func(v statement.Interval) (bool, error) {
		fmt.Fprintf(out, "  interval %+v\n", v)
		return true, nil
	}))
	if l.Frozen() {
		d, err := r.ShowDispute(l.Lane)
		must(s.t, err)
		d.Told = false
		fmt.Fprintf(out, "  dispute %+v\n", d)
	}
}

// balanced holds both sides of each debt against the simple model.
func (s *society) balanced(when string) {
	s.t.Helper()
	for i, want := range s.owed {
		p := s.pair(i)
		a, b := p.renter.account(ledger.AsRenter, p.provider), p.provider.account(ledger.AsProvider, p.renter)
		if a.Owed != want || b.Owed+int64(b.BadDebt) != want || a.Open != b.Open {
			s.t.Fatalf("%s, debt %d: %d owed, %d (%v written off) owing, model %d; held %v and %v", when, i, a.Owed, b.Owed, b.BadDebt, want, a.Open, b.Open)
		}
	}
}

// TestRecoverModel: three parties deal with each other in any way; one loses its ledger and starts from an older backup, or from nothing, and
// asks the others. Then it is told what it was told before the loss, and both sides of every debt are what a simple model says.
func TestRecoverModel(t *testing.T) {
	draw := rapid.Custom(func(rt *rapid.T) deed {
		return deed{
			what: rapid.UintRange(0, uint(len(deeds)-1)).Draw(rt, "what"), pair: rapid.UintRange(0, 2).Draw(rt, "pair"),
			lane: rapid.Uint().Draw(rt, "lane"), by: rapid.Uint().Draw(rt, "by"), amount: money.Micro(rapid.Uint32().Draw(rt, "amount")),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfN(draw, 1, 60).Draw(rt, "deeds")
		backup := rapid.IntRange(-1, len(all)-1).Draw(rt, "backup after") // -1: of nothing
		victim := rapid.IntRange(0, 2).Draw(rt, "victim")
		synctest.Test(t, func(t *testing.T) {
			s := newSociety(t)
			kept := &kv.Memory{}
			for i, d := range all {
				time.Sleep(time.Minute)
				deeds[d.what](s, d)
				if i == backup {
					kept = copyEngine(t, s.all[victim].engine)
				}
			}
			s.balanced("before")
			var before []string
			for _, p := range s.all {
				before = append(before, s.look(p))
			}
			s.all[victim] = s.all[victim].restored(kept, time.Now())
			s.all[victim].records = s.records
			for _, other := range []int{(victim + 1) % 3, (victim + 2) % 3} {
				s.all[victim].recover(s.all[other])
			}
			for _, other := range []int{(victim + 1) % 3, (victim + 2) % 3} {
				if n := s.all[victim].recover(s.all[other]); n != 0 {
					t.Errorf("%d records came back again", n)
				}
			}
			s.balanced("after")
			for i, p := range s.all {
				p.verified(ResultOK)
				if after := s.look(p); after != before[i] {
					t.Fatalf("party %d (%d lost its ledger), backup after %d of %d:\n%s", i, victim, backup, len(all), difference(before[i], after))
				}
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// difference gives the lines that only one text has.
func difference(was, is string) string {
	var out strings.Builder
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			fmt.Fprintln(&out, "-", l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			fmt.Fprintln(&out, "+", l)
		}
	}
	return out.String()
}
