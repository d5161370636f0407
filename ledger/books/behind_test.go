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

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

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

// TestCosignedAhead: a peer's cosignature of a head that this ledger does not begin as is not kept, and says so.
func TestCosignedAhead(t *testing.T) {
	p := newPair(t)
	p.pay(p.sell(1, 0), 100)
	epoch := uint64(p.provider.Epoch())
	for name, own := range map[string][]byte{
		"ahead": claim(t, p.provider.dev, epoch, 1000, 1), "other entries": claim(t, p.provider.dev, epoch, 1, 1), "a later epoch": claim(t, p.provider.dev, epoch+1, 1, 1),
	} {
		note, err := history.Cosign(own, p.provider.dev.Peer(), p.renter.dev.Peer(), time.Now(), p.renter.dev.SignCosignature)
		must(t, err)
		err = p.provider.Update(t.Context(), func(tx *Tx) error { return tx.KeepCosigned(p.renter.dev.Peer(), note) })
		if w := p.provider.shown(p.renter); !errors.Is(err, ErrBehind) || w.Cosigned != 0 {
			t.Errorf("%s: %v, %+v", name, err, w)
		}
	}
	ended, err := history.Cosign(claim(t, p.provider.dev, epoch-1, 1000, 1), p.provider.dev.Peer(), p.renter.dev.Peer(), time.Now(), p.renter.dev.SignCosignature)
	must(t, err)
	p.provider.update(func(tx *Tx) error { return tx.KeepCosigned(p.renter.dev.Peer(), ended) })
	if w := p.provider.shown(p.renter); w.Cosigned != 0 {
		t.Errorf("a head of an ended epoch was kept: %+v", w)
	}
}

// TestOlderCosignature: one that comes late does not take the place of a newer one.
func TestOlderCosignature(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 0)
	var notes [][]byte
	for i := range money.Micro(2) {
		p.pay(lane, 100*(i+1))
		p.provider.view(func(r *Reader) error {
			head, err := r.Checkpoint()
			must(t, err)
			for _, at := range []int64{1_800_000_000, 1_800_000_060} {
				note, err := history.Cosign(head, p.provider.dev.Peer(), p.renter.dev.Peer(), time.Unix(at, 0), p.renter.dev.SignCosignature)
				must(t, err)
				notes = append(notes, note)
			}
			return nil
		})
	}
	for _, i := range []int{1, 0, 3, 2, 1} {
		p.provider.update(func(tx *Tx) error { return tx.KeepCosigned(p.renter.dev.Peer(), notes[i]) })
		if w := p.provider.shown(p.renter); w.CosignedAt.Unix() != 1_800_000_060 {
			t.Errorf("after note %d: %+v", i, w)
		}
	}
	if w := p.provider.shown(p.renter); w.Cosigned != 2 {
		t.Errorf("%+v", w)
	}
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
	if cp, ok, err := heldBehind(p); err != nil || !ok || cp.Size != 9 {
		t.Errorf("%+v, %v, %v", cp, ok, err)
	}
	if err := p.Behind(t.Context(), claim(t, p.dev, epoch+1, 2, 1)); !errors.Is(err, ErrBehind) {
		t.Errorf("a head of a later epoch: %v", err)
	}
	if cp, _, _ := heldBehind(p); cp.Size != 2 {
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
	forger.Showed()
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
		tb, end := newAttempt(t)
		defer end()
		p := newPair(tb)
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

// heldBehind reads what a peer once showed.
func heldBehind(p *party) (cp history.Checkpoint, ok bool, err error) {
	p.tb.Helper()
	err = p.View(p.tb.Context(), func(r *Reader) (err error) {
		cp, ok, err = r.readBehind()
		return err
	})
	return cp, ok, err
}
