package proof_test

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
)

// witness has one side check and cosign the other's log.
func (p *party) witness(of *party) {
	p.tb.Helper()
	device := of.dev.Peer()
	var known [][]byte
	var shown books.Testimony
	var note []byte
	must(p.tb, p.View(p.tb.Context(), func(r *books.Reader) (err error) { known, err = r.Known(device); return err }))
	must(p.tb, of.View(p.tb.Context(), func(r *books.Reader) (err error) {
		shown.Head, shown.Extensions, _, err = r.Standing(known)
		return err
	}))
	p.update(func(t *books.Tx) (err error) { note, err = t.Witness(device, known, shown, true); return err })
	of.update(func(t *books.Tx) error { return t.KeepCosigned(p.dev.Peer(), note) })
}

// TestCosigned: a file with the other side's word shows how far that goes; one without says that there is none.
func TestCosigned(t *testing.T) {
	w := newWorld(t)
	const none = "it has cosigned no head of it"
	if v := w.provider.checked(lease, proof.OK); !strings.Contains(strings.Join(v.NotProven, "\n"), none) || v.Cosigned != 0 {
		t.Errorf("%+v", v)
	}
	w.renter.witness(w.provider)
	w.provider.witness(w.renter)
	w.pay(lease, 8000)
	for _, p := range []*party{w.renter, w.provider} {
		v := p.checked(lease, proof.OK)
		if v.Cosigned == 0 || v.Cosigned >= v.Entries || v.CosignedAt.IsZero() || strings.Contains(strings.Join(v.NotProven, "\n"), none) {
			t.Errorf("%+v", v)
		}
	}
}

// TestWrongCosigned: a cosignature that is none, of another's, or of another log, is found.
func TestWrongCosigned(t *testing.T) {
	w := newWorld(t)
	w.renter.witness(w.provider)
	w.pay(lease, 8000)
	head := func(change func(*history.Checkpoint)) func(*proof.File) {
		return func(f *proof.File) {
			cp, err := history.Open(f.Cosigned.Note, w.provider.dev.Peer())
			must(t, err)
			change(&cp)
			note, err := cp.Sign(w.provider.dev.SignNote)
			must(t, err)
			f.Cosigned.Note, err = history.Cosign(note, w.provider.dev.Peer(), w.renter.dev.Peer(), time.Unix(1_800_000_000, 0), w.renter.dev.SignCosignature)
			must(t, err)
		}
	}
	found(t, map[string]wrong{
		"not cosigned":    {w.provider, func(f *proof.File) { f.Cosigned.Note = f.Checkpoint }, proof.Forged, "cosigned head"},
		"another witness": {w.provider, func(f *proof.File) { f.Cosigned.By = newParty(t).dev.Peer() }, proof.Forged, "cosigned head"},
		"cosigned by itself": {w.provider, func(f *proof.File) {
			d := newParty(t).dev
			note, err := history.Cosign(f.Checkpoint, w.provider.dev.Peer(), d.Peer(), time.Unix(1_800_000_000, 0), d.SignCosignature)
			must(t, err)
			f.Cosigned = &proof.Cosigned{By: d.Peer(), Note: note}
		}, proof.Corrupt, "cosigned head"},
		"another root":                  {w.provider, head(func(c *history.Checkpoint) { c.Root[0]++ }), proof.Corrupt, "cosigned head"},
		"another epoch":                 {w.provider, head(func(c *history.Checkpoint) { c.Origin.Epoch++ }), proof.Corrupt, "cosigned head"},
		"a larger one of another epoch": {w.provider, head(func(c *history.Checkpoint) { c.Origin.Epoch++; c.Size += 100 }), proof.Corrupt, "cosigned head"},
		"a larger one":                  {w.provider, head(func(c *history.Checkpoint) { c.Size += 100 }), proof.Behind, "cosigned head"},
		"no extension": {w.provider, func(f *proof.File) {
			cp, err := history.Open(f.Cosigned.Note, w.provider.dev.Peer())
			must(t, err)
			f.Extensions = slices.DeleteFunc(f.Extensions, func(e proof.Extension) bool { return e.Size == cp.Size })
		}, proof.Corrupt, "c"},
	})
}

// forkOf makes a proof against a device.
func forkOf(tb testing.TB, dev *identity.Device) proof.Fork {
	tb.Helper()
	f := proof.Fork{Device: dev.Peer(), Delegation: dev.Delegation()}
	for i := range f.Notes {
		c := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 1}, Size: 7, Root: history.Hash{byte(i)}}
		note, err := c.Sign(dev.SignNote)
		must(tb, err)
		f.Notes[i] = note
	}
	return f
}

// TestForkFile: what holds names the forger; what does not, nobody.
func TestForkFile(t *testing.T) {
	dev, other := newParty(t).dev, newParty(t).dev
	f := forkOf(t, dev)
	raw, err := f.Encode()
	must(t, err)
	again, err := proof.DecodeFork(raw)
	must(t, err)
	if again.Device != f.Device || !bytes.Equal(again.Delegation, f.Delegation) || !bytes.Equal(again.Notes[1], f.Notes[1]) {
		t.Errorf("%+v", again)
	}
	v := proof.CheckFork(raw)
	if v.Result != proof.Forged || v.Account != dev.Account().String() || v.Device != dev.Peer().String() || v.Entries != 7 || v.Roots[0] == v.Roots[1] {
		t.Errorf("%+v", v)
	}
	anonymous := f
	anonymous.Delegation = nil
	foreign := f
	foreign.Delegation = other.Delegation()
	for name, f := range map[string]proof.Fork{"no delegation": anonymous, "another's delegation": foreign} {
		raw, err := f.Encode()
		must(t, err)
		if v := proof.CheckFork(raw); v.Result != proof.Forged || v.Account != "" {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for name, f := range map[string]proof.Fork{
		"the same twice": {Device: f.Device, Notes: [2][]byte{f.Notes[0], f.Notes[0]}}, "another's": {Device: other.Peer(), Notes: f.Notes},
		"one note": {Device: f.Device, Notes: [2][]byte{f.Notes[0], nil}},
	} {
		if raw, err := f.Encode(); err == nil {
			t.Errorf("%s: written as\n%s", name, raw)
		}
	}
	name, key := dev.Peer().String(), base64.StdEncoding.EncodeToString(dev.Delegation())
	for what, bad := range map[string][]byte{
		"nothing": nil, "cut": raw[:len(raw)-3], "a line more": append(bytes.Clone(raw), "---\n"...), "long": append(bytes.Clone(raw), make([]byte, 9<<10)...),
		"another device": bytes.Replace(raw, []byte("device "+name), []byte("device "+other.Peer().String()), 1),
		"another key":    bytes.Replace(raw, []byte("key gpufair/"), []byte("key gpufair/x"), 1),
		"no base64":      bytes.Replace(raw, []byte(key), []byte("x"), 1),
		"another size":   bytes.Replace(raw, []byte("\n7\n"), []byte("\n8\n"), 1),
		"other line":     bytes.Replace(raw, []byte("key "), []byte("note x\nkey "), 1),
	} {
		if v := proof.CheckFork(bad); v.Result != proof.Corrupt || v.Device != "" || v.Detail == "" {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

func FuzzCheckFork(f *testing.F) {
	dev := identitytest.NewParty(f, 1).Device // the same in every process of the fuzzer
	raw, err := forkOf(f, dev).Encode()
	must(f, err)
	f.Add(raw)
	f.Add([]byte("gpufair-fork/1\ndevice \n---\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v := proof.CheckFork(b); v.Result == proof.Forged && v.Device != dev.Peer().String() {
			t.Errorf("%q accuses %s", b, v.Device)
		}
	})
}
