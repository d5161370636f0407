package books

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestSettledOnce(t *testing.T) {
	p := newPair(t)
	p.pay(p.sell(1, 0), 900)
	pay := Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 900, Method: "manual", Reference: "invoice 1"}
	var wg sync.WaitGroup
	proposals := make([][]byte, 8)
	for i := range proposals {
		wg.Go(func() {
			err := p.renter.Update(context.Background(), func(tx *Tx) (err error) {
				_, proposals[i], err = tx.Propose(pay)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	counters := make([][]byte, len(proposals))
	for i, proposal := range proposals {
		if string(proposal) != string(proposals[0]) {
			t.Fatal("one payment, two proposals")
		}
		wg.Go(func() {
			err := p.provider.Update(context.Background(), func(tx *Tx) error {
				id, _, err := tx.RecordProposal(proposal)
				if err == nil {
					counters[i], err = tx.Countersign(id)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, c := range counters {
		p.renter.update(func(tx *Tx) error {
			_, err := tx.RecordCounter(c)
			return err
		})
	}
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 0 || got.Settled != 900 {
		t.Fatalf("settled %+v", got)
	}
	p.equal()
	pay.Amount = 901
	err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.Propose(pay)
		return err
	})
	if !errors.Is(err, ErrPaid) {
		t.Error("the same reference for another amount:", err)
	}
	err = p.provider.Update(t.Context(), func(tx *Tx) error { // the other side records the same payment
		pay.Amount = 900
		_, _, err := tx.Propose(pay)
		return err
	})
	if !errors.Is(err, ErrPaid) {
		t.Error("the other side's proposal of the same payment:", err)
	}
}

func TestSettlementToTheMicroUnit(t *testing.T) {
	for _, c := range []struct {
		paid money.Micro
		owed int64
	}{{999, 1}, {1000, 0}, {1001, -1}, {5000, -4000}} {
		p := newPair(t)
		p.pay(p.sell(1, 0), 1000)
		p.settle(p.provider, p.renter, c.paid, "")
		p.equal()
		if got := p.renter.account(ledger.AsRenter, p.provider); got.Owed != c.owed || got.Settled != c.paid {
			t.Errorf("paid %d of 1000: %+v", uint64(c.paid), got)
		}
	}
}

func TestSettlementStates(t *testing.T) {
	p := newPair(t)
	p.pay(p.sell(1, 0), 1000)
	pay := Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 300, Method: "manual", Reference: "r"}
	var id wire.Hash
	var proposal []byte
	p.renter.update(func(tx *Tx) (err error) {
		id, proposal, err = tx.Propose(pay)
		return err
	})
	if err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.Countersign(id)
		return err
	}); !errors.Is(err, ErrRole) {
		t.Error("signed its own proposal twice:", err)
	}
	stranger := newParty(t)
	for name, side := range map[string]*party{"the proposer": p.renter, "a stranger": stranger} {
		err := side.Update(t.Context(), func(tx *Tx) error {
			if _, _, err := tx.KeepDelegation(p.renter.dev.Delegation()); err != nil {
				return err
			}
			_, _, err := tx.RecordProposal(proposal)
			return err
		})
		if !errors.Is(err, ErrRole) {
			t.Errorf("%s records it: %v", name, err)
		}
	}
	p.provider.update(func(tx *Tx) error {
		_, _, err := tx.RecordProposal(proposal)
		return errors.Join(err, tx.Refuse(id, "no money came"))
	})
	if err := p.provider.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.Countersign(id)
		return err
	}); !errors.Is(err, ErrRefused) {
		t.Error("signed what was refused:", err)
	}
	p.renter.update(func(tx *Tx) error { return tx.Refused(id, "no money came") })
	p.settle(p.renter, p.provider, 300, "r") // a refused reference may be proposed again
	p.equal()
}

func TestWaitingIsBounded(t *testing.T) {
	p := newPair(t)
	pay := Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 1, Method: "manual"}
	for i := range maxPeerWaiting + 1 {
		var proposal []byte
		p.renter.update(func(tx *Tx) (err error) {
			_, proposal, err = tx.Propose(pay)
			return err
		})
		err := p.provider.Update(t.Context(), func(tx *Tx) error {
			_, _, err := tx.RecordProposal(proposal)
			return err
		})
		if full := i == maxPeerWaiting; full != errors.Is(err, ErrWaiting) || full == (err == nil) {
			t.Fatalf("proposal %d: %v", i, err)
		}
	}
}

func TestSettlementNeedsEqualLanes(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 400)
	p.provider.update(func(tx *Tx) error { // the renter was not told
		_, err := tx.CloseLane(lane, 300)
		return err
	})
	var proposal []byte
	p.renter.update(func(tx *Tx) (err error) {
		_, proposal, err = tx.Propose(Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 400, Method: "manual"})
		return err
	})
	err := p.provider.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.RecordProposal(proposal)
		return err
	})
	if !errors.Is(err, ErrDiffer) {
		t.Fatal(err)
	}
}

func TestBothProposeOnePayment(t *testing.T) {
	p := newPair(t)
	pay := Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 5, Method: "manual", Reference: "transfer 3"}
	propose := func(side *party) (id wire.Hash, raw []byte) {
		side.update(func(tx *Tx) (err error) {
			id, raw, err = tx.Propose(pay)
			return err
		})
		return id, raw
	}
	id, fromRenter := propose(p.renter)
	_, fromProvider := propose(p.provider)
	if err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.RecordProposal(fromProvider)
		return err
	}); !errors.Is(err, ErrPaid) {
		t.Fatal("the payer took the other proposal beside its own:", err)
	}
	var counter []byte
	p.provider.update(func(tx *Tx) (err error) {
		if _, _, err = tx.RecordProposal(fromRenter); err == nil {
			counter, err = tx.Countersign(id)
		}
		return err
	})
	p.renter.update(func(tx *Tx) error {
		_, err := tx.RecordCounter(counter)
		return err
	})
	terms, err := voucher.OpenSettlement(fromProvider)
	must(t, err)
	terms.Proposal = identity.Hash(fromProvider)
	both, err := voucher.SignSettlement(p.renter.dev, terms)
	must(t, err)
	if err := p.provider.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.RecordCounter(both)
		return err
	}); !errors.Is(err, ErrPaid) {
		t.Fatal("one payment counted twice:", err)
	}
	p.equal()
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Settled != 5 {
		t.Fatalf("%+v", got)
	}
}
