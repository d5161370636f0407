package books

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Every record of money carries the head of its signer's log. What of them is kept, by device and epoch: the newest that this side
// checked to extend the one before and cosigned, and some of those that came since. So a device that changes its past must sign two
// heads of one size, which proves it, or refuse to show how the newest grew, which is seen.

var (
	// ErrFork says that a device signed two histories of its log: see [Fork].
	ErrFork = errors.New("it signed two histories of its ledger")
	// ErrUnproven says that a peer did not show that its log still begins as it signed before. That is suspicious and no proof.
	ErrUnproven = errors.New("it did not show that its ledger still begins as it signed before")
	// ErrUnknownDevice says that no record of a device is here, so nothing is kept of its log.
	ErrUnknownDevice = errors.New("no record of this device is here")
)

// Fork is an [ErrFork] with its proof: two heads of one size with different roots, both signed by the device.
type Fork struct {
	Device     identity.PeerID
	Delegation []byte // as signed: for which account the device acted
	Have, Got  []byte // signed notes
}

// Error names the device; the proof is in the fields.
func (f *Fork) Error() string { return fmt.Sprintf("device %s: %v", f.Device, ErrFork) }

// Unwrap gives [ErrFork].
func (f *Fork) Unwrap() error { return ErrFork }

// Bounds of what is kept of others' logs: of a device, at most maxEpochs logs with a checked head and seenSlots others each. Devices
// themselves are as many as have signed records of money here.
const (
	maxEpochs    = 4
	seenSlots    = 8
	maxSuspicion = 200 // bytes of what is suspicious
)

// MaxKnown is how many heads of one log a peer is asked about at once: the checked one, and those seen since.
const MaxKnown = 1 + seenSlots

// witnessed is what is known of one log of a device.
type witnessed struct {
	Account identity.AccountID `cbor:"1,keyasint"`
	Note    []byte             `cbor:"2,keyasint,omitempty"` // newest head that was checked, with this side's cosignature
	By      identity.PeerID    `cbor:"3,keyasint"`           // this account's device that cosigned it
	At      int64              `cbor:"4,keyasint"`           // Unix milliseconds: when it was checked; 0: never
	Suspect string             `cbor:"5,keyasint,omitempty"` // why this log is suspicious; empty: it is not
	Since   int64              `cbor:"6,keyasint"`           // Unix milliseconds: of the suspicion
	Proof   wire.Hash          `cbor:"7,keyasint"`           // of the delegation by which the device acts for the account
}

// cosignedBy is the newest head of this ledger that a device cosigned.
type cosignedBy struct {
	Account identity.AccountID `cbor:"1,keyasint"`
	Note    []byte             `cbor:"2,keyasint"`
	Proof   wire.Hash          `cbor:"3,keyasint"` // of the delegation by which the device acts for the account

	by identity.PeerID
}

// forked is a kept [Fork].
type forked struct {
	Delegation []byte `cbor:"1,keyasint"`
	Have       []byte `cbor:"2,keyasint"`
	Got        []byte `cbor:"3,keyasint"`
	Found      int64  `cbor:"4,keyasint"` // Unix milliseconds
}

func witnessKey(o history.Origin) []byte        { return key("wit/", o.Peer[:], be8(o.Epoch)) }
func seenKey(o history.Origin) []byte           { return key("seen/", o.Peer[:], be8(o.Epoch), []byte("/")) }
func cosignedKey(device identity.PeerID) []byte { return key("cos/", device[:]) }
func forkKey(device identity.PeerID) []byte     { return key("fork/", device[:]) }
func askKey(device identity.PeerID) []byte      { return key("ask/", device[:]) }

// slot spreads sizes over the places for seen heads: half of all sizes share one, a quarter the next, and so on. So the newest is always
// there, and older ones ever farther apart.
func slot(size uint64) byte { return byte(min(bits.TrailingZeros64(size), seenSlots-1)) }

// sighting is the head that came with a record, after [Tx.sight].
type sighting struct {
	note   []byte
	head   history.Checkpoint
	signer identity.Header
}

// sight judges the head that a record carries: by a device that is known to have forked, or that forks by this head, it is a [*Fork], and the
// proof is kept even if the record is not. Nothing else is written: see [Tx.remember].
func (t *Tx) sight(note []byte, signer identity.Header) (sighting, error) {
	trimmed, head, err := history.Trim(note, signer.Device)
	if err != nil {
		return sighting{}, fmt.Errorf("checkpoint: %w", err)
	}
	s := sighting{note: trimmed, head: head, signer: signer}
	if signer.Device == t.b.config.Device.Peer() {
		return s, nil
	}
	if err := t.Forked(signer.Device); err != nil {
		return s, err
	}
	return s, t.compare(s)
}

// compare compares a head with those of the same size that are here.
func (t *Tx) compare(s sighting) error {
	w, ok, err := load[witnessed](t.own, witnessKey(s.head.Origin))
	if err != nil || !ok {
		return err
	}
	seen, err := raw(t.own, append(seenKey(s.head.Origin), slot(s.head.Size)))
	if err != nil {
		return err
	}
	for _, have := range [][]byte{w.Note, seen} {
		if have == nil {
			continue
		}
		cp, err := history.Read(have)
		if err != nil {
			return fmt.Errorf("head of %s: %w: %w", s.head.Origin, ErrCorrupt, err)
		}
		if !cp.Forks(s.head) {
			continue
		}
		bare, _, err := history.Trim(have, s.signer.Device)
		if err != nil {
			return fmt.Errorf("head of %s: %w: %w", s.head.Origin, ErrCorrupt, err)
		}
		return t.fork(w, s.signer.Device, bare, s.note)
	}
	return nil
}

// fork keeps the proof against a device and gives it.
func (t *Tx) fork(w witnessed, device identity.PeerID, have, got []byte) error {
	d, err := raw(t.own, delegationKey(w.Proof))
	if err != nil {
		return err
	}
	f := &Fork{Device: device, Delegation: d, Have: have, Got: got}
	return errors.Join(f, keepFork(t.own, f, t.now.UnixMilli()))
}

// keepFork keeps the first proof against a device: one is enough, and who makes more must not fill the disk.
func keepFork(t kv.Tx, f *Fork, now int64) error {
	k := forkKey(f.Device)
	if have, err := raw(t, k); err != nil || have != nil {
		return err
	}
	return save(t, k, forked{Delegation: f.Delegation, Have: f.Have, Got: f.Got, Found: now})
}

// Forked gives the kept proof that a device signed two histories of its log, a [*Fork]; nil if there is none.
func (r *Reader) Forked(device identity.PeerID) error {
	f, ok, err := load[forked](r.own, forkKey(device))
	if err != nil || !ok {
		return err
	}
	return &Fork{Device: device, Delegation: f.Delegation, Have: f.Have, Got: f.Got}
}

// remember keeps a head that came with a record which is kept, too. A smaller one than the newest that was checked says nothing new.
func (t *Tx) remember(s sighting, delegation wire.Hash) error {
	if s.signer.Device == t.b.config.Device.Peer() {
		return nil
	}
	w, ok, err := t.log(s.head.Origin, witnessed{Account: s.signer.Account, Proof: delegation})
	if err != nil || !ok {
		return err
	}
	if checked, err := w.checked(); err != nil || w.Note != nil && s.head.Size <= checked.Size {
		return err
	}
	k := append(seenKey(s.head.Origin), slot(s.head.Size))
	have, err := raw(t.own, k)
	if err != nil {
		return err
	}
	if have != nil {
		cp, err := history.Read(have)
		if err != nil {
			return fmt.Errorf("head of %s: %w: %w", s.head.Origin, ErrCorrupt, err)
		}
		if cp.Size >= s.head.Size {
			return nil
		}
	}
	return t.own.Set(k, s.note)
}

// checked is the head that was checked; zero if none was.
func (w witnessed) checked() (history.Checkpoint, error) {
	if w.Note == nil {
		return history.Checkpoint{}, nil
	}
	cp, err := history.Read(w.Note)
	if err != nil {
		return cp, fmt.Errorf("checked head: %w: %w", ErrCorrupt, err)
	}
	return cp, nil
}

// log gives what is known of a log, and makes a record of it on the first sight. Of a device's logs the newest epochs are kept; ok is
// false for one that is older than all of those.
func (t *Tx) log(o history.Origin, first witnessed) (w witnessed, ok bool, err error) {
	k := witnessKey(o)
	if w, ok, err = load[witnessed](t.own, k); err != nil || ok {
		return w, ok, err
	}
	epochs, err := t.epochs(o.Peer)
	if err != nil {
		return w, false, err
	}
	if len(epochs) >= maxEpochs {
		if o.Epoch < epochs[0] {
			return w, false, nil
		}
		if err := t.forget(history.Origin{Peer: o.Peer, Epoch: epochs[0]}); err != nil {
			return w, false, err
		}
	}
	return first, true, save(t.own, k, first)
}

// epochs lists the epochs of a device's logs that are known, lowest first.
func (r *Reader) epochs(device identity.PeerID) (out []uint64, err error) {
	prefix := key("wit/", device[:])
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return nil, err
		}
		if len(p.Key) != len(prefix)+8 {
			return nil, fmt.Errorf("log record %x: %w", p.Key, ErrCorrupt)
		}
		out = append(out, binary.BigEndian.Uint64(p.Key[len(prefix):]))
	}
	return out, nil
}

// forget drops what is known of one log.
func (t *Tx) forget(o history.Origin) error {
	for p, err := range t.own.Iterate(seenKey(o), nil) {
		if err != nil {
			return err
		}
		if err := t.own.Delete(p.Key); err != nil {
			return err
		}
	}
	return t.own.Delete(witnessKey(o))
}

// settler judges the head that a settlement carries and remembers it. A fork is kept and does not keep anybody from settling: that ends
// the debt, whoever lied.
func (t *Tx) settler(note []byte, signer identity.Header, delegation wire.Hash) error {
	s, err := t.sight(note, signer)
	if errors.Is(err, ErrFork) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.remember(s, delegation)
}

// askAtEnd marks the same when a record comes for a lane that has ended: it may be the last.
func (t *Tx) askAtEnd(l Lane) error {
	if !l.Closed() {
		return nil
	}
	return t.askAbout(l)
}

// askAbout marks that the other side of a lane is to be asked about its log soon. On the renter's side its device is that of the newest
// receipt; without one there is nothing to ask about.
func (t *Tx) askAbout(l Lane) error {
	device, err := t.otherDevice(l)
	if err != nil || device.IsZero() {
		return err
	}
	return t.own.Set(askKey(device), nil)
}
