package books

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
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
		var sizes [2]uint64
		sizes[0] = 50
		must(t, c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), sizes[0], 1), lane))
		err := c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), sizes[0], 2), lane)
		var f *Fork
		if !errors.As(err, &f) || f.Device != c.liar.dev.Peer() {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.bring(claim(t, c.liar.dev, uint64(c.liar.Epoch()), 60, 3), lane); !errors.Is(err, ErrFork) {
			t.Errorf("%s: the liar's next was taken: %v", name, err)
		}
		for _, side := range []*party{c.side, c.side.reopen(false), c.side.reopen(true)} {
			if w := side.shown(c.liar); w.Fork == nil || w.Fork.Entries != 50 {
				t.Fatalf("%s: shown as %+v", name, w)
			}
			side.verified(ResultOK)
			v, err := side.Verify(t.Context())
			if must(t, err); v.Forks != 1 {
				t.Errorf("%s: %+v", name, v)
			}
			side.view(func(r *Reader) error {
				f, err := r.ForkOf(c.liar.dev.Peer())
				must(t, err)
				raw, err := f.Encode()
				must(t, err)
				v := proof.CheckFork(raw)
				if v.Result != proof.Forged || v.Account != c.liar.Self().String() || v.Entries != 50 {
					t.Errorf("%s: the file says %+v", name, v)
				}
				return err
			})
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
	for _, size := range []uint64{40, 30, 20, 41} {
		_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, epoch, size, byte(size))))
		must(t, err)
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
		}
	}
	for range 2 {
		p.provider.update(func(tx *Tx) error { return tx.Suspect(device, "it said \xff no") })
	}
	if w := p.provider.shown(p.renter); w.Suspicion != "it said ? no" || w.SuspectSince.IsZero() || w.Checked != 1 {
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

// TestBehind: a head of ours in a peer's hands that our ledger does not begin as makes the ledger read-only, also after a restart, and
// until it has what is missing.
func TestBehind(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	old := p.renter.reopen(false) // the backup
	p.pay(lane, 200)
	p.pay(lane, 300)
	full := p.renter.reopen(false)
	var heads [][]byte // in the provider's hands
	p.provider.view(func(r *Reader) (err error) { heads, err = r.Known(p.renter.dev.Peer()); return err })
	size := func(note []byte) uint64 {
		cp, err := history.Open(note, p.renter.dev.Peer())
		must(t, err)
		return cp.Size
	}
	newest := slices.MaxFunc(heads, func(a, b []byte) int { return cmp.Compare(size(a), size(b)) })
	must(t, p.renter.Behind(t.Context(), newest))
	if err := p.renter.ReadOnly(); err != nil {
		t.Fatal(err)
	}
	if err := old.Behind(t.Context(), claim(t, p.provider.dev, 1, 9, 1)); errors.Is(err, ErrBehind) || err == nil || old.ReadOnly() != nil {
		t.Fatalf("another's word was believed: %v", err)
	}
	must(t, old.Behind(t.Context(), claim(t, p.renter.dev, uint64(old.Epoch())-1, 99, 1)))
	if err := old.Behind(t.Context(), newest); !errors.Is(err, ErrBehind) {
		t.Fatal(err)
	}
	for name, side := range map[string]*party{"at once": old, "after a restart": old.reopen(false), "of the journal alone": old.reopen(true)} {
		if err := side.ReadOnly(); !errors.Is(err, ErrBehind) {
			t.Fatalf("%s: %v", name, err)
		}
		side.verified(ResultBehind)
		err := side.Update(t.Context(), func(tx *Tx) error { return nil })
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: wrote: %v", name, err)
		}
	}
	// What was missing is there again: the file beside the head note does no harm.
	word, err := os.ReadFile(filepath.Join(old.dir, behindName))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(full.dir, behindName), word, 0o600))
	again := full.reopen(false)
	if again.ReadOnly() != nil {
		t.Error(again.ReadOnly())
	}
	again.verified(ResultOK)
}

// TestBehindGrows: of several heads the one furthest ahead stays.
func TestBehindGrows(t *testing.T) {
	p := newParty(t)
	epoch := uint64(p.Epoch())
	for _, size := range []uint64{5, 9, 7} {
		if err := p.Behind(t.Context(), claim(t, p.dev, epoch, size, 1)); !errors.Is(err, ErrBehind) {
			t.Fatal(err)
		}
	}
	if cp, ok, err := p.readBehind(); err != nil || !ok || cp.Size != 9 {
		t.Errorf("%+v, %v, %v", cp, ok, err)
	}
	if err := p.Behind(t.Context(), claim(t, p.dev, epoch+1, 2, 1)); !errors.Is(err, ErrBehind) {
		t.Errorf("a head of a later epoch: %v", err)
	}
	if cp, _, _ := p.readBehind(); cp.Size != 2 {
		t.Errorf("%+v", cp)
	}
	must(t, os.WriteFile(filepath.Join(p.dir, behindName), []byte("x"), 0o600))
	again := p.reopen(false)
	if err := again.ReadOnly(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged word: %v", err)
	}
	again.verified(ResultCorrupt)
}

// TestChangedLedgerSignsItsOwnProof: a ledger that was rewritten, head note and all, answers the question about a former head with its own
// signature for another root of that size: proof for the one who asked; and it becomes read-only.
func TestChangedLedgerSignsItsOwnProof(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	p.pay(lane, 200)
	must(t, p.provider.ask(p.renter))
	forger := openParty(t, p.renter.dev, &kv.Memory{}, filepath.Join(t.TempDir(), "other"), testLimits)
	q := pairOf{renter: forger, provider: newParty(t)}
	q.meet()
	q.pay(q.sell(1, 0), 50)
	q.pay(q.sell(2, 0), 50)
	q.pay(q.sell(3, 0), 50)
	forger.verified(ResultOK) // nothing in it is wrong
	var f *Fork
	if err := p.provider.ask(forger); !errors.As(err, &f) {
		t.Fatal(err)
	}
	if w := p.provider.shown(p.renter); w.Fork == nil || w.Fork.Entries != 2 {
		t.Errorf("%+v", w)
	}
	if err := forger.Behind(t.Context(), f.Have); !errors.Is(err, ErrBehind) || !errors.Is(err, ErrForged) {
		t.Error(err)
	}
	forger.verified(ResultForged)
	again := forger.reopen(false)
	if !errors.Is(again.ReadOnly(), ErrBehind) {
		t.Error(again.ReadOnly())
	}
	again.verified(ResultForged)
}

// TestVerifyWitnesses: damage of anything that is kept of others' logs is found.
func TestVerifyWitnesses(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	p.pay(lane, 100)
	must(t, p.provider.ask(p.renter))
	must(t, p.renter.ask(p.provider))
	p.pay(lane, 200)
	epoch := uint64(p.renter.Epoch())
	_, err := p.deliver(p.with(lane, claim(t, p.renter.dev, epoch, 64, 1)))
	must(t, err)
	if _, err := p.deliver(p.with(lane, claim(t, p.renter.dev, epoch, 64, 2))); !errors.Is(err, ErrFork) {
		t.Fatal(err)
	}
	p.provider.verified(ResultOK)
	cosigned := func(epoch, size uint64) []byte {
		note, err := history.Cosign(claim(t, p.provider.dev, epoch, size, 9), p.provider.dev.Peer(), p.renter.dev.Peer(), time.Now(), p.renter.dev.SignCosignature)
		must(t, err)
		return note
	}
	for name, c := range map[string]struct {
		prefix string
		change func([]byte) []byte
		want   string
	}{
		"checked head":               {"books/wit/", edit(t, func(w *witnessed) { w.Note[len(w.Note)-20] ^= 1 }), ResultForged},
		"checked head's witness":     {"books/wit/", edit(t, func(w *witnessed) { w.By[0] ^= 1 }), ResultForged},
		"seen head":                  {"books/seen/", func(b []byte) []byte { return bytes.Replace(b, []byte("\n"), []byte("\n1"), 1) }, ResultForged},
		"seen head of another size":  {"books/seen/", func([]byte) []byte { return claim(t, p.renter.dev, epoch, 1<<20+1, 1) }, ResultCorrupt},
		"own head":                   {"books/cos/", edit(t, func(c *cosignedBy) { c.Note[len(c.Note)-20] ^= 1 }), ResultForged},
		"own head, ahead":            {"books/cos/", edit(t, func(c *cosignedBy) { c.Note = cosigned(uint64(p.provider.Epoch()), 1000) }), ResultBehind},
		"own head of a later epoch":  {"books/cos/", edit(t, func(c *cosignedBy) { c.Note = cosigned(uint64(p.provider.Epoch())+1, 1) }), ResultBehind},
		"own head with another root": {"books/cos/", edit(t, func(c *cosignedBy) { c.Note = cosigned(uint64(p.provider.Epoch()), 1) }), ResultForged},
		"one note of a fork":         {"books/fork/", edit(t, func(f *forked) { f.Got = f.Have }), ResultForged},
	} {
		engine := copyEngine(t, p.provider.engine)
		var found kv.Pair
		must(t, engine.View(t.Context(), func(r kv.Reader) error {
			for pair, err := range r.Iterate([]byte(c.prefix), nil) {
				found = pair
				return err
			}
			return nil
		}))
		if found.Key == nil {
			t.Fatalf("%s: nothing to damage", name)
		}
		must(t, engine.Apply(t.Context(), []kv.Write{{Key: found.Key, Value: c.change(found.Value)}}))
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(p.provider.dir)))
		again := openParty(t, p.provider.dev, engine, dir, testLimits)
		v, err := again.Verify(t.Context())
		if err != nil || v.Result != c.want || v.Detail == "" {
			t.Errorf("%s: %+v, %v; want %s", name, v, err, c.want)
		}
	}
}

// TestNobodyRewritesUnseen: a renter goes on paying, sometimes from a copy of its ledger as it was some vouchers ago. The provider, who asks
// now and then, never cosigns two heads that are not of one history, and in the end it has all of it or the proof.
func TestNobodyRewritesUnseen(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(t)
		lane := p.sell(1, 0)
		p.pay(lane, 1)
		copies := []*party{p.renter.reopen(false)}
		rewritten := false
		var cosigned []history.Checkpoint
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0:
				if err := p.provider.ask(p.renter); err != nil && !errors.Is(err, ErrFork) && !errors.Is(err, ErrUnproven) && !errors.Is(err, ErrBehind) {
					rt.Fatal(err)
				}
				if w := p.provider.shown(p.renter); w.Checked > 0 && (len(cosigned) == 0 || cosigned[len(cosigned)-1].Size < w.Checked) {
					cp := history.Checkpoint{Size: w.Checked}
					h, err := wire.ParseHash(w.Root)
					must(t, err)
					cp.Root = history.Hash(h)
					cosigned = append(cosigned, cp)
				}
			case 1:
				copies = append(copies, p.renter.reopen(false))
			case 2:
				i := rapid.IntRange(0, len(copies)-1).Draw(rt, "copy")
				rewritten = rewritten || copies[i].size() < p.renter.size()
				p.renter = copies[i].reopen(false)
			default:
				v := p.promise(lane, max(p.renter.lane(lane).Amount, p.provider.lane(lane).Amount)+1)
				if _, err := p.deliver(v); err != nil {
					rewritten = true // a chain of vouchers that does not go on, or a fork
				}
			}
		}
		caught := p.provider.shown(p.renter).Fork != nil
		if caught && !rewritten {
			rt.Fatal("an honest renter was accused")
		}
		p.renter.view(func(r *Reader) error {
			h, err := r.head()
			for _, cp := range cosigned {
				if cp.Size > h.Size {
					continue
				}
				root, err := history.Root(r.hashes(), cp.Size)
				if err == nil && root != cp.Root && !rewritten {
					rt.Fatal("cosigned what is no part of the ledger")
				}
			}
			return err
		})
		for i := range cosigned {
			if i > 0 && cosigned[i].Size <= cosigned[i-1].Size {
				rt.Fatalf("cosigned %d after %d", cosigned[i].Size, cosigned[i-1].Size)
			}
		}
	})
}
