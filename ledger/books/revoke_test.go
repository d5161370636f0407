package books

import (
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// person is an account with its key, whose PCs the tests make.
type person struct {
	t   testing.TB
	key ed25519.PrivateKey
}

func newPerson(t testing.TB) *person {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	return &person{t: t, key: key}
}

// device is a new PC's device under the account.
func (p *person) device(serial uint64, powers identity.Powers) *identity.Device {
	p.t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	must(p.t, err)
	return p.grant(key, serial, powers)
}

func (p *person) grant(key ed25519.PrivateKey, serial uint64, powers identity.Powers) *identity.Device {
	p.t.Helper()
	raw, err := identity.Delegate(p.key, identity.PeerID(key.Public().(ed25519.PublicKey)), serial, powers, identity.DefaultCap)
	must(p.t, err)
	dev, err := identity.NewDevice(key, raw)
	must(p.t, err)
	return dev
}

// pc is a PC of the account with a ledger of its own.
func (p *person) pc(dev *identity.Device) *party {
	p.t.Helper()
	return openParty(p.t, dev, &kv.Memory{}, filepath.Join(p.t.(interface{ TempDir() string }).TempDir(), "ledger"), testLimits)
}

func (p *person) revoke(device identity.PeerID, serial uint64) []byte {
	p.t.Helper()
	raw, err := identity.Revoke(p.key, device, serial, 0)
	must(p.t, err)
	return raw
}

// rent opens a lane between pc and provider; the error is the provider's.
func rent(pc, provider *party, n byte) (Opening, error) {
	o := Opening{Channel: pc.Channel(provider.Self(), money.Credit), Lane: ledger.Lane{n, 7}, Rate: 3_600_000, Devices: 1, Hold: 1000}
	var first []byte
	pc.update(func(t *Tx) (err error) { first, err = t.Promise(o); return err })
	return o, provider.Update(pc.tb.Context(), func(t *Tx) error {
		_, err := t.OpenLane(o, first, pc.dev.Delegation())
		return err
	})
}

// pay signs an amount on a lane and gives it to the provider.
func pay(pc, provider *party, o Opening, amount money.Micro) (raw []byte, err error) {
	pc.update(func(t *Tx) (err error) {
		raw, err = t.SignVoucher(o.Lane, amount, []meter.Segment{{Rate: o.Rate, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	return raw, give(provider, raw)
}

func give(provider *party, raw []byte) error {
	return provider.Update(provider.tb.Context(), func(t *Tx) error {
		_, err := t.AcceptVoucher(raw, wire.Hash{})
		return err
	})
}

func learn(p *party, raw []byte) (kept bool) {
	p.tb.Helper()
	kept, err := p.KeepRevocation(p.tb.Context(), raw)
	must(p.tb, err)
	return kept
}

// TestRevokedDevice: what a device signed before stays owed, and it signs nothing more; the account's other PC goes on.
func TestRevokedDevice(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	laptopDevice := p.device(1, identity.AllPowers)
	laptop, desktop := p.pc(laptopDevice), p.pc(p.device(2, identity.AllPowers))
	lane, err := rent(laptop, provider, 1)
	must(t, err)
	first, err := pay(laptop, provider, lane, 3000)
	must(t, err)
	other, err := rent(desktop, provider, 2)
	must(t, err)
	if _, err := pay(desktop, provider, other, 2000); err != nil {
		t.Fatal(err)
	}
	// One account's exposure is counted over both devices.
	if a := provider.account(ledger.AsProvider, laptop); a.Owed != 5000 || a.Lanes != 2 {
		t.Fatalf("the provider counts %+v", a)
	}
	late, revocation := provider, p.revoke(laptopDevice.Peer(), 1)
	for range 2 { // the second time nothing is new
		if !learn(provider, revocation) {
			t.Fatal("the revocation of a partner's device was not kept")
		}
	}
	if _, err := pay(laptop, late, lane, 4000); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a new voucher: %v", err)
	}
	if err := give(provider, first); err != nil {
		t.Errorf("a voucher that is here already: %v", err)
	}
	if _, err := rent(laptop, provider, 3); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a new lane: %v", err)
	}
	if _, err := pay(desktop, provider, other, 2500); err != nil {
		t.Errorf("the account's other device: %v", err)
	}
	if a := provider.account(ledger.AsProvider, laptop); a.Owed != 5500 {
		t.Errorf("the provider counts %+v", a)
	}
	must(t, provider.Update(t.Context(), func(t *Tx) error { _, err := t.CloseLane(lane.Lane, 3000); return err }))
	provider.verified(ResultOK)
	// It stays so over a restart, and a lower revocation changes nothing.
	again := provider.reopen(true)
	learn(again, p.revoke(laptopDevice.Peer(), 0))
	if _, err := rent(laptop, again, 4); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a new lane after a restart: %v", err)
	}
}

// TestReadmittedDevice: a newer delegation lets the device in again; lanes of the void one stay closed to it.
func TestReadmittedDevice(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	old := p.pc(p.grant(key, 1, identity.AllPowers))
	lane, err := rent(old, provider, 1)
	must(t, err)
	learn(provider, p.revoke(old.dev.Peer(), 5))
	if _, err := rent(old, provider, 2); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("links again with the old grant: %v", err)
	}
	again := p.pc(p.grant(key, 6, identity.AllPowers))
	if _, err := rent(again, provider, 3); err != nil {
		t.Errorf("with a newer grant: %v", err)
	}
	if _, err := pay(old, provider, lane, 100); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a lane under the void delegation: %v", err)
	}
}

// TestRevokedSettler: no payment is recorded on the word of a revoked device.
func TestRevokedSettler(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	laptop := p.pc(p.device(1, identity.AllPowers))
	lane, err := rent(laptop, provider, 1)
	must(t, err)
	if _, err := pay(laptop, provider, lane, 3000); err != nil {
		t.Fatal(err)
	}
	var proposal []byte
	laptop.update(func(t *Tx) (err error) {
		_, proposal, err = t.Propose(Payment{Channel: lane.Channel, Amount: 1000, Method: "manual", Reference: "r1"})
		return err
	})
	learn(provider, p.revoke(laptop.dev.Peer(), 1))
	record := func(t *Tx) error {
		_, _, err := t.KeepDelegation(laptop.dev.Delegation())
		if err == nil {
			_, _, err = t.RecordProposal(proposal)
		}
		return err
	}
	if err := provider.Update(t.Context(), record); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a proposal: %v", err)
	}
	// The other way: the provider proposes, the revoked device countersigns.
	var counter []byte
	provider.update(func(t *Tx) (err error) {
		_, proposal, err = t.Propose(Payment{Channel: lane.Channel, Amount: 1000, Method: "manual", Reference: "r2"})
		return err
	})
	laptop.update(func(t *Tx) error {
		if _, _, err := t.KeepDelegation(provider.dev.Delegation()); err != nil {
			return err
		}
		id, _, err := t.RecordProposal(proposal)
		if err == nil {
			counter, err = t.Countersign(id)
		}
		return err
	})
	err = provider.Update(t.Context(), func(t *Tx) error {
		_, _, err := t.KeepDelegation(laptop.dev.Delegation())
		if err == nil {
			_, err = t.RecordCounter(counter)
		}
		return err
	})
	if !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a countersignature: %v", err)
	}
}

// TestRevokedMember: nobody agrees to a clearing with a device that its account let go, but all agreements together stay final.
func TestRevokedMember(t *testing.T) {
	p := newPerson(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	r := ringOf(t, []*party{newParty(t), p.pc(p.grant(key, 1, identity.AllPowers)), newParty(t)}, 1000, 700, 900)
	debtor, laptop, creditor := r.all[0], r.all[1], r.all[2]
	first := r.terms(100)
	r.gather(first)
	for _, knows := range []*party{debtor, creditor} {
		learn(knows, p.revoke(laptop.dev.Peer(), 5))
	}
	if _, err := debtor.complete(r.id(first)); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("signs last: %v", err)
	}
	second := r.terms(100)
	if err := debtor.propose(second); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("proposes: %v", err)
	}
	if _, err := creditor.agree(second); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("agrees: %v", err)
	}
	var words []netting.Word
	for _, member := range r.all {
		said, err := netting.Sign(member.dev, first, false)
		must(t, err)
		words = append(words, said.Word)
	}
	if got := creditor.hear(first, words); got.State != netting.Cleared {
		t.Errorf("all have signed: %s", got.State)
	}
	again := p.pc(p.grant(key, 6, identity.AllPowers))
	if _, err := rent(again, creditor, 9); err != nil {
		t.Fatal(err)
	}
	if _, err := creditor.agree(second); err != nil {
		t.Errorf("agrees when the device was let in again: %v", err)
	}
}

// TestRevokedDisputer: a device that was let go opens no dispute and signs no credit note; what it signed before may be repeated.
func TestRevokedDisputer(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	laptop := p.pc(p.device(1, identity.AllPowers))
	pairOf{laptop, provider}.meet()
	var lanes []ledger.Lane
	var disputes [][]byte
	for n := range byte(2) {
		o, err := rent(laptop, provider, n+1)
		must(t, err)
		if _, err := pay(laptop, provider, o, 600); err != nil {
			t.Fatal(err)
		}
		pairOf{laptop, provider}.close(o.Lane, 600)
		lanes = append(lanes, o.Lane)
	}
	for _, lane := range lanes {
		laptop.update(func(t *Tx) error {
			raw, err := t.OpenDispute(lane, "x", twoWeeks)
			disputes = append(disputes, raw)
			return err
		})
	}
	provider.update(func(t *Tx) error { return t.RecordDispute(disputes[0]) })
	laptop.update(func(t *Tx) error { return t.OfferCredit(lanes[0], 100) })
	learn(provider, p.revoke(laptop.dev.Peer(), 1))
	record := func(raw []byte, f func(*Tx, []byte) error) error {
		return provider.Update(t.Context(), func(t *Tx) error { return f(t, raw) })
	}
	if err := record(disputes[0], (*Tx).RecordDispute); err != nil {
		t.Errorf("a dispute that is here already: %v", err)
	}
	if err := record(disputes[1], (*Tx).RecordDispute); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a new dispute: %v", err)
	}
	if err := record(laptop.disputeOf(lanes[0]).Offer, (*Tx).RecordNote); !errors.Is(err, identity.ErrRevoked) {
		t.Errorf("a credit note: %v", err)
	}
	provider.verified(ResultOK)
}

// TestRevocationsBounded: strangers make us keep nothing, and a partner so many as it may have devices.
func TestRevocationsBounded(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	laptop := p.pc(p.device(1, identity.AllPowers))
	if learn(provider, p.revoke(laptop.dev.Peer(), 1)) {
		t.Error("a stranger's revocation was kept")
	}
	if _, err := rent(laptop, provider, 1); err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i := range 2 * identity.MaxDevices {
		if learn(provider, p.revoke(identity.PeerID{byte(i), 5}, 1)) {
			kept++
		}
	}
	if kept != identity.MaxDevices {
		t.Errorf("%d kept, want %d", kept, identity.MaxDevices)
	}
	all, err := provider.Revocations(t.Context())
	if err != nil || len(all) != identity.MaxDevices {
		t.Errorf("%d stored, %v", len(all), err)
	}
	if !learn(provider, p.revoke(identity.PeerID{0, 5}, 9)) {
		t.Error("a higher one of a device that is kept was not")
	}
	if _, err := provider.KeepRevocation(t.Context(), laptop.dev.Delegation()); err == nil {
		t.Error("a delegation was taken for a revocation")
	}
}

// TestPowersOfTheLedger: a device that may not pay proposes no settlement as a renter, and one that may not provide none as a provider.
func TestPowersOfTheLedger(t *testing.T) {
	p, other := newPerson(t), newParty(t)
	for powers, channel := range map[identity.Powers]func(*party) ledger.Channel{
		identity.PowerProvide: func(pc *party) ledger.Channel { return pc.Channel(other.Self(), money.Credit) },
		identity.PowerPay:     func(pc *party) ledger.Channel { return other.Channel(pc.Self(), money.Credit) },
	} {
		pc := p.pc(p.device(1, powers))
		err := pc.Update(t.Context(), func(tx *Tx) error {
			_, _, err := tx.Propose(Payment{Channel: channel(pc), Amount: 1000, Method: "manual", Reference: "r"})
			return err
		})
		if !errors.Is(err, identity.ErrPower) {
			t.Errorf("with %s: %v", powers, err)
		}
	}
}

// TestNewGrantMidLane: a device that is granted other powers goes on with its lanes under the delegation that they were opened with.
func TestNewGrantMidLane(t *testing.T) {
	p, provider := newPerson(t), newParty(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	laptop := p.pc(p.grant(key, 1, identity.AllPowers))
	must(t, laptop.KeepOwn(t.Context()))
	lane, err := rent(laptop, provider, 1)
	must(t, err)
	must(t, laptop.Close())
	laptop = openParty(t, p.grant(key, 2, identity.PowerProvide), laptop.engine, laptop.dir, testLimits)
	must(t, laptop.KeepOwn(t.Context()))
	raw, err := pay(laptop, provider, lane, 3000)
	must(t, err)
	if v, err := voucher.Open(raw); err != nil || v.Delegation == laptop.dev.DelegationHash() {
		t.Errorf("signed under the new delegation: %v", err)
	}
	laptop.verified(ResultOK)
	provider.verified(ResultOK)
}

// TestUntouched tells a ledger that was never used from one that was, by its files.
func TestUntouched(t *testing.T) {
	p := newParty(t)
	must(t, Untouched(filepath.Join(p.dir, "not there")))
	must(t, p.KeepOwn(t.Context()))
	must(t, Untouched(p.dir))
	other := newParty(t)
	_, err := rent(p, other, 1)
	must(t, err)
	if Untouched(p.dir) == nil {
		t.Error("a ledger with a lane is untouched before its head note is written")
	}
	must(t, p.Close())
	if Untouched(p.dir) == nil {
		t.Error("a ledger with a lane is untouched")
	}
}
