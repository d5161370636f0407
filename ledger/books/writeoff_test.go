package books

import (
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

func (p pairOf) writeOff() (amount money.Micro, err error) {
	err = p.provider.Update(p.provider.tb.Context(), func(t *Tx) (err error) {
		amount, err = t.WriteOff(p.renter.Self(), money.Credit, "gone")
		return err
	})
	return amount, err
}

// claim is what the provider may ask for, written off or not: what the renter owes by its own ledger.
func (p pairOf) claim() {
	p.renter.tb.Helper()
	a, b := p.provider.account(ledger.AsProvider, p.renter), p.renter.account(ledger.AsRenter, p.provider)
	if a.Owed+int64(a.BadDebt) != b.Owed || a.Settled != b.Settled {
		p.renter.tb.Fatalf("the provider has %d booked and %v written off, the renter owes %d", a.Owed, a.BadDebt, b.Owed)
	}
	p.provider.verified(ResultOK)
	p.renter.verified(ResultOK)
}

// A debt that is written off counts against the strangers' total and takes the account's credit, until it is paid after all: then a
// correction takes the write-off back.
func TestWriteOffAndPaidAfterAll(t *testing.T) {
	p := newPair(t)
	p.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1000, StrangersTotal: 1500, KnownPercent: 100, KnownCap: 10_000}})
	if _, err := p.writeOff(); !errors.Is(err, ErrNothingOwed) {
		t.Fatalf("nothing is owed: %v", err)
	}
	p.rent(1, 700)
	running := p.sell(2, 0)
	p.pay(running, 50)
	if amount, err := p.writeOff(); err != nil || amount != 700 {
		t.Fatalf("%v written off, %v: what runs is not lost", amount, err)
	}
	if _, err := p.writeOff(); !errors.Is(err, ErrNothingOwed) {
		t.Fatalf("twice: %v", err)
	}
	a := p.provider.account(ledger.AsProvider, p.renter)
	if a.BadDebt != 700 || a.Owed != 50 || a.DueAt != 0 {
		t.Fatalf("%+v", a)
	}
	p.provider.view(func(r *Reader) error {
		used, err := r.StrangersUsed(money.Credit, p.provider.Self())
		if used != 750 {
			t.Errorf("%v of the strangers' total used, want 750", used)
		}
		return err
	})
	if err := p.trySell(p.opening(3, 1)); !errors.Is(err, ledger.ErrWrittenOff) {
		t.Fatalf("who never paid gets a lease: %v", err)
	}
	p.claim()
	p.settle(p.renter, p.provider, 300, "a part")
	if a := p.provider.account(ledger.AsProvider, p.renter); a.BadDebt != 400 || a.Owed != 50 {
		t.Fatalf("after a part: %+v", a)
	}
	p.claim()
	p.settle(p.provider, p.renter, 500, "the rest, and more")
	if a := p.provider.account(ledger.AsProvider, p.renter); a.BadDebt != 0 || a.Owed != -50 {
		t.Fatalf("after all: %+v", a)
	}
	if err := p.trySell(p.opening(4, 1)); err != nil {
		t.Fatalf("paid, and no credit: %v", err)
	}
	p.claim()
	var kinds []ledger.EntryKind
	p.provider.view(func(r *Reader) error {
		return r.Entries(0, func(_ uint64, e ledger.Entry) (bool, error) {
			kinds = append(kinds, e.Kind)
			if e.Kind == ledger.KindWriteOff && e.Note != "gone" {
				t.Errorf("the reason is lost: %+v", e)
			}
			return true, nil
		})
	})
	if n := count(kinds, ledger.KindWriteOff); n != 1 {
		t.Errorf("%d write-offs", n)
	}
	if n := count(kinds, ledger.KindCorrection); n != 2 {
		t.Errorf("%d corrections", n)
	}
}

func count[T comparable](list []T, v T) (n int) {
	for _, x := range list {
		if x == v {
			n++
		}
	}
	return n
}

// A lower final charge of a lane whose debt was written off lowers what is written off, not what is owed.
func TestCreditOfAWrittenOffLane(t *testing.T) {
	p := newPair(t)
	lane := p.rent(1, 700)
	if _, err := p.writeOff(); err != nil {
		t.Fatal(err)
	}
	p.close(lane, 600)
	if a := p.provider.account(ledger.AsProvider, p.renter); a.BadDebt != 600 || a.Owed != 0 {
		t.Fatalf("%+v", a)
	}
	p.claim()
}

func TestVerifyFindsForgedWriteOffs(t *testing.T) {
	lost := func(p pairOf) []ledger.Posting {
		return pair(money.Credit, ledger.Account{Kind: ledger.BadDebt, Peer: p.renter.Self()}, ledger.Account{Kind: ledger.Receivable, Peer: p.renter.Self()}, 5)
	}
	for name, forge := range map[string]func(pairOf, *Tx) error{
		"a record without an entry": func(p pairOf, tx *Tx) error {
			return tx.change(ledger.AsProvider, money.Credit, p.renter.Self(), func(a *Account) error { a.BadDebt++; return nil })
		},
		"an entry without a record": func(p pairOf, tx *Tx) error {
			if err := tx.change(ledger.AsProvider, money.Credit, p.renter.Self(), func(a *Account) error { return a.owe(-5) }); err != nil {
				return err
			}
			_, err := tx.post(ledger.Entry{ID: [32]byte{1}, Kind: ledger.KindWriteOff, Peer: p.renter.Self(), Postings: lost(p)})
			return err
		},
		"a correction that loses more": func(p pairOf, tx *Tx) error {
			return tx.moveLost(ledger.KindCorrection, p.renter.Self(), money.Credit, 5, "")
		},
		"a write-off of income": func(p pairOf, tx *Tx) error {
			post := pair(money.Credit, ledger.Account{Kind: ledger.Expense}, ledger.Account{Kind: ledger.Income}, 5)
			_, err := tx.post(ledger.Entry{ID: [32]byte{1}, Kind: ledger.KindWriteOff, Peer: p.renter.Self(), Postings: post})
			return err
		},
	} {
		p := newPair(t)
		p.rent(1, 700)
		p.provider.update(func(tx *Tx) error { return forge(p, tx) })
		if v, err := p.provider.Verify(t.Context()); err != nil || v.Result != ResultCorrupt {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

// After a restart the bad debt is as it was.
func TestWriteOffSurvives(t *testing.T) {
	p := newPair(t)
	p.rent(1, 700)
	if _, err := p.writeOff(); err != nil {
		t.Fatal(err)
	}
	p.provider = p.provider.reopen(true)
	if a := p.provider.account(ledger.AsProvider, p.renter); a.BadDebt != 700 || a.Owed != 0 || time.UnixMilli(a.LastEntry).IsZero() {
		t.Fatalf("%+v", a)
	}
	p.claim()
}
