package books

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// logs calls f with what is known of each log of other devices.
func (r *Reader) logs(f func(o history.Origin, w witnessed) error) error {
	return each(r.own, "wit/", func(k []byte, w witnessed) error {
		o, err := originOf(k)
		if err != nil {
			return err
		}
		return f(o, w)
	})
}

// each calls f with the rest of the key and the record of everything under a prefix.
func each[T any](r kv.Reader, prefix string, f func(rest []byte, v T) error) error {
	for p, err := range r.Iterate([]byte(prefix), nil) {
		if err != nil {
			return err
		}
		var v T
		if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
			return fmt.Errorf("record %q: %w: %w", p.Key, ErrCorrupt, err)
		}
		if err := f(bytes.TrimPrefix(p.Key, []byte(prefix)), v); err != nil {
			return err
		}
	}
	return nil
}

// originOf reads a device and an epoch.
func originOf(k []byte) (history.Origin, error) {
	var o history.Origin
	if len(k) != len(o.Peer)+8 {
		return o, fmt.Errorf("log record %x: %w", k, ErrCorrupt)
	}
	return history.Origin{Peer: identity.PeerID(k), Epoch: binary.BigEndian.Uint64(k[len(o.Peer):])}, nil
}

func deviceOf(k []byte) (identity.PeerID, error) {
	if len(k) != len(identity.PeerID{}) {
		return identity.PeerID{}, fmt.Errorf("device record %x: %w", k, ErrCorrupt)
	}
	return identity.PeerID(k), nil
}

// ForkOf gives the file that shows anybody that a device signed two histories; ErrUnknownDevice if it did not.
func (r *Reader) ForkOf(device identity.PeerID) (proof.Fork, error) {
	f, ok, err := load[forked](r.own, forkKey(device))
	if err == nil && !ok {
		err = fmt.Errorf("device %s: %w", device, ErrUnknownDevice)
	}
	return proof.Fork{Device: device, Delegation: f.Delegation, Notes: [2][]byte{f.Have, f.Got}}, err
}

// ShowWitnesses gives what this side and its counterparties know of each other's logs.
func (r *Reader) ShowWitnesses() ([]statement.Witness, error) {
	out := []statement.Witness{}
	err := r.logs(func(o history.Origin, w witnessed) error {
		one, err := r.showWitness(o, w)
		out = append(out, one)
		return err
	})
	slices.SortStableFunc(out, func(a, b statement.Witness) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Epoch, b.Epoch))
	})
	return out, err
}

func (r *Reader) showWitness(o history.Origin, w witnessed) (statement.Witness, error) {
	out := statement.Witness{
		Account: w.Account.String(), Device: o.Peer.String(), Epoch: o.Epoch, Origin: o.String(),
		CheckedAt: when(w.At), Suspicion: w.Suspect, SuspectSince: when(w.Since),
	}
	checked, err := w.checked()
	if err != nil {
		return out, err
	}
	if w.Note != nil {
		out.Checked, out.Root = checked.Size, wire.Hash(checked.Root).String()
	}
	for p, err := range r.own.Iterate(seenKey(o), nil) {
		if err != nil {
			return out, err
		}
		cp, err := history.Read(p.Value)
		if err != nil {
			return out, fmt.Errorf("head of %s: %w: %w", o, ErrCorrupt, err)
		}
		out.Seen = max(out.Seen, cp.Size)
	}
	mine, ok, err := load[cosignedBy](r.own, cosignedKey(o.Peer))
	if err != nil {
		return out, err
	}
	if ok {
		got, err := r.cosigned(o.Peer, mine)
		if err != nil {
			return out, err
		}
		out.Cosigned, out.CosignedAt, out.CosignedEpoch = got.Size, got.Time, got.Origin.Epoch
	}
	f, ok, err := load[forked](r.own, forkKey(o.Peer))
	if err != nil || !ok {
		return out, err
	}
	one, _, err := history.Fork(f.Have, f.Got, o.Peer)
	if err != nil {
		return out, fmt.Errorf("proof against device %s: %w: %w", o.Peer, ErrForged, err)
	}
	out.Fork = &statement.Fork{Epoch: one.Origin.Epoch, Entries: one.Size, Found: when(f.Found)}
	return out, nil
}

// cosigned opens a head of this ledger that a device cosigned. Which of this account's devices signed it, it says itself.
func (r *Reader) cosigned(by identity.PeerID, c cosignedBy) (history.Cosigned, error) {
	line, _, _ := bytes.Cut(c.Note, []byte("\n"))
	o, err := history.ParseOrigin(string(line))
	if err != nil {
		return history.Cosigned{}, err
	}
	return history.OpenCosigned(c.Note, o.Peer, by)
}

// newestCosigned gives the largest head of this ledger's log, in this epoch, that a device of account cosigned; ok is false if there is none.
func (r *Reader) newestCosigned(account identity.AccountID) (kept cosignedBy, best history.Cosigned, ok bool, err error) {
	err = each(r.own, "cos/", func(k []byte, c cosignedBy) error {
		device, err := deviceOf(k)
		if err != nil || c.Account != account {
			return err
		}
		got, err := r.cosigned(device, c)
		if err != nil {
			return fmt.Errorf("head cosigned by device %s: %w: %w", device, ErrForged, err)
		}
		own := history.Origin{Peer: r.b.config.Device.Peer(), Epoch: uint64(r.b.Epoch())}
		if got.Origin == own && (!ok || got.Size > best.Size) {
			kept, best, ok = c, got, true
			kept.by = device
		}
		return nil
	})
	return kept, best, ok, err
}

// fits is the detail of a good verdict.
func fits(v statement.Verdict) string {
	text := fmt.Sprintf("%d entries and %d signatures fit", v.Entries, v.Checked)
	if v.Forks > 0 {
		text += fmt.Sprintf("; %d of the other side's devices signed two histories: see `ledger witness`", v.Forks)
	}
	return text
}

// witnesses checks everything that is kept of others' logs, what others said of this one, and the kept proofs of two histories. It names
// a peer's lies in the verdict's detail: they are no fault of this ledger.
func (a *audit) witnesses() error {
	err := a.r.logs(func(o history.Origin, w witnessed) error {
		if w.Note == nil {
			return nil
		}
		a.checked += 2
		if _, err := history.OpenCosigned(w.Note, o.Peer, w.By); err != nil {
			return forged("head of "+o.String(), err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for p, err := range a.r.own.Iterate([]byte("seen/"), nil) {
		if err != nil {
			return err
		}
		if err := a.seen(p); err != nil {
			return err
		}
	}
	if err := each(a.r.own, "cos/", a.own); err != nil {
		return err
	}
	return each(a.r.own, "fork/", func(k []byte, f forked) error {
		device, err := deviceOf(k)
		if err != nil {
			return err
		}
		a.checked += 2
		if _, _, err := history.Fork(f.Have, f.Got, device); err != nil {
			return forged(fmt.Sprintf("proof against device %s", device), err)
		}
		a.forks++
		return nil
	})
}

// seen checks a head that came with a record.
func (a *audit) seen(p kv.Pair) error {
	k := bytes.TrimPrefix(p.Key, []byte("seen/"))
	o, err := originOf(k[:max(0, len(k)-2)])
	if err != nil {
		return err
	}
	a.checked++
	cp, err := history.Open(p.Value, o.Peer)
	if err != nil {
		return forged("head of "+o.String(), err)
	}
	if cp.Origin != o || slot(cp.Size) != k[len(k)-1] {
		return corrupt("head of "+o.String(), "it is kept in another's place")
	}
	return nil
}

// own checks a head of this ledger that a device cosigned: the ledger must begin so.
func (a *audit) own(k []byte, c cosignedBy) error {
	device, err := deviceOf(k)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("head cosigned by device %s", device)
	a.checked += 2
	got, err := a.r.cosigned(device, c)
	if err != nil {
		return forged(what, err)
	}
	if got.Origin.Peer != a.r.b.config.Device.Peer() {
		return nil // of a former device of this account: another log
	}
	return a.begins(what, got.Checkpoint)
}

// begins checks that the ledger begins as a head of it says.
func (a *audit) begins(what string, cp history.Checkpoint) error {
	state, err := a.r.judge(cp)
	switch {
	case err != nil:
		return err
	case state == future:
		return &Finding{Result: ResultBehind, Entry: what, Detail: fmt.Sprintf("it is of %d entries in epoch %d, the ledger has %d in epoch %d",
			cp.Size, cp.Origin.Epoch, a.grown.Size(), a.r.b.Epoch())}
	case state == changed:
		return &Finding{Result: ResultForged, Entry: what, Detail: fmt.Sprintf("this device signed for other first %d entries than are here", cp.Size)}
	}
	return nil
}

// shown compares the ledger with the head that a peer once showed: see [Books.Behind].
func (a *audit) shown() error {
	cp, ok, err := a.r.readBehind()
	if err != nil && ok {
		return corrupt("file "+behindName, "%v", err)
	}
	if err != nil || !ok {
		return err
	}
	a.checked++
	return a.begins("a peer's word on this ledger", cp)
}
