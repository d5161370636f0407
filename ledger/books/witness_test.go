package books

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ask has one side check the other's log, without a network; the other gets the cosignature.
func (p *party) ask(of *party) (err error) {
	p.tb.Helper()
	known, extensions := [][]byte(nil), []Extension(nil)
	var head, cosigned []byte
	p.view(func(r *Reader) (err error) { known, err = r.Known(of.dev.Peer()); return err })
	err = of.View(of.tb.Context(), func(r *Reader) (err error) { head, extensions, _, err = r.Standing(known); return err })
	if err != nil {
		return err
	}
	err = p.Update(p.tb.Context(), func(t *Tx) (err error) {
		cosigned, err = t.Witness(of.dev.Peer(), known, Testimony{Head: head, Extensions: extensions}, true)
		return err
	})
	if err == nil && cosigned != nil {
		of.update(func(t *Tx) error { return t.KeepCosigned(p.dev.Peer(), cosigned) })
	}
	return err
}

// shown is what p shows of its dealings with another device's newest log.
func (p *party) shown(of *party) (out statement.Witness) {
	p.tb.Helper()
	p.view(func(r *Reader) error {
		all, err := r.ShowWitnesses()
		for _, w := range all {
			if w.Device == of.dev.Peer().String() {
				out = w
			}
		}
		return err
	})
	return out
}

func (p *party) due(of *party, now time.Time) (due bool) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { due, err = r.Due(of.dev.Peer(), now, 10*time.Minute); return err })
	return due
}

// claim is a head that a device signs, whatever its log has.
func claim(tb testing.TB, dev *identity.Device, epoch, size uint64, root byte) []byte {
	tb.Helper()
	note, err := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: epoch}, Size: size, Root: history.Hash{root}}.Sign(dev.SignNote)
	must(tb, err)
	return note
}

// with signs the renter's next voucher of a lane with a head of the test's choice.
func (p pairOf) with(lane ledger.Lane, note []byte) []byte {
	p.renter.tb.Helper()
	l := p.provider.lane(lane)
	v, err := voucher.Sign(p.renter.dev, voucher.Voucher{
		Channel: l.Channel, Lane: lane, Seq: l.Seq + 1, Amount: l.Amount + 10, Quantity: l.Quantity + 10, Prev: l.Voucher, Checkpoint: note,
	})
	must(p.renter.tb, err)
	return v.Raw
}

// TestWitness: both sides check each other's growing logs, and hold each other's cosignatures.
func TestWitness(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	for i := range money.Micro(5) {
		p.pay(lane, 100*(i+1))
		must(t, p.provider.ask(p.renter))
		must(t, p.renter.ask(p.provider))
	}
	a, b := p.provider.shown(p.renter), p.renter.shown(p.provider)
	if a.Checked != 5 || a.Cosigned != 5 || a.Seen != 0 || b.Checked != 5 || b.Cosigned != 5 || b.Suspicion != "" || b.Fork != nil {
		t.Fatalf("provider knows %+v, renter %+v", a, b)
	}
	if a.Account != p.renter.Self().String() || time.Since(a.CosignedAt) > time.Hour || time.Since(a.CheckedAt) > time.Hour {
		t.Errorf("%+v", a)
	}
	p.equal()
	p.provider.view(func(r *Reader) error {
		kept, got, ok, err := r.newestCosigned(p.renter.Self())
		if !ok || kept.by != p.renter.dev.Peer() || got.Size != 5 {
			t.Errorf("newest cosignature: %v, %+v, %v", kept.by, got, ok)
		}
		if _, _, ok, _ := r.newestCosigned(identity.AccountID{1}); ok {
			t.Error("a cosignature by nobody")
		}
		return err
	})
	p.provider.reopen(true).verified(ResultOK) // all of it is in the journal, too
	_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, uint64(p.renter.Epoch()), 3, 1)))
	must(t, err)
	if w := p.provider.shown(p.renter); w.Seen != 0 {
		t.Errorf("a head below the checked one is kept: %+v", w)
	}
}

// TestDue: a peer is asked when its records have gone unchecked for long, and when a lane has ended.
func TestDue(t *testing.T) {
	p := newPair(t)
	now := time.Now()
	if p.provider.due(p.renter, now) {
		t.Error("a stranger is due")
	}
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	for _, two := range [][2]*party{{p.provider, p.renter}, {p.renter, p.provider}} {
		if !two[0].due(two[1], now) {
			t.Error("never checked, and not due")
		}
		must(t, two[0].ask(two[1]))
		if two[0].due(two[1], now.Add(time.Hour)) {
			t.Error("due without new records")
		}
	}
	p.pay(lane, 200) // it carries the head before itself, which is known
	p.pay(lane, 300)
	for _, two := range [][2]*party{{p.provider, p.renter}, {p.renter, p.provider}} {
		if two[0].due(two[1], now.Add(time.Minute)) || !two[0].due(two[1], now.Add(time.Hour)) {
			t.Error("due at the wrong time after new records")
		}
	}
	p.close(lane, 300)
	for _, two := range [][2]*party{{p.provider, p.renter}, {p.renter, p.provider}} {
		if !two[0].due(two[1], now) {
			t.Error("not due after the lane's end")
		}
		must(t, two[0].ask(two[1]))
		if two[0].due(two[1], now) {
			t.Error("due again at once")
		}
	}
	other := p.sell(2, 0)
	late := p.promise(other, 100)
	p.close(other, 100)
	must(t, p.provider.ask(p.renter))
	a, err := p.deliver(late)
	must(t, err)
	p.renter.update(func(tx *Tx) error { _, err := tx.RecordReceipt(a.Receipt); return err })
	if !p.provider.due(p.renter, now) || !p.renter.due(p.provider, now) {
		t.Error("not due after the last voucher of a lane that has ended")
	}
}

// TestForkByRecords: whatever record brings the second head of one size, it is refused, the proof is kept for ever, and nothing of that
// device is taken any more.
func TestForkByRecords(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	for name, c := range map[string]struct {
		side, liar *party
		bring      func(note []byte, lane ledger.Lane) error
	}{
		"voucher": {p.provider, p.renter, func(note []byte, lane ledger.Lane) error {
			_, err := p.deliver(p.with(lane, note))
			return err
		}},
		"receipt": {p.renter, p.provider, func(note []byte, lane ledger.Lane) error {
			v := p.promise(lane, p.renter.lane(lane).Amount+10)
			r, err := voucher.SignReceipt(p.provider.dev, voucher.Receipt{Voucher: identity.Hash(v), Checkpoint: note})
			must(t, err)
			return p.renter.Update(t.Context(), func(tx *Tx) error { _, err := tx.RecordReceipt(r); return err })
		}},
	} {
		must(t, c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), 50, 1), lane))
		err := c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), 50, 2), lane)
		var f *Fork
		if !errors.As(err, &f) || f.Device != c.liar.dev.Peer() {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), 60, 3), lane); !errors.Is(err, ErrFork) {
			t.Errorf("%s: the liar's next was taken: %v", name, err)
		}
		for _, side := range []*party{c.side, c.side.reopen(false), c.side.reopen(true)} {
			side.accuses(name, c.liar)
		}
		if c.side.due(c.liar, time.Now().Add(time.Hour)) {
			t.Errorf("%s: the liar is asked again", name)
		}
	}
	if err := p.trySell(p.opening(9, 0)); !errors.Is(err, ErrFork) {
		t.Errorf("a lane was opened for the liar: %v", err)
	}
	err := p.provider.Update(t.Context(), func(tx *Tx) error {
		_, err := tx.Witness(p.renter.dev.Peer(), nil, Testimony{Head: claim(t, p.renter.dev, 1, 99, 1)}, false)
		return err
	})
	if !errors.Is(err, ErrFork) {
		t.Errorf("the liar's log was cosigned: %v", err)
	}
	p.provider.view(func(r *Reader) error {
		if _, err := r.ForkOf(identity.PeerID{1}); !errors.Is(err, ErrUnknownDevice) {
			t.Errorf("a proof against nobody: %v", err)
		}
		return nil
	})
}

// accuses checks that the party holds the proof against another.
func (p *party) accuses(name string, liar *party) {
	p.tb.Helper()
	if w := p.shown(liar); w.Fork == nil || w.Fork.Entries != 50 {
		p.tb.Fatalf("%s: shown as %+v", name, w)
	}
	v, err := p.Verify(p.tb.Context())
	if must(p.tb, err); v.Forks != 1 || v.Result != ResultOK {
		p.tb.Errorf("%s: %+v", name, v)
	}
	p.view(func(r *Reader) error {
		f, err := r.ForkOf(liar.dev.Peer())
		must(p.tb, err)
		raw, err := f.Encode()
		must(p.tb, err)
		v := proof.CheckFork(raw)
		if v.Result != proof.Forged || v.Account != liar.Self().String() || v.Entries != 50 {
			p.tb.Errorf("%s: the file says %+v", name, v)
		}
		return err
	})
}

// TestForkDoesNotKeepFromSettling: the debt can be ended, and the proof is kept.
func TestForkDoesNotKeepFromSettling(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, uint64(p.renter.Epoch()), 50, 1)))
	must(t, err)
	s := voucher.Settlement{
		Channel: p.renter.Channel(p.provider.Self(), money.Credit).AllEpochs(), Nonce: wire.Hash{1}, Amount: 40, Method: "manual",
		Checkpoint: claim(t, p.renter.dev, uint64(p.renter.Epoch()), 50, 2),
	}
	proposal, err := voucher.SignSettlement(p.renter.dev, s)
	must(t, err)
	p.provider.update(func(tx *Tx) error {
		id, _, err := tx.RecordProposal(proposal)
		if err != nil {
			return err
		}
		_, err = tx.Countersign(id)
		return err
	})
	if w := p.provider.shown(p.renter); w.Fork == nil {
		t.Errorf("the proof was not kept: %+v", w)
	}
	if a := p.provider.account(ledger.AsProvider, p.renter); a.Settled != 40 {
		t.Errorf("%+v", a)
	}
}

// TestOutOfOrder: a smaller head after a larger one is no fork, and is never cosigned.
func TestOutOfOrder(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	epoch := uint64(p.renter.Epoch())
	for _, size := range []uint64{40, 24, 30, 20, 41} {
		_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, epoch, size, byte(size))))
		must(t, err)
		if w := p.provider.shown(p.renter); w.Seen != max(40, size) {
			t.Errorf("after a head of %d the largest seen is of %d", size, w.Seen)
		}
	}
	if w := p.provider.shown(p.renter); w.Seen != 41 || w.Fork != nil {
		t.Fatalf("%+v", w)
	}
	err := p.provider.Update(t.Context(), func(tx *Tx) error {
		got, err := tx.Witness(p.renter.dev.Peer(), nil, Testimony{Head: claim(t, p.renter.dev, epoch, 33, 33)}, false)
		if got != nil {
			t.Error("a head below one that was seen was cosigned")
		}
		return err
	})
	must(t, err)
	if w := p.provider.shown(p.renter); w.Checked != 0 {
		t.Errorf("%+v", w)
	}
}

// TestUnproven: what a peer can't show is suspicion; when it shows it after all, none.
func TestUnproven(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	must(t, p.provider.ask(p.renter))
	for i := range money.Micro(6) {
		p.pay(lane, 200+100*i)
	}
	device, epoch := p.renter.dev.Peer(), uint64(p.renter.Epoch())
	var known [][]byte
	var head []byte
	var good []Extension
	p.provider.view(func(r *Reader) (err error) { known, err = r.Known(device); return err })
	p.renter.view(func(r *Reader) (err error) { head, good, _, err = r.Standing(known); return err })
	bad := slices.Clone(good)
	i := slices.IndexFunc(bad, func(e Extension) bool { return len(e.Proof) > 0 })
	bad[i].Proof = slices.Clone(bad[i].Proof)
	bad[i].Proof[0][0] ^= 1
	for name, c := range map[string]Testimony{
		"nothing":          {Head: head},
		"a part":           {Head: head, Extensions: good[:1]},
		"a wrong proof":    {Head: head, Extensions: bad},
		"an older head":    {Head: claim(t, p.renter.dev, epoch, 3, 1), Extensions: good},
		"an older epoch":   {Head: claim(t, p.renter.dev, epoch-1, 99, 1), Extensions: good},
		"another history":  {Head: claim(t, p.renter.dev, epoch, 99, 9), Extensions: good},
		"another's old":    {Head: head, Extensions: []Extension{{Size: good[0].Size, Proof: make([]wire.Hash, 5), Own: claim(t, p.provider.dev, epoch, good[0].Size, 1)}}},
		"too long a proof": {Head: head, Extensions: []Extension{{Size: good[0].Size, Proof: make([]wire.Hash, 1000)}}},
	} {
		for _, strict := range []bool{true, false} {
			err := p.provider.Update(t.Context(), func(tx *Tx) error {
				got, err := tx.Witness(device, known, c, strict)
				if got != nil {
					t.Errorf("%s: cosigned", name)
				}
				return err
			})
			if strict != errors.Is(err, ErrUnproven) || !strict && err != nil {
				t.Errorf("%s, strict %v: %v", name, strict, err)
			}
			if strict && name == "an older epoch" && !strings.Contains(err.Error(), "signed for") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for range 2 {
		p.provider.update(func(tx *Tx) error { return tx.Suspect(device, "it said \xff no") })
	}
	if w := p.provider.shown(p.renter); w.Suspicion != "it said  no" || w.SuspectSince.IsZero() || w.Checked != 1 {
		t.Errorf("%+v", w)
	}
	must(t, p.provider.ask(p.renter))
	if w := p.provider.shown(p.renter); w.Suspicion != "" || !w.SuspectSince.IsZero() || w.Checked != 7 {
		t.Errorf("%+v", w)
	}
	err := p.provider.Update(t.Context(), func(tx *Tx) error { return tx.Suspect(identity.PeerID{1}, "x") })
	if !errors.Is(err, ErrUnknownDevice) {
		t.Errorf("suspicion of a stranger: %v", err)
	}
}

// TestBoundedOrigins: a device that signs for thousands of epochs, and for thousands of sizes, leaves no more than a few heads here.
func TestBoundedOrigins(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	for i := range uint64(300) {
		_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, 1+i*7919%3000, 1+i, 1)))
		must(t, err)
	}
	for i := range uint64(100) {
		_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, 1<<40, 1+i, 1)))
		must(t, err)
	}
	count := map[string]int{}
	p.provider.view(func(r *Reader) error {
		for _, prefix := range []string{"wit/", "seen/"} {
			for _, err := range r.own.Iterate([]byte(prefix), nil) {
				must(t, err)
				count[prefix]++
			}
		}
		known, err := r.Known(p.renter.dev.Peer())
		if len(known) > MaxKnown || len(known) < 5 {
			t.Errorf("%d heads are known", len(known))
		}
		return err
	})
	if count["wit/"] != maxEpochs || count["seen/"] > maxEpochs*seenSlots {
		t.Errorf("kept %v", count)
	}
	if w := p.provider.shown(p.renter); w.Epoch != 1<<40 || w.Seen != 100 {
		t.Errorf("the newest is not kept: %+v", w)
	}
	p.provider.verified(ResultOK)
}

// TestStrangersLeaveNothing: a device without a record of money here is not witnessed, and its cosignature not kept.
func TestStrangersLeaveNothing(t *testing.T) {
	p := newPair(t)
	stranger := newParty(t)
	var head []byte
	p.provider.view(func(r *Reader) (err error) { head, err = r.Checkpoint(); return err })
	cosigned, err := history.Cosign(head, p.provider.dev.Peer(), stranger.dev.Peer(), time.Now(), stranger.dev.SignCosignature)
	must(t, err)
	p.provider.update(func(tx *Tx) error {
		_, err := tx.Witness(stranger.dev.Peer(), nil, Testimony{Head: claim(t, stranger.dev, 1, 1, 1)}, false)
		if !errors.Is(err, ErrUnknownDevice) {
			t.Error(err)
		}
		return tx.KeepCosigned(stranger.dev.Peer(), cosigned)
	})
	if w := p.provider.shown(stranger); w.Device != "" {
		t.Errorf("%+v", w)
	}
	p.provider.view(func(r *Reader) error {
		b, err := raw(r.own, cosignedKey(stranger.dev.Peer()))
		if b != nil {
			t.Error("a stranger's cosignature was kept")
		}
		return err
	})
}
