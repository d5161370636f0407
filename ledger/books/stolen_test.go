package books

import (
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
)

// total is how peer stands with p over all.
func (p *party) total(peer identity.AccountID) (out Total) {
	p.tb.Helper()
	p.view(func(r *Reader) error {
		all, err := r.Totals()
		for _, t := range all {
			if t.Peer == peer {
				out = t
			}
		}
		return err
	})
	return out
}

// TestSpendsWhileEarns: one PC of an account spends while another earns. To the other side they are one party, and what the PCs' ledgers
// say together is what its ledger says, whichever PC pays or is paid.
func TestSpendsWhileEarns(t *testing.T) {
	p, other := newPerson(t), newParty(t)
	laptop := p.pc(p.device(1, identity.PowerTrade|identity.PowerPay))
	desktop := p.pc(p.device(2, identity.AllPowers))
	spends, earns := pairOf{laptop, other}, pairOf{other, desktop}
	spends.meet()
	earns.meet()
	bought, sold := spends.sell(1, 1000), earns.sell(2, 1000)
	for i := range money.Micro(30) { // both at once
		spends.pay(bought, 100*(i+1))
		earns.pay(sold, 70*(i+1))
	}
	sum := func(what string, owed, owes int64) {
		t.Helper()
		got := other.total(p.self())
		if got.OwedToMe != ledger.Positive(owed) || got.IOwe != ledger.Positive(owes) {
			t.Errorf("%s: the other side counts %v owed and %v to pay, want %d and %d", what, got.OwedToMe, got.IOwe, owed, owes)
		}
		mine, theirs := int64(0), int64(0)
		for _, pc := range []*party{laptop, desktop} {
			mine += pc.account(ledger.AsRenter, other).Owed
			theirs += pc.account(ledger.AsProvider, other).Owed
			pc.verified(ResultOK)
		}
		other.verified(ResultOK)
		if mine != owed || theirs != owes {
			t.Errorf("%s: the PCs together owe %d and are owed %d, want %d and %d", what, mine, theirs, owed, owes)
		}
	}
	sum("before a payment", 3000, 2100)
	if room := func() (room money.Micro) {
		other.view(func(r *Reader) (err error) { room, _, err = r.Room(p.self(), money.Credit); return err })
		return room
	}(); room != testLimits[money.Credit].Stranger-3000 {
		t.Errorf("what one PC earns is credit for the other: room for %v", room)
	}
	earns.settle(other, desktop, 600, "paid to the desktop")
	spends.settle(laptop, other, 500, "paid by the laptop")
	pairOf{desktop, other}.settle(desktop, other, 1000, "paid by the desktop for the laptop")
	sum("after three payments", 1500, 1500)
	spends.close(bought, 3000)
	earns.close(sold, 2100)
	sum("at the end", 1500, 1500)
}

func (p *person) self() identity.AccountID {
	return p.device(9, identity.PowerTrade).Account()
}

// TestStolenLaptop: a PC of an account is stolen in the middle of a lease, with vouchers that nobody has seen, a dispute and a clearing under
// way. Once the revocation is here the thief gets nothing, the other side loses at most what it had metered and nobody had signed for, and the
// account pays what is owed from another PC.
func TestStolenLaptop(t *testing.T) {
	p, stranger := newPerson(t), newParty(t)
	device := p.device(1, identity.AllPowers)
	laptop := p.pc(device)
	r := ringOf(t, []*party{newParty(t), laptop, newParty(t)}, 1000, 700, 900)
	debtor, victim := r.all[0], r.all[2] // who owes the laptop, and whom it owes
	pair := pairOf{laptop, victim}
	lane := pair.sell(20, 1000)
	pair.pay(lane, 3000)
	held := pair.promise(lane, 3400) // signed, and kept back
	disputed := pair.sell(21, 0)
	pair.pay(disputed, 200)
	pair.close(disputed, 200)
	pair.close(r.lanes[1], 700)
	clearing := r.terms(100)
	r.gather(clearing)
	victim.update(func(t *Tx) error { return t.Meter(lane, 3500) })

	for _, knows := range []*party{debtor, victim, stranger} {
		_, err := knows.KeepRevocation(t.Context(), p.revoke(device.Peer(), 1))
		must(t, err)
	}
	before := victim.account(ledger.AsProvider, laptop)
	thiefTries(t, p, pair, lane, disputed, held)
	if _, err := debtor.complete(r.id(clearing)); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("the clearing: %v", err)
	}
	// A stranger keeps no revocations (it has not dealt with the account): the thief gets there what any stranger gets.
	if _, err := rent(laptop, stranger, 32); err != nil {
		t.Errorf("at somebody who never heard of the account: %v", err)
	}
	if got := victim.account(ledger.AsProvider, laptop); got.Owed != before.Owed || got.Lanes != before.Lanes || got.Settled != before.Settled {
		t.Errorf("the thief changed %+v to %+v", before, got)
	}
	// The victim ends the lease. What it metered and nobody signed for is its loss, and stays on the account's exposure.
	victim.update(func(t *Tx) error { _, err := t.CloseLane(lane, 3500); return err })
	after := victim.account(ledger.AsProvider, laptop)
	if after.Owed != 3900 || after.Open != 500 {
		t.Errorf("after the end the account owes %d and has %v open, want 3900 and 500", after.Owed, after.Open)
	}
	// The account's other PC pays it all, and rents again.
	desktop := p.pc(p.device(2, identity.AllPowers))
	home := pairOf{desktop, victim}
	home.meet()
	home.settle(desktop, victim, 3900, "for the stolen one")
	if got := victim.account(ledger.AsProvider, laptop); got.Owed != 0 || got.Settled != 3900 {
		t.Errorf("after the payment: %+v", got)
	}
	if _, err := rent(desktop, victim, 40); err != nil {
		t.Errorf("the account's other PC: %v", err)
	}
	// Who was to sign last ends the clearing, and nothing is set aside for it any more.
	c, err := debtor.refuse(clearing)
	must(t, err)
	if got := victim.hear(clearing, c.Words()); got.State == netting.Cleared || victim.aside(ledger.AsProvider, laptop) != 0 {
		t.Errorf("the clearing ends as %s, with %v set aside", got.State, victim.aside(ledger.AsProvider, laptop))
	}
	for _, one := range []*party{debtor, victim} {
		one.verified(ResultOK)
	}
}

// thiefTries lets the thief try all that the stolen PC could do; the victim has heard of the revocation.
func thiefTries(t *testing.T, p *person, pair pairOf, lane, disputed ledger.Lane, held []byte) {
	t.Helper()
	laptop, victim := pair.renter, pair.provider
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, identity.ErrRevoked) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a voucher of before that was kept back", give(victim, held))
	_, err := pair.deliver(pair.promise(lane, 3600))
	refused("a new voucher", err)
	_, err = rent(laptop, victim, 30)
	refused("a new lane", err)
	refused("an allowance", pair.allows(lane, 5000, 9000))
	refused("a dispute", func() error {
		var raw []byte
		laptop.update(func(t *Tx) (err error) { raw, err = t.OpenDispute(disputed, "not mine", twoWeeks); return err })
		return victim.Update(t.Context(), func(t *Tx) error { return t.RecordDispute(raw) })
	}())
	refused("a payment that the thief says he made", func() error {
		var raw []byte
		laptop.update(func(t *Tx) (err error) {
			_, raw, err = t.Propose(Payment{Channel: laptop.Channel(victim.Self(), money.Credit), Amount: 3700, Method: "manual"})
			return err
		})
		return victim.Update(t.Context(), func(t *Tx) error { _, _, err := t.RecordProposal(raw); return err })
	}())
	again := p.pc(laptop.dev) // he installs the old grant on another machine
	_, err = rent(again, victim, 31)
	refused("a lane on the old grant", err)
}
