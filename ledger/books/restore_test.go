package books

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// restored opens a ledger over a copy of an engine, as a restore from a backup does: without journal and head note, in a new epoch.
func (p *party) restored(backup kv.Engine, at time.Time) *party {
	p.tb.Helper()
	engine := copyEngine(p.tb, backup)
	store, err := kv.Open(p.tb.Context(), engine, schema)
	must(p.tb, err)
	epoch, err := NewEpoch(p.tb.Context(), store, p.dev, 0, at)
	must(p.tb, err)
	back := openParty(p.tb, p.dev, engine, p.tb.(interface{ TempDir() string }).TempDir(), p.Books.limits)
	if back.Epoch() != epoch || epoch < uint32(at.Unix()) {
		p.tb.Fatalf("epoch %d, made %d at %d", back.Epoch(), epoch, at.Unix())
	}
	return back
}

// copies gives all that one side has of the other, page by page.
func (p *party) copies(of *party, page int) (lanes []LaneCopy, settled []SettledCopy, cleared []ClearingCopy) {
	p.tb.Helper()
	var place []byte
	for {
		var got Page
		p.view(func(r *Reader) (err error) {
			got, err = r.Copies(of.Self(), place, page)
			return err
		})
		if max(len(got.Lanes), len(got.Settled), len(got.Cleared)) > page {
			p.tb.Errorf("%d lanes, %d settlements and %d clearings in a page of %d", len(got.Lanes), len(got.Settled), len(got.Cleared), page)
		}
		lanes, settled, cleared = append(lanes, got.Lanes...), append(settled, got.Settled...), append(cleared, got.Cleared...)
		if place = got.Next; len(place) == 0 {
			return lanes, settled, cleared
		}
	}
}

// terms are what signed records say of a lane, as the test knows it: the sale's, and the end that the provider signed.
func (p *party) terms(c LaneCopy) *Terms {
	if p.records == nil {
		return nil
	}
	t, ok := p.records[c.Lane()]
	if !ok {
		return nil
	}
	if v, err := voucher.Open(c.Vouchers[0]); err == nil && v.Channel.Provider == p.Self() {
		t.Signed = []Signature{{Header: p.dev.Header(1), Delegation: p.dev.DelegationHash()}} // as the lease is
	}
	return &t
}

// recover takes back all that the other side has, and gives how much of it was lost.
func (p *party) recover(other *party) (changed int) {
	p.tb.Helper()
	lanes, settled, cleared := other.copies(p, 2)
	for _, c := range lanes {
		p.update(func(t *Tx) error {
			a, err := t.AdoptLane(other.Self(), c, p.terms(c))
			if a.Changed {
				changed++
			}
			return err
		})
	}
	count := func(new bool, err error) error {
		if new {
			changed++
		}
		return err
	}
	for _, c := range settled {
		p.update(func(t *Tx) error { return count(t.AdoptSettlement(other.Self(), c)) })
	}
	for _, c := range cleared {
		p.update(func(t *Tx) error { return count(t.AdoptClearing(other.Self(), c)) })
	}
	p.update(func(t *Tx) error { return t.Answered(other.Self(), other.dev.Peer()) })
	p.trails(other)
	return changed
}

// trails takes back what lies between.
func (p *party) trails(other *party) {
	p.tb.Helper()
	for {
		var lane ledger.Lane
		var place, next []byte
		var more bool
		var page Trail
		p.view(func(r *Reader) (err error) { lane, place, more, err = r.Wanted(other.Self()); return err })
		if !more {
			return
		}
		other.view(func(r *Reader) (err error) { page, next, err = r.Trail(p.Self(), lane, place); return err })
		p.update(func(t *Tx) error { return t.AdoptTrail(lane, page, next) })
	}
}

func (p *party) toAsk() (list []Pending) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { list, err = r.ToAsk(); return err })
	return list
}

// life is a history of which a backup of both sides was made in its middle.
func life(t *testing.T) (p pairOf, old pairOf) {
	t.Helper()
	p = newPair(t)
	kept, done, open := p.sell(1, 500), p.sell(2, 300), p.sell(3, 400)
	p.pay(kept, 100)
	p.pay(done, 250)
	p.close(done, 250)
	p.pay(open, 40)
	old = pairOf{
		&party{Books: p.renter.Books, tb: t, dev: p.renter.dev, engine: copyEngine(t, p.renter.engine)},
		&party{Books: p.provider.Books, tb: t, dev: p.provider.dev, engine: copyEngine(t, p.provider.engine)},
	}
	p.pay(kept, 700)
	p.settle(p.renter, p.provider, 600, "invoice 1")
	p.pay(open, 90)
	p.close(open, 90)
	late := p.sell(4, 200)
	p.pay(late, 333)
	p.pay(late, 444)
	p.close(late, 444)
	p.settle(p.provider, p.renter, 111, "invoice 2")
	p.pay(kept, 800)
	return p, old
}

// TestRestoreRenter: an old backup of the renter's ledger, against a live provider.
func TestRestoreRenter(t *testing.T) {
	p, old := life(t)
	p.renter = old.renter.restored(old.renter.engine, time.Unix(1_900_000_000, 0))
	_, err := p.renter.sign(ledger.Lane{1}, 900)
	if !errors.Is(err, ErrUnsure) {
		t.Errorf("signed before anybody was asked: %v", err)
	}
	err = p.renter.Update(t.Context(), func(tx *Tx) error {
		_, _, err := tx.Propose(Payment{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: 1, Method: "manual"})
		return err
	})
	if !errors.Is(err, ErrUnsure) {
		t.Errorf("proposed before anybody was asked: %v", err)
	}
	if list := p.renter.toAsk(); len(list) != 1 || list[0].Account != p.provider.Self() {
		t.Fatalf("to ask: %+v", list)
	}
	if n := p.renter.recover(p.provider); n != 5 {
		t.Errorf("%d records were lost, want 3 lanes and 2 settlements", n)
	}
	if n := p.renter.recover(p.provider); n != 0 || len(p.renter.toAsk()) > 0 {
		t.Errorf("asked again: %d lost, %+v to ask", n, p.renter.toAsk())
	}
	p.equal()
	p.pay(ledger.Lane{1}, 1000) // the old lane goes on, with the sequence of the new epoch
	var l Lane
	p.renter.view(func(r *Reader) (err error) { l, err = r.Lane(ledger.Lane{1}); return err })
	if want := uint64(1_900_000_000) << seqGap; l.Seq != want || l.Channel.Epoch != 1 {
		t.Errorf("sequence %d, epoch %d; want %d in epoch 1", l.Seq, l.Channel.Epoch, want)
	}
	p.pay(ledger.Lane{1}, 1001)
	p.pay(p.sell(9, 10), 20) // and a new one is of the new epoch
	p.renter.view(func(r *Reader) (err error) { l, err = r.Lane(ledger.Lane{9}); return err })
	if l.Channel.Epoch != 1_900_000_000 {
		t.Errorf("a new lane is of epoch %d", l.Channel.Epoch)
	}
	p.settle(p.renter, p.provider, 700, "over both epochs")
	p.equal()
}

// TestRestoreProvider: an old backup of the provider's ledger, against a live renter.
func TestRestoreProvider(t *testing.T) {
	p, old := life(t)
	p.provider = old.provider.restored(old.provider.engine, time.Unix(1_900_000_000, 0))
	if n := p.provider.recover(p.renter); n != 5 {
		t.Errorf("%d records were lost, want 3 lanes and 2 settlements", n)
	}
	p.equal()
	p.pay(ledger.Lane{1}, 1000)
	p.pay(p.sell(9, 10), 20)
	p.settle(p.renter, p.provider, 700, "after it")
	p.equal()
}

// TestRestoreBoth: both lost what came after their backups, and agree on what both still have.
func TestRestoreBoth(t *testing.T) {
	p, old := life(t)
	p.provider = old.provider.restored(old.provider.engine, time.Unix(1_900_000_000, 0))
	p.renter = old.renter.restored(old.renter.engine, time.Unix(1_900_000_001, 0))
	p.renter.recover(p.provider)
	p.provider.recover(p.renter)
	p.equal()
	p.pay(ledger.Lane{1}, 150)
	p.equal()
}

// TestRestoreFromNothing: a ledger of which nothing is left is rebuilt from what the other side has.
func TestRestoreFromNothing(t *testing.T) {
	for _, side := range []string{"renter", "provider"} {
		p, _ := life(t)
		lost, other := &p.renter, p.provider
		if side == "provider" {
			lost, other = &p.provider, p.renter
		}
		*lost = (*lost).restored(&kv.Memory{}, time.Unix(1_900_000_000, 0))
		if n := (*lost).recover(other); n != 6 {
			t.Errorf("%s: %d records, want 4 lanes and 2 settlements", side, n)
		}
		for _, s := range []*party{p.renter, p.provider} {
			s.verified(ResultOK)
		}
		if a, b := p.renter.account(ledger.AsRenter, p.provider), p.provider.account(ledger.AsProvider, p.renter); a.Owed != b.Owed || a.Settled != b.Settled {
			t.Errorf("%s: owes %d and settled %v there, %d and %v here", side, a.Owed, a.Settled, b.Owed, b.Settled)
		}
	}
}

// TestRestoreEnded: a lease that ended by what a restored side knew, before it was asked, is put right by what it had signed.
func TestRestoreEnded(t *testing.T) {
	for name, provider := range map[string]bool{"renter": false, "provider": true} {
		p := newPair(t)
		lane := p.sell(1, 500)
		p.pay(lane, 100)
		r, v := copyEngine(t, p.renter.engine), copyEngine(t, p.provider.engine)
		p.pay(lane, 700)
		p.close(lane, 650) // with a credit
		back := &p.renter
		other := p.provider
		engine := r
		if provider {
			back, other, engine = &p.provider, p.renter, v
		}
		*back = (*back).restored(engine, time.Unix(1_900_000_000, 0))
		(*back).update(func(tx *Tx) error { _, err := tx.CloseLane(lane, 100); return err })
		(*back).recover(other)
		if a := p.renter.account(ledger.AsRenter, p.provider); a.Owed != 650 {
			t.Errorf("%s: %d owed, want 650", name, a.Owed)
		}
		p.equal()
	}
}

// TestTwoRestores: two restores of one backup sign nothing with the same number, even if the peer keeps its records back.
func TestTwoRestores(t *testing.T) {
	p, old := life(t)
	var seqs []uint64
	for i := range int64(2) {
		r := old.renter.restored(old.renter.engine, time.Unix(1_900_000_000+i, 0))
		r.update(func(tx *Tx) error { return tx.Forget(p.provider.Self()) })
		raw, err := r.sign(ledger.Lane{1}, 5000)
		must(t, err)
		if _, err := p.deliver(raw); err != nil && i == 0 {
			t.Errorf("restore %d: %v", i, err)
		}
		v, err := voucher.Open(raw)
		must(t, err)
		seqs = append(seqs, v.Seq)
	}
	if seqs[0] == seqs[1] {
		t.Errorf("both signed voucher %d", seqs[0])
	}
	have, _, err := fraudOf(p.provider, ledger.Lane{1})
	if have != nil || err != nil {
		t.Errorf("a proof of equivocation against a renter that restored twice: %v", err)
	}
	clockBack := old.renter.restored(old.renter.engine, time.Unix(5, 0))
	if clockBack.Epoch() != 5 {
		t.Errorf("epoch %d", clockBack.Epoch())
	}
	store, err := kv.Open(t.Context(), copyEngine(t, old.renter.engine), schema)
	must(t, err)
	if e, err := NewEpoch(t.Context(), store, p.renter.dev, 77, time.Unix(5, 0)); e != 78 || err != nil {
		t.Errorf("epoch %d after a known one of 77: %v", e, err)
	}
}

// TestOldEpochRefused: a lane opened by an older copy of the renter's ledger than the one that was seen.
func TestOldEpochRefused(t *testing.T) {
	p := newPair(t)
	stale := p.renter
	p.renter = p.renter.restored(copyEngine(t, p.renter.engine), time.Unix(1_900_000_000, 0))
	p.renter.update(func(tx *Tx) error { return tx.Forget(p.provider.Self()) })
	p.pay(p.sell(1, 10), 10)
	p.renter = stale
	if err := p.trySell(p.opening(2, 10)); !errors.Is(err, ErrEpoch) {
		t.Errorf("a lane of an epoch that was left: %v", err)
	}
}

// TestLyingPeer: a peer can keep back, and nothing else.
func TestLyingPeer(t *testing.T) {
	p, old := life(t)
	stranger := newPair(t)
	theirs := stranger.sell(1, 50)
	stranger.pay(theirs, 10)
	foreign, _, _ := stranger.provider.copies(stranger.renter, 9)
	lanes, _, _ := p.provider.copies(p.renter, 9)
	at := func(lane byte) LaneCopy {
		i := slices.IndexFunc(lanes, func(c LaneCopy) bool {
			v, err := voucher.Open(c.Vouchers[0])
			return err == nil && v.Lane == ledger.Lane{lane}
		})
		return lanes[i]
	}
	with := func(c LaneCopy, f func(*LaneCopy)) LaneCopy {
		c.Vouchers = slices.Clone(c.Vouchers)
		f(&c)
		return c
	}
	sign := func(dev *identity.Device, seq uint64, amount money.Micro, prev []byte) []byte {
		first, err := voucher.Open(at(1).Vouchers[0])
		must(t, err)
		none, err := meter.Hash(nil)
		must(t, err)
		v := first.Voucher
		v.Seq, v.Amount, v.Quantity, v.Prev, v.Segments, v.Delegation = seq, amount, uint64(amount), identity.Hash(prev), none, wire.Hash{}
		v.Channel.Renter = dev.Account()
		out, err := voucher.Sign(dev, v)
		must(t, err)
		return out.Raw
	}
	forged := sign(stranger.renter.dev, 99, 9_000_000, at(1).Vouchers[0])
	flip := slices.Clone(at(1).Vouchers[1])
	flip[len(flip)/2] ^= 1
	for name, c := range map[string]LaneCopy{
		"another's voucher":  foreign[0],
		"its own voucher":    with(at(1), func(c *LaneCopy) { c.Vouchers[len(c.Vouchers)-1] = forged }),
		"a changed voucher":  with(at(1), func(c *LaneCopy) { c.Vouchers[len(c.Vouchers)-1] = flip }),
		"another lane's":     with(at(1), func(c *LaneCopy) { c.Vouchers[len(c.Vouchers)-1] = at(4).Vouchers[1] }),
		"no opening voucher": with(at(1), func(c *LaneCopy) { c.Vouchers = c.Vouchers[1:] }),
		"backwards":          with(at(1), func(c *LaneCopy) { slices.Reverse(c.Vouchers) }),
		"nothing":            {},
		"too many":           with(at(1), func(c *LaneCopy) { c.Vouchers = append(c.Vouchers, c.Vouchers...) }),
		"another receipt":    with(at(1), func(c *LaneCopy) { c.Receipt = c.Vouchers[0] }),
		"a stranger's delegation": with(at(4), func(c *LaneCopy) {
			c.Vouchers, c.Delegations = [][]byte{foreign[0].Vouchers[0]}, nil
		}),
	} {
		r := old.renter.restored(old.renter.engine, time.Unix(1_900_000_000, 0))
		before := r.account(ledger.AsRenter, p.provider)
		err := r.Update(t.Context(), func(tx *Tx) error { _, err := tx.AdoptLane(p.provider.Self(), c, nil); return err })
		if err == nil {
			t.Errorf("%s: taken", name)
		}
		if after := r.account(ledger.AsRenter, p.provider); after != before {
			t.Errorf("%s: %+v became %+v", name, before, after)
		}
		r.verified(ResultOK)
	}
}

// TestPeerKeepsBack: an older voucher takes nothing away, and a settlement with one signature twice is none.
func TestPeerKeepsBack(t *testing.T) {
	p, old := life(t)
	lanes, settled, _ := p.provider.copies(p.renter, 9)
	r := old.renter.restored(old.renter.engine, time.Unix(1_900_000_000, 0))
	for _, c := range lanes {
		if v, err := voucher.Open(c.Vouchers[0]); err != nil || v.Lane != (ledger.Lane{1}) {
			continue
		}
		c.Vouchers, c.Receipt = c.Vouchers[:1], nil
		r.update(func(tx *Tx) error { _, err := tx.AdoptLane(p.provider.Self(), c, nil); return err })
	}
	if a := r.account(ledger.AsRenter, p.provider); a.Owed != 390 {
		t.Errorf("an older voucher: %d owed, want the 390 of the backup", a.Owed)
	}
	for _, c := range settled {
		c.Counter = c.Proposal
		err := r.Update(t.Context(), func(tx *Tx) error { _, err := tx.AdoptSettlement(p.provider.Self(), c); return err })
		if err == nil {
			t.Error("a settlement that one side signed twice was taken")
		}
	}
	r.verified(ResultOK)
}

// sign signs a voucher.
func (p *party) sign(lane ledger.Lane, amount money.Micro) (raw []byte, err error) {
	err = p.Update(p.tb.Context(), func(t *Tx) (err error) {
		raw, err = t.SignVoucher(lane, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	return raw, err
}

func fraudOf(p *party, lane ledger.Lane) (have, got []byte, err error) {
	err = p.View(p.tb.Context(), func(r *Reader) error { have, got, err = r.Fraud(lane); return err })
	return have, got, err
}
