package books

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// replace closes a ledger and opens it with another device of the account, as after `identity rotate --device`.
func (p *party) replace(dev *identity.Device) *party {
	p.tb.Helper()
	must(p.tb, p.Close())
	next := openParty(p.tb, dev, p.engine, p.dir, p.Books.limits)
	must(p.tb, next.KeepOwn(p.tb.Context()))
	return next
}

// TestReplacedDevice: the ledger goes on under the account's new device. What the old one signed stays, the new one settles it and opens
// leases of its own, and the peer lets the old one do nothing more.
func TestReplacedDevice(t *testing.T) {
	account := newPerson(t)
	old := account.device(1, identity.AllPowers)
	p := pairOf{renter: account.pc(old), provider: newParty(t)}
	p.meet()
	must(t, p.renter.KeepOwn(t.Context()))
	lane := p.sell(1, 1000)
	p.pay(lane, 3000)
	p.close(lane, 3000)
	entries := p.renter.size()

	next := account.device(2, identity.AllPowers)
	p.renter = p.renter.replace(next)
	if err := p.renter.ReadOnly(); err != nil {
		t.Fatalf("under the new device: %v", err)
	}
	if got := p.renter.size(); got != entries {
		t.Errorf("%d entries, there were %d", got, entries)
	}
	learn(p.provider, account.revoke(old.Peer(), 1))
	p.meet()
	p.settle(p.renter, p.provider, 1000, "r1")
	p.settle(p.provider, p.renter, 500, "r2")
	second := p.sell(2, 1000)
	p.pay(second, 200)
	p.equal()
	if a := p.provider.account(ledger.AsProvider, p.renter); a.Owed != 1700 || a.Settled != 1500 || a.Lanes != 2 {
		t.Errorf("the provider counts %+v over both devices", a)
	}
	err := p.renter.Update(t.Context(), func(t *Tx) error { _, err := t.SignVoucher(lane, 3001, nil); return err })
	if !errors.Is(err, voucher.ErrSigner) {
		t.Errorf("the new device raises a lane of the old one: %v", err)
	}
	// A restart, over the store as it is and over one made again from the journal.
	for _, fresh := range []bool{false, true} {
		again := p.renter.reopen(fresh)
		if err := again.ReadOnly(); err != nil {
			t.Errorf("after a restart, fresh store %v: %v", fresh, err)
		}
		again.verified(ResultOK)
	}
}

// TestForeignHead: a head note by a device that never was this ledger's is no proof of anything; the ledger opens read-only.
func TestForeignHead(t *testing.T) {
	account := newPerson(t)
	p := account.pc(account.device(1, identity.AllPowers))
	must(t, p.KeepOwn(t.Context()))
	stranger := newDevice(t)
	p.update(func(t *Tx) error { _, _, err := t.KeepDelegation(stranger.Delegation()); return err }) // as of whoever was dealt with
	sister := account.device(4, identity.AllPowers)
	p.update(func(t *Tx) error { _, _, err := t.KeepDelegation(sister.Delegation()); return err }) // as of a payment that it made
	must(t, p.Close())
	for what, dev := range map[string]*identity.Device{
		"another account's": stranger, "of the account, but not of this ledger": account.device(3, identity.AllPowers), "of a sister device": sister,
	} {
		other := openParty(t, dev, copyEngine(t, p.engine), filepath.Join(t.TempDir(), "ledger"), testLimits)
		must(t, other.Close()) // writes its head note
		note, err := os.ReadFile(filepath.Join(other.dir, headName))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(p.dir, headName), note, 0o600))
		again := p.reopen(false)
		if err := again.ReadOnly(); !errors.Is(err, ErrForged) {
			t.Errorf("a head note %s: %v", what, err)
		}
	}
}

// TestHanging counts what only the device itself can bring to its end.
func TestHanging(t *testing.T) {
	hanging := func(p *party) (h Hanging) {
		p.view(func(r *Reader) (err error) { h, err = r.Hanging(); return err })
		return h
	}
	p := newPair(t)
	expect := func(what string, renter, provider Hanging) {
		t.Helper()
		if got := hanging(p.renter); got != renter {
			t.Errorf("%s: on the renter's device hangs %+v, want %+v", what, got, renter)
		}
		if got := hanging(p.provider); got != provider {
			t.Errorf("%s: on the provider's device hangs %+v, want %+v", what, got, provider)
		}
	}
	expect("nothing", Hanging{}, Hanging{})
	lane := p.sell(1, 1000)
	expect("a lease", Hanging{Running: 1}, Hanging{Running: 1})
	p.pay(lane, 500)
	p.promise(lane, 900)
	p.close(lane, 900)
	expect("a voucher on its way", Hanging{Unconfirmed: 1}, Hanging{})
	p.pay(lane, 900)
	expect("it was received", Hanging{}, Hanging{})
	other := p.sell(2, 100)
	p.pay(other, 50)
	p.close(other, 60)
	expect("the last voucher is to be signed", Hanging{Unconfirmed: 1}, Hanging{})
	p.pay(other, 60)
	channel := p.renter.Channel(p.provider.Self(), money.Credit)
	p.renter.update(func(t *Tx) error { return t.Hold([32]byte{9}, channel, 5) })
	expect("a bid", Hanging{Holds: 1}, Hanging{})
	p.renter.update(func(t *Tx) error { return t.VoidHold([32]byte{9}) })
	p.provider.update(func(t *Tx) error {
		_, _, err := t.Propose(Payment{Channel: channel, Amount: 10, Method: "manual"})
		return err
	})
	expect("a proposal", Hanging{}, Hanging{Proposals: 1})
	p.renter.update(func(t *Tx) error { _, err := t.OpenDispute(lane, "it never ran", twoWeeks); return err })
	expect("a dispute", Hanging{Disputes: 1}, Hanging{Proposals: 1})
}

// TestHangingClearing: a circle hangs on a device until it counts and one other member has all signatures: that one brings them to the rest.
func TestHangingClearing(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	a, b := r.all[0], r.all[1]
	hanging := func(want int, when string) {
		t.Helper()
		var h Hanging
		a.view(func(rd *Reader) (err error) { h, err = rd.Hanging(); return err })
		if h.Clearings != want {
			t.Errorf("%s: %d clearings hang on the device, want %d", when, h.Clearings, want)
		}
	}
	terms := r.terms(700)
	r.gather(terms)
	hanging(1, "it is under way")
	_, err := a.complete(r.id(terms))
	must(t, err)
	hanging(1, "it counts, and only here")
	a.update(func(tx *Tx) error { return tx.ToldClearing(r.id(terms), b.dev.Peer()) })
	hanging(0, "another member has it")
}

// TestSisterClearing: a clearing of another device of the account stays out of a ledger that was lost.
func TestSisterClearing(t *testing.T) {
	account, owner := newPerson(t), newParty(t)
	sister := account.pc(account.device(1, identity.AllPowers))
	r := ringOf(t, []*party{sister, owner, newParty(t)}, 1000, 1000, 1000)
	terms := r.terms(700)
	r.gather(terms)
	done, err := sister.complete(r.id(terms))
	must(t, err)
	owner.hear(terms, done.Words())
	lost := account.pc(account.device(2, identity.AllPowers))
	_, _, cleared := owner.copies(lost, 9)
	if len(cleared) != 1 {
		t.Fatalf("%d clearings", len(cleared))
	}
	adopt := func() (changed bool, err error) {
		err = lost.Update(t.Context(), func(tx *Tx) (err error) { changed, err = tx.AdoptClearing(owner.Self(), cleared[0]); return err })
		return changed, err
	}
	var of *SisterError
	if _, err := adopt(); !errors.As(err, &of) || of.Device != sister.dev.Peer() {
		t.Errorf("a sister's clearing: %v", err)
	}
	lost.update(func(tx *Tx) error { return tx.Take(sister.dev.Peer()) })
	if changed, err := adopt(); err != nil || !changed {
		t.Errorf("when its device was taken over: %v", err)
	}
	var h Hanging
	lost.view(func(rd *Reader) (err error) { h, err = rd.Hanging(); return err })
	if h.Clearings != 0 {
		t.Errorf("%d clearings hang on the device, and another member gave them back", h.Clearings)
	}
}

// TestPartlyPaid: a lease that a payment covers in part is not settled, and says so as `ledger owed` does.
func TestPartlyPaid(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 600)
	settled := func(want bool, when string) {
		t.Helper()
		for _, side := range []*party{p.renter, p.provider} {
			side.view(func(r *Reader) error {
				v, err := r.ShowLane(lane)
				if err != nil || v.Settled != want {
					t.Errorf("%s: settled %v, %v", when, v.Settled, err)
				}
				return nil
			})
		}
	}
	settled(false, "before")
	p.settle(p.renter, p.provider, 100, "while it runs")
	settled(false, "running, in part")
	p.close(lane, 600)
	settled(false, "ended, in part")
	p.settle(p.renter, p.provider, 500, "the rest")
	settled(true, "in full")
}

// TestPaymentListsWhatItPaysOff: the payment that covers the rest of a lease lists it, though an earlier one did, so that the lease's proof shows
// it paid, and one that covers only a part lists the oldest.
func TestPaymentListsWhatItPaysOff(t *testing.T) {
	p := newPair(t)
	var lanes []ledger.Lane
	for i := range byte(3) {
		lane := p.sell(9-i, 0)
		p.pay(lane, 400)
		p.close(lane, 400)
		lanes = append(lanes, lane)
		time.Sleep(2 * time.Millisecond) // the oldest is the first by its end
	}
	p.settle(p.renter, p.provider, 300, "a part of the first")
	p.settle(p.renter, p.provider, 200, "its rest, and a part of the second")
	p.settle(p.renter, p.provider, 5000, "the rest")
	listed := []int{2, 1, 1} // payments that list each
	for i := range lanes {
		for _, side := range []*party{p.renter, p.provider} {
			side.view(func(r *Reader) error {
				f, err := r.Prove(lanes[i], nil)
				must(t, err)
				raw, err := f.Encode()
				must(t, err)
				if v := proof.Check(raw); v.Result != proof.OK || v.PaidAtLeast != "0.0004" || v.LeftAtMost != "0" || len(v.Settlements) != listed[i] {
					t.Errorf("lease %d: %+v", i, v)
				}
				return nil
			})
		}
	}
	p.equal()
}
