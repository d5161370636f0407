package settle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/mod/sumdb/note"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const witnessProtocol = p2p.Protocol("/gpufair/test/witness/1.0.0")

// keeper is one account with a ledger that can be copied, and the conversation about ledgers.
type keeper struct {
	*settle.Witness
	t      *testing.T
	books  *books.Books
	dev    *identity.Device
	net    p2p.Network
	engine *kv.Memory
	dir    string
}

// newKeeper opens the ledger in dir over engine, as a device on a network.
func newKeeper(t *testing.T, n p2p.Network, dev *identity.Device, engine *kv.Memory, dir string) *keeper {
	t.Helper()
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), engine, schema)
	must(t, err)
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	b, err := books.Open(t.Context(), books.Config{
		Dir: dir, Store: store, Device: dev, Log: quiet,
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 30, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
	})
	must(t, err)
	t.Cleanup(func() { b.Close() })
	w, err := settle.NewWitness(settle.WitnessConfig{Network: n, Protocol: witnessProtocol, Books: b, Log: quiet})
	must(t, err)
	n.Handle(witnessProtocol, settle.WitnessLimits(), w.Handler())
	return &keeper{Witness: w, t: t, books: b, dev: dev, net: n, engine: engine, dir: dir}
}

func fresh(t *testing.T, n *p2ptest.Net) *keeper {
	t.Helper()
	dev := p2ptest.Device(t)
	return newKeeper(t, n.Join(dev), dev, &kv.Memory{}, t.TempDir())
}

// copied is the keeper's ledger as it is now, in another place.
func (k *keeper) copied() (engine *kv.Memory, dir string) {
	k.t.Helper()
	engine, dir = &kv.Memory{}, k.t.TempDir()
	var writes []kv.Write
	must(k.t, k.engine.View(k.t.Context(), func(r kv.Reader) error {
		for p, err := range r.Iterate(nil, nil) {
			if err != nil {
				return err
			}
			writes = append(writes, kv.Write{Key: p.Key, Value: p.Value})
		}
		return nil
	}))
	must(k.t, engine.Apply(k.t.Context(), writes))
	must(k.t, os.CopyFS(dir, os.DirFS(k.dir)))
	return engine, dir
}

func (k *keeper) update(f func(*books.Tx) error) {
	k.t.Helper()
	must(k.t, k.books.Update(k.t.Context(), f))
}

// about is what k knows of another's newest ledger.
func (k *keeper) about(other *keeper) (out statement.Witness) {
	k.t.Helper()
	must(k.t, k.books.View(k.t.Context(), func(r *books.Reader) error {
		all, err := r.ShowWitnesses()
		for _, w := range all {
			if w.Device == other.dev.Peer().String() {
				out = w
			}
		}
		return err
	}))
	return out
}

func (k *keeper) verdict() string {
	k.t.Helper()
	v, err := k.books.Verify(k.t.Context())
	must(k.t, err)
	return v.Result
}

// openLane opens a lane on both sides, and voucherFor pays on it with vouchers and receipts.
func openLane(renter, provider *keeper, lane byte) {
	renter.t.Helper()
	o := books.Opening{Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Lane: ledger.Lane{lane}, Rate: 3_600_000, Devices: 1}
	var first []byte
	renter.update(func(tx *books.Tx) (err error) {
		if _, _, err := tx.KeepDelegation(provider.dev.Delegation()); err != nil {
			return err
		}
		first, err = tx.Promise(o)
		return err
	})
	provider.update(func(tx *books.Tx) error { _, err := tx.OpenLane(o, first, renter.dev.Delegation()); return err })
}

func voucherFor(renter, provider *keeper, lane byte, amounts ...money.Micro) {
	renter.t.Helper()
	for _, amount := range amounts {
		var v []byte
		var got books.Accepted
		renter.update(func(tx *books.Tx) (err error) {
			v, err = tx.SignVoucher(ledger.Lane{lane}, amount, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(amount)}})
			return err
		})
		provider.update(func(tx *books.Tx) (err error) { got, err = tx.AcceptVoucher(v, wire.Hash{1}); return err })
		renter.update(func(tx *books.Tx) error { _, err := tx.RecordReceipt(got.Receipt); return err })
	}
}

// twoKeepers have dealt with each other.
func twoKeepers(t *testing.T) (n *p2ptest.Net, renter, provider *keeper) {
	t.Helper()
	n = p2ptest.NewNet(t)
	renter, provider = fresh(t, n), fresh(t, n)
	n.Mesh()
	openLane(renter, provider, 1)
	voucherFor(renter, provider, 1, 10, 20, 30)
	return n, renter, provider
}

// One conversation, whoever begins it, and both have checked and cosigned the other's ledger.
func TestWitnessBothWays(t *testing.T) {
	for _, first := range []string{"renter", "provider"} {
		synctest.Test(t, func(t *testing.T) {
			_, renter, provider := twoKeepers(t)
			asker, other := renter, provider
			if first == "provider" {
				asker, other = provider, renter
			}
			for range 2 {
				must(t, asker.Ask(t.Context(), other.dev.Peer()))
			}
			for _, two := range [][2]*keeper{{renter, provider}, {provider, renter}} {
				w := two[0].about(two[1])
				if w.Checked != 3 || w.Cosigned != 3 || w.Suspicion != "" || w.Fork != nil || two[0].verdict() != books.ResultOK {
					t.Errorf("%s asked: %+v", first, w)
				}
			}
		})
	}
}

// The file of a lease carries the other side's cosignature, and a third person is told of it.
func TestProofHasTheCosignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := twoKeepers(t)
		must(t, renter.Ask(t.Context(), provider.dev.Peer()))
		voucherFor(renter, provider, 1, 40)
		for _, k := range []*keeper{renter, provider} {
			var f proof.File
			must(t, k.books.View(t.Context(), func(r *books.Reader) (err error) { f, err = r.Prove(ledger.Lane{1}, nil); return err }))
			raw, err := f.Encode()
			must(t, err)
			v := proof.Check(raw)
			if v.Result != proof.OK || !strings.Contains(strings.Join(v.Proven, "\n"), "cosigned the first 3 entries") {
				t.Errorf("%s: %s\n%s", v.Result, v.Detail, strings.Join(v.Proven, "\n"))
			}
		}
	})
}

// rewritten is a keeper's device with a ledger of another past, in which nothing is wrong.
func rewritten(t *testing.T, n *p2ptest.Net, of *keeper) *keeper {
	t.Helper()
	of.net.(*p2ptest.Node).Close()
	forger := newKeeper(t, n.Join(of.dev), of.dev, &kv.Memory{}, t.TempDir())
	n.Mesh()
	shill := fresh(t, n)
	openLane(forger, shill, 2)
	voucherFor(forger, shill, 2, 1, 2, 3, 4)
	forger.books.Showed()
	return forger
}

// A peer that rewrote its past, with a ledger in which nothing is wrong, is caught with a proof that anybody can check.
func TestRewrittenPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := twoKeepers(t)
		must(t, provider.Ask(t.Context(), renter.dev.Peer()))
		forger := rewritten(t, n, renter)
		if got := forger.verdict(); got != books.ResultOK {
			t.Fatalf("the forgery is %s by itself", got)
		}
		if err := provider.Ask(t.Context(), forger.dev.Peer()); !errors.Is(err, books.ErrFork) {
			t.Fatal(err)
		}
		if w := provider.about(forger); w.Fork == nil || w.Fork.Entries != 3 {
			t.Fatalf("%+v", w)
		}
		if err := forger.books.ReadOnly(); !errors.Is(err, books.ErrBehind) {
			t.Errorf("the forger goes on: %v", err)
		}
		var raw []byte
		must(t, provider.books.View(t.Context(), func(r *books.Reader) error {
			f, err := r.ForkOf(forger.dev.Peer())
			if err != nil {
				return err
			}
			raw, err = f.Encode()
			return err
		}))
		checkedByOthers(t, raw, renter.dev)
	})
}

// checkedByOthers checks a fork's file as somebody who has no program of ours: with the key that it names, and x/mod's signed notes.
func checkedByOthers(t *testing.T, raw []byte, dev *identity.Device) {
	t.Helper()
	parts := strings.Split(string(raw), "---\n")
	var key string
	for line := range strings.SplitSeq(parts[0], "\n") {
		if k, ok := strings.CutPrefix(line, "key "); ok {
			key = k
		}
	}
	v, err := note.NewVerifier(key)
	must(t, err)
	var texts []string
	for _, p := range parts[1:] {
		n, err := note.Open([]byte(p), note.VerifierList(v))
		must(t, err)
		texts = append(texts, n.Text)
	}
	a, b := strings.Split(texts[0], "\n"), strings.Split(texts[1], "\n")
	if len(texts) != 2 || a[0] != b[0] || a[1] != b[1] || a[2] == b[2] || !strings.Contains(a[0], dev.Peer().String()) {
		t.Errorf("the notes are %q", texts)
	}
	if got := proof.CheckFork(raw); got.Result != proof.Forged || got.Account != dev.Account().String() || got.Device != dev.Peer().String() {
		t.Errorf("%+v", got)
	}
	for i := range raw {
		bad := bytes.Clone(raw)
		bad[i] ^= 1
		got := proof.CheckFork(bad)
		if got.Result == proof.Forged && (got.Device != dev.Peer().String() || got.Account != "" && got.Account != dev.Account().String()) {
			t.Fatalf("byte %d changed: accuses %+v", i, got)
		}
	}
}

// An owner restored an older copy of its ledger, without a word. Its peer knows better: whoever asks first, the ledger writes nothing more,
// says so, and says so after a restart.
func TestRestoredOlder(t *testing.T) {
	for _, first := range []string{"its peer", "itself"} {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := twoKeepers(t)
			must(t, renter.Ask(t.Context(), provider.dev.Peer()))
			engine, dir := renter.copied()
			voucherFor(renter, provider, 1, 40, 50, 60)
			must(t, provider.Ask(t.Context(), renter.dev.Peer()))
			renter.net.(*p2ptest.Node).Close()
			old := newKeeper(t, n.Join(renter.dev), renter.dev, engine, dir)
			n.Mesh()
			if got := old.verdict(); got != books.ResultOK {
				t.Fatalf("the old copy is %s by itself", got)
			}
			asker, asked := provider, old
			if first == "itself" {
				asker, asked = old, provider
			}
			err := asker.Ask(t.Context(), asked.dev.Peer())
			var told *p2p.Error
			if first == "itself" && !errors.Is(err, books.ErrBehind) || first == "its peer" && !errors.As(err, &told) {
				t.Fatalf("asked by %s: %v", first, err)
			}
			w := provider.about(renter)
			if (w.Suspicion != "") != (first == "its peer") || w.Fork != nil || w.Checked != 6 {
				t.Errorf("the peer, asked by %s, knows %+v", first, w)
			}
			engine, dir = old.copied()
			again := newKeeper(t, old.net, renter.dev, engine, dir)
			for _, k := range []*keeper{old, again} {
				if err := k.books.ReadOnly(); !errors.Is(err, books.ErrBehind) || k.verdict() != books.ResultBehind {
					t.Errorf("asked by %s: %v, %s", first, err, k.verdict())
				}
			}
			if err := provider.Ask(t.Context(), renter.dev.Peer()); err == nil {
				t.Error("asked again, and nothing is wrong")
			}
		})
	}
}

// The line breaks after any number of bytes; asking again brings both sides to the same state as without a break.
func TestWitnessLostAnywhere(t *testing.T) {
	broken := 0
	for cut := 100; cut < 3500; cut += 170 {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := twoKeepers(t)
			must(t, renter.Ask(t.Context(), provider.dev.Peer()))
			voucherFor(renter, provider, 1, 40, 50, 60)
			n.Faults(renter.dev.Peer(), provider.dev.Peer(), p2ptest.Faults{CutAfter: cut})
			if err := renter.Ask(t.Context(), provider.dev.Peer()); err != nil {
				broken++
			}
			n.Faults(renter.dev.Peer(), provider.dev.Peer(), p2ptest.Faults{})
			n.Mesh()
			must(t, renter.Ask(t.Context(), provider.dev.Peer()))
			for _, two := range [][2]*keeper{{renter, provider}, {provider, renter}} {
				if w := two[0].about(two[1]); w.Checked != 6 || w.Cosigned != 6 || w.Suspicion != "" {
					t.Errorf("cut after %d bytes: %+v", cut, w)
				}
			}
		})
	}
	if broken < 5 {
		t.Fatalf("only %d conversations were broken", broken)
	}
}

// A peer that does not show how its ledger grew is suspect, and no more; one that is busy is not even that.
func TestRefusingPeers(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(head []byte) (settle.Heads, error)
		suspect bool
	}{
		"refuses":       {func([]byte) (settle.Heads, error) { return settle.Heads{}, p2p.Errorf(p2p.KindRefused, "no") }, true},
		"knows nobody":  {func([]byte) (settle.Heads, error) { return settle.Heads{}, p2p.Errorf(p2p.KindForbidden, "who?") }, true},
		"shows nothing": {func([]byte) (settle.Heads, error) { return settle.Heads{}, nil }, true},
		"proves naught": {func(head []byte) (settle.Heads, error) { return settle.Heads{Head: head}, nil }, true},
		"is busy":       {func([]byte) (settle.Heads, error) { return settle.Heads{}, p2p.Errorf(p2p.KindBusy, "later") }, false},
		"is read-only":  {func([]byte) (settle.Heads, error) { return settle.Heads{}, p2p.Errorf(p2p.KindUnavailable, "later") }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, renter, provider := twoKeepers(t)
			var head []byte
			must(t, renter.books.View(t.Context(), func(r *books.Reader) (err error) { head, err = r.Checkpoint(); return err }))
			renter.net.Handle(witnessProtocol, settle.WitnessLimits(), p2p.Answer(1<<16, func(context.Context, identity.PeerID, settle.Heads) (settle.Heads, error) {
				return c.answer(head)
			}))
			if err := provider.Ask(t.Context(), renter.dev.Peer()); err == nil {
				t.Fatalf("%s: no error", name)
			}
			if w := provider.about(renter); (w.Suspicion != "") != c.suspect || w.Fork != nil || w.Checked != 0 {
				t.Errorf("%s: %+v", name, w)
			}
			renter.net.Handle(witnessProtocol, settle.WitnessLimits(), renter.Handler())
			must(t, provider.Ask(t.Context(), renter.dev.Peer()))
			if w := provider.about(renter); w.Suspicion != "" || w.Checked != 3 {
				t.Errorf("%s, and then did not: %+v", name, w)
			}
		})
	}
}

// Strangers learn and leave nothing.
func TestWitnessStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := twoKeepers(t)
		stranger := fresh(t, n)
		n.Mesh()
		sign := func(dev *identity.Device, size uint64) []byte {
			b, err := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 1}, Size: size}.Sign(dev.SignNote)
			must(t, err)
			return b
		}
		many := make([][]byte, books.MaxKnown+1)
		for i := range many {
			many[i] = sign(provider.dev, 0)
		}
		for name, q := range map[string]settle.Heads{
			"a head of its own":   {Known: [][]byte{sign(stranger.dev, 1)}},
			"garbage":             {Known: [][]byte{[]byte("x")}},
			"too many":            {Known: many},
			"a cosigned nothing":  {Head: sign(stranger.dev, 1), Cosigned: []byte("x")},
			"not cosigned at all": {Head: sign(stranger.dev, 1), Cosigned: sign(provider.dev, 0)},
		} {
			var got settle.Heads
			err := p2p.Call(t.Context(), stranger.net, provider.dev.Peer(), witnessProtocol, q, &got, 1<<16)
			var refusal *p2p.Error
			if !errors.As(err, &refusal) || refusal.Kind != p2p.KindBadRequest {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		var got settle.Heads
		must(t, p2p.Call(t.Context(), stranger.net, provider.dev.Peer(), witnessProtocol, settle.Heads{}, &got, 1<<16))
		if len(got.Known) > 0 || got.Head != nil {
			t.Errorf("a stranger learns %+v", got)
		}
		must(t, p2p.Call(t.Context(), stranger.net, provider.dev.Peer(), witnessProtocol, settle.Heads{Head: sign(stranger.dev, 1)}, &got, 1<<16))
		if got.Cosigned != nil || provider.about(stranger).Device != "" {
			t.Error("a stranger's ledger was cosigned")
		}
		must(t, provider.Ask(t.Context(), stranger.dev.Peer())) // there is nothing to ask about
		must(t, provider.Ask(t.Context(), renter.dev.Peer()))
		if provider.books.ReadOnly() != nil {
			t.Error(provider.books.ReadOnly())
		}
	})
}
