package books

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// weakDevice is a device with few powers and a small cap, of an account of its own.
func weakDevice(t *testing.T, powers identity.Powers, limit uint64) *identity.Device {
	t.Helper()
	_, account, err := ed25519.GenerateKey(nil)
	must(t, err)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	raw, err := identity.Delegate(account, identity.PeerID(key.Public().(ed25519.PublicKey)), 1, powers, limit)
	must(t, err)
	dev, err := identity.NewDevice(key, raw)
	must(t, err)
	return dev
}

// An entry is posted once, whoever asks again.
func TestEntryOnce(t *testing.T) {
	p := newParty(t)
	e := ledger.Entry{
		ID: wire.Hash{1}, Kind: ledger.KindUsage, Peer: identity.AccountID{1},
		Postings: pair(money.Credit, ledger.Account{Kind: ledger.Expense}, ledger.Account{Kind: ledger.Payable, Peer: identity.AccountID{1}}, 5),
	}
	p.update(func(tx *Tx) error {
		for i := range 2 {
			if added, err := tx.post(e); err != nil || added != (i == 0) {
				t.Errorf("post %d: %v, %v", i, added, err)
			}
		}
		return nil
	})
	if p.size() != 1 {
		t.Fatalf("%d entries", p.size())
	}
}

func TestSignVoucherCap(t *testing.T) {
	dev := weakDevice(t, identity.AllPowers, 100)
	p := pairOf{renter: openParty(t, dev, &kv.Memory{}, t.TempDir(), nil), provider: newParty(t)}
	p.meet()
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	err := p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.SignVoucher(lane, 101, nil)
		return err
	})
	if !errors.Is(err, voucher.ErrCap) {
		t.Fatal(err)
	}
	p.equal()
}

// A device whose account never let it pay can't settle, on either side of the conversation.
func TestSettlersNeedPowers(t *testing.T) {
	weak := openParty(t, weakDevice(t, identity.PowerTrade, 100), &kv.Memory{}, t.TempDir(), nil)
	p := pairOf{renter: weak, provider: newParty(t)}
	p.meet()
	c := weak.Channel(p.provider.Self(), money.Credit)
	var proposal []byte
	err := weak.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.Propose(Payment{Channel: c, Amount: 5, Method: "manual"})
		return err
	})
	if !errors.Is(err, identity.ErrPower) {
		t.Errorf("its own side lets it: %v", err)
	}
	weak.view(func(r *Reader) error { // a program that does not care
		cp, err := r.Checkpoint()
		if err == nil {
			proposal, err = voucher.SignSettlement(weak.dev, voucher.Settlement{
				Channel: c.AllEpochs(), Nonce: wire.Hash{1}, Amount: 5, Method: "manual", Time: 1, Checkpoint: cp,
			})
		}
		return err
	})
	err = p.provider.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.RecordProposal(proposal)
		return err
	})
	if !errors.Is(err, identity.ErrPower) {
		t.Fatal(err)
	}
}

// A countersignature under other terms books nothing.
func TestCounterUnderOtherTerms(t *testing.T) {
	p := newPair(t)
	c := p.renter.Channel(p.provider.Self(), money.Credit)
	var proposal []byte
	p.renter.update(func(tx *Tx) (err error) {
		_, proposal, err = tx.Propose(Payment{Channel: c, Amount: 500, Method: "manual"})
		return err
	})
	terms, err := voucher.OpenSettlement(proposal)
	must(t, err)
	terms.Proposal = identity.Hash(proposal)
	terms.Amount = 5
	counter, err := voucher.SignSettlement(p.provider.dev, terms)
	must(t, err)
	err = p.renter.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.RecordCounter(counter)
		return err
	})
	if !errors.Is(err, voucher.ErrTerms) || p.renter.size() != 0 {
		t.Fatal(err)
	}
}

// Every voucher carries a checkpoint of its signer's log, or it is not taken.
func TestVoucherNeedsCheckpoint(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	l := p.renter.lane(lane)
	foreign := []byte(nil)
	p.provider.view(func(r *Reader) (err error) {
		foreign, err = r.Checkpoint()
		return err
	})
	for name, cp := range map[string][]byte{"none": nil, "garbage": []byte("x"), "of another device": foreign} {
		v, err := voucher.Sign(p.renter.dev, voucher.Voucher{Channel: l.Channel, Lane: lane, Seq: 1, Amount: 5, Prev: l.Voucher, Checkpoint: cp})
		must(t, err)
		if _, err := p.deliver(v.Raw); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if got := p.provider.lane(lane); got.Seq != 0 {
		t.Fatalf("%+v", got)
	}
}
