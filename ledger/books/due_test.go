package books

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

// rent opens a lane with terms of 14 days, pays it up to amount by vouchers and ends it.
func (p pairOf) rent(lane byte, amount money.Micro) ledger.Lane {
	p.renter.tb.Helper()
	o := p.opening(lane, 0)
	o.DueDays = 14
	must(p.renter.tb, p.trySell(o))
	p.pay(o.Lane, amount)
	p.close(o.Lane, amount)
	return o.Lane
}

// unpaid is what is unpaid, by lane, as both sides see it.
func (p pairOf) unpaid() (debts []ledger.Debt) {
	p.renter.tb.Helper()
	for role, side := range map[ledger.Role]*party{ledger.AsProvider: p.provider, ledger.AsRenter: p.renter} {
		peer := p.renter
		if side == p.renter {
			peer = p.provider
		}
		side.view(func(r *Reader) error {
			got, err := r.Unpaid(role, money.Credit, peer.Self())
			if debts != nil && len(got) != len(debts) {
				p.renter.tb.Fatalf("one side sees %+v, the other %+v", got, debts)
			}
			debts = got
			return err
		})
	}
	return debts
}

func (p pairOf) trySellMore(lane byte) error {
	o := p.opening(lane, 1)
	o.DueDays = 14
	return p.trySell(o)
}

// An account whose payment is late gets no credit, and gets it back the moment it pays. Nothing is written in between: only time goes by.
func TestLateAccountGetsNoCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		p.rent(1, 300)
		time.Sleep(time.Hour)
		second := p.rent(2, 200)
		if a := p.provider.account(ledger.AsProvider, p.renter); a.Late || a.DueAt != time.Now().Add(14*24*time.Hour-time.Hour).UnixMilli() {
			t.Fatalf("before the due time: %+v", a)
		}
		time.Sleep(15*24*time.Hour - time.Hour - time.Millisecond)
		if err := p.trySellMore(3); err != nil {
			t.Fatalf("on its last day: %v", err)
		}
		time.Sleep(time.Millisecond)
		for role, side := range map[ledger.Role][2]*party{ledger.AsProvider: {p.provider, p.renter}, ledger.AsRenter: {p.renter, p.provider}} {
			if a := side[0].account(role, side[1]); !a.Late {
				t.Fatalf("as %s: not late: %+v", role, a)
			}
		}
		if err := p.trySellMore(4); !errors.Is(err, ledger.ErrLate) {
			t.Fatalf("late, and got a lease: %v", err)
		}
		p.provider.view(func(r *Reader) error {
			room, cause, err := r.LaneRoom(ledger.Lane{3})
			if room != 1 || !errors.Is(cause, ledger.ErrLate) { // its hold was granted
				t.Errorf("a running lease has room for %v by %v", room, cause)
			}
			return err
		})
		p.settle(p.renter, p.provider, 300, "first")
		if err := p.trySellMore(5); err != nil {
			t.Fatalf("paid, and no credit: %v", err)
		}
		if got := p.unpaid(); len(got) != 1 || got[0].Lane != second || got[0].Amount != 200 {
			t.Fatalf("unpaid: %+v", got)
		}
		time.Sleep(time.Hour)
		if err := p.trySellMore(6); !errors.Is(err, ledger.ErrLate) {
			t.Fatalf("the second debt got late, too: %v", err)
		}
		p.settle(p.renter, p.provider, 250, "second")
		if a := p.provider.account(ledger.AsProvider, p.renter); a.Late || a.DueAt != 0 || len(p.unpaid()) != 0 {
			t.Fatalf("all is paid: %+v", a)
		}
		for _, lane := range []byte{4, 6} { // refused orders
			p.renter.update(func(tx *Tx) error { _, err := tx.CloseLane(ledger.Lane{lane}, 0); return err })
		}
		p.equal()
	})
}

// A voucher that comes after the lane's end, and a final charge that is lowered, move what is due; so does a prepaid balance.
func TestDueFollowsTheLanes(t *testing.T) {
	p := newPair(t)
	p.settle(p.renter, p.provider, 100, "ahead")
	first := p.rent(1, 100)
	if got := p.unpaid(); len(got) != 0 {
		t.Fatalf("prepaid, and unpaid: %+v", got)
	}
	o := p.opening(2, 0)
	o.DueDays = 7
	must(t, p.trySell(o))
	p.pay(o.Lane, 40)
	if got := p.unpaid(); len(got) != 1 || got[0].Due != 0 || got[0].Amount != 40 {
		t.Fatalf("of a lane that runs: %+v", got)
	}
	late := p.promise(o.Lane, 70)
	p.close(o.Lane, 90)
	if _, err := p.deliver(late); err != nil {
		t.Fatal(err)
	}
	if got := p.unpaid(); len(got) != 1 || got[0].Lane != o.Lane || got[0].Amount != 70 || got[0].Due != got[0].Since+7*24*3600*1000 {
		t.Fatalf("after a late voucher: %+v", got)
	}
	p.equal()
	p.close(first, 60) // a credit of 40: the payment now covers 40 of the second
	if got := p.unpaid(); len(got) != 1 || got[0].Lane != o.Lane || got[0].Amount != 30 {
		t.Fatalf("after a credit: %+v", got)
	}
	p.equal()
}

// A voucher for an old lane that comes after newer ones were paid is no reason to ask for the old lane again: what is unpaid is the newest.
func TestLateVoucherOfAnOldLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		old := p.opening(1, 0)
		must(t, p.trySell(old))
		p.pay(old.Lane, 10)
		late := p.promise(old.Lane, 13)
		p.close(old.Lane, 20)
		for lane := byte(2); lane < 4; lane++ {
			time.Sleep(time.Minute)
			p.rent(lane, 10)
		}
		p.settle(p.provider, p.renter, 24, "most of it")
		if _, err := p.deliver(late); err != nil {
			t.Fatal(err)
		}
		if got := p.unpaid(); len(got) != 1 || got[0].Lane != (ledger.Lane{3}) || got[0].Amount != 9 {
			t.Fatalf("unpaid: %+v", got)
		}
		p.equal()
	})
}

// Verify finds an account that hides that it is late.
func TestVerifyFindsHiddenDebt(t *testing.T) {
	for name, forge := range map[string]func(*Tx, *Account, Lane) error{
		"due time": func(_ *Tx, a *Account, _ Lane) error { a.DueAt = 0; return nil },
		"running":  func(_ *Tx, a *Account, _ Lane) error { a.Running += 5; return nil },
		"list": func(tx *Tx, _ *Account, l Lane) error {
			return tx.own.Delete(dueKey(ledger.AsProvider, l.Channel.Renter, l))
		},
	} {
		p := newPair(t)
		lane := p.rent(1, 300)
		p.provider.verified(ResultOK)
		p.provider.update(func(tx *Tx) error {
			l, err := tx.Lane(lane)
			must(t, err)
			return tx.change(ledger.AsProvider, money.Credit, p.renter.Self(), func(a *Account) error { return forge(tx, a, l) })
		})
		if v, err := p.provider.Verify(t.Context()); err != nil || v.Result != ResultCorrupt {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// A lease that ends while the clock is behind, before others by its time, is not taken for the newest debt: what is due first is computed
// again. One that ends in order costs no look at the others, and comes to the same.
func TestEndsOutOfOrder(t *testing.T) {
	for _, order := range [][]int64{{1, 2, 3}, {3, 2, 1}, {2, 3, 1}, {2, 2, 2}, {3, 1, 2}} {
		for _, days := range [][]uint32{{14, 14, 14}, {30, 7, 1}, {1, 7, 30}} {
			p := newPair(t)
			base := time.Now().Add(-time.Hour).UnixMilli()
			for i, at := range order {
				o := p.opening(byte(i+1), 0)
				o.DueDays = days[i]
				must(t, p.trySell(o))
				p.pay(o.Lane, 100)
				for _, side := range []*party{p.renter, p.provider} {
					side.update(func(tx *Tx) error { _, err := tx.closeLane(o.Lane, 100, base+at*1000); return err })
				}
				if i == 1 { // of the three, the older two are paid in part
					p.settle(p.renter, p.provider, 150, "r")
				}
			}
			for _, side := range []*party{p.renter, p.provider} {
				side.verified(ResultOK)
			}
		}
	}
}
