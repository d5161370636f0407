package books

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Extension says how a log stands to one of its former heads that somebody else holds.
type Extension struct {
	Size  uint64      `cbor:"1,keyasint"`           // of the former head
	Proof []wire.Hash `cbor:"2,keyasint,omitempty"` // RFC 6962 consistency of it with the newest head; none for sizes 0 and the same
	Own   []byte      `cbor:"3,keyasint,omitempty"` // where the log has another root at Size: its head of that size, signed
}

// Standing gives this ledger's signed head, and how it stands to former heads that a peer holds; each must be a note of this device, else
// the error wraps identity.ErrSignature or its like. Where this ledger has another root at a size, it signs for that, too: a ledger that
// was changed proves it. contradiction is the first of the notes that this ledger does not begin as, nil if there is none: see
// [Books.Behind]. With one from the ledger's future, or of a size at which nobody was shown another root yet, there is nothing to show,
// and the error wraps ErrBehind: it is an older copy, and no lie.
func (r *Reader) Standing(known [][]byte) (head []byte, extensions []Extension, contradiction []byte, err error) {
	if head, err = r.Checkpoint(); err != nil {
		return nil, nil, nil, err
	}
	for _, note := range known {
		cp, err := history.Open(note, r.b.config.Device.Peer())
		if err != nil {
			return nil, nil, nil, err
		}
		state, err := r.judge(cp)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case state == future || state == changed && !r.b.shown(cp.Size):
			return nil, nil, note, fmt.Errorf("%w: a peer holds its head of %d entries in epoch %d", ErrBehind, cp.Size, cp.Origin.Epoch)
		case state == changed && contradiction == nil:
			contradiction = note
		}
		e, err := r.extension(cp, state)
		if err != nil {
			return nil, nil, nil, err
		}
		extensions = append(extensions, e)
	}
	return head, extensions, contradiction, nil
}

// relation is how this ledger stands to a head that this device signed.
type relation uint8

const (
	extends relation = iota // it begins so
	ended                   // that was a log of an earlier epoch
	future                  // it knows entries, or an epoch, that this ledger has not
	changed                 // this ledger has other entries
)

// judge compares a head that this device signed with this ledger.
func (r *Reader) judge(cp history.Checkpoint) (relation, error) {
	h, err := r.head()
	if err != nil {
		return 0, err
	}
	epoch := uint64(r.b.Epoch())
	switch {
	case cp.Origin.Epoch < epoch:
		return ended, nil
	case cp.Origin.Epoch > epoch || cp.Size > h.Size:
		return future, nil
	}
	root, err := history.Root(r.hashes(), cp.Size)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if root != cp.Root {
		return changed, nil
	}
	return extends, nil
}

// extension shows how the newest head stands to cp.
func (r *Reader) extension(cp history.Checkpoint, state relation) (e Extension, err error) {
	e.Size = cp.Size
	switch state {
	case extends:
		h, err := r.head()
		if err != nil {
			return e, err
		}
		p, err := history.ProveConsistency(r.hashes(), cp.Size, h.Size)
		if len(p) > 0 {
			e.Proof = proof.Hashes(p)
		}
		return e, err
	case changed:
		if cp.Root, err = history.Root(r.hashes(), cp.Size); err != nil {
			return e, err
		}
		e.Own, err = cp.Sign(r.b.config.Device.SignNote)
	}
	return e, err
}

// Known gives the heads of a device's newest log that it is to be asked about, as it signed them: the one that was checked, and those
// seen since. None if nothing of it is here.
func (r *Reader) Known(device identity.PeerID) ([][]byte, error) {
	epochs, err := r.epochs(device)
	if err != nil || len(epochs) == 0 {
		return nil, err
	}
	return r.heads(history.Origin{Peer: device, Epoch: epochs[len(epochs)-1]})
}

// heads gives the heads of one log.
func (r *Reader) heads(o history.Origin) (out [][]byte, err error) {
	w, _, err := load[witnessed](r.own, witnessKey(o))
	if err != nil {
		return nil, err
	}
	if w.Note != nil {
		bare, _, err := history.Trim(w.Note, o.Peer)
		if err != nil {
			return nil, fmt.Errorf("checked head of %s: %w: %w", o, ErrCorrupt, err)
		}
		out = append(out, bare)
	}
	for p, err := range r.own.Iterate(seenKey(o), nil) {
		if err != nil {
			return nil, err
		}
		out = append(out, p.Value)
	}
	return out[:min(len(out), MaxKnown)], nil
}

// Testimony is what a peer shows of its own log.
type Testimony struct {
	Head       []byte      // its newest head, a signed note
	Extensions []Extension // how that stands to those that this side holds
}

// Witness checks that the log of a device still begins as the device signed before, and cosigns its newest head: the note with this
// side's cosignature may be sent once the transaction is committed. strict says that the peer was asked about all of asked just now: what
// it does not show is then [ErrUnproven]. Without strict, and where newer heads came meanwhile, cosigned and err are nil instead and nothing
// is held against the device: it stays due ([Reader.Due]) and is asked again. A size below one that was seen is never cosigned. Two histories are a [*Fork], which is kept. A device of which no record is here is
// ErrUnknownDevice, and nothing is written.
func (t *Tx) Witness(device identity.PeerID, asked [][]byte, shown Testimony, strict bool) (cosigned []byte, err error) {
	if err := t.Forked(device); err != nil {
		return nil, err
	}
	w, signer, err := t.newest(device)
	if err != nil {
		return nil, err
	}
	s, err := t.sight(shown.Head, signer)
	if err != nil {
		return nil, err
	}
	proven, err := t.proven(s, w, asked, shown.Extensions)
	if errors.Is(err, ErrUnproven) && !strict {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.cosign(s, w.Proof, proven)
}

// newest gives what is known of a device's newest log, and whose device it is.
func (r *Reader) newest(device identity.PeerID) (w witnessed, signer identity.Header, err error) {
	epochs, err := r.epochs(device)
	if err != nil {
		return w, signer, err
	}
	if len(epochs) == 0 {
		return w, signer, fmt.Errorf("device %s: %w", device, ErrUnknownDevice)
	}
	w, _, err = load[witnessed](r.own, witnessKey(history.Origin{Peer: device, Epoch: epochs[len(epochs)-1]}))
	return w, identity.Header{Account: w.Account, Device: device}, err
}

// proven checks what a peer shows for each head that it was asked about, and gives the sizes of those that its newest head extends.
func (t *Tx) proven(s sighting, w witnessed, asked [][]byte, extensions []Extension) (map[uint64]bool, error) {
	out := map[uint64]bool{}
	for _, note := range asked {
		old, err := history.Open(note, s.signer.Device)
		if err != nil {
			return nil, fmt.Errorf("head of device %s: %w: %w", s.signer.Device, ErrCorrupt, err)
		}
		switch {
		case old.Origin.Epoch < s.head.Origin.Epoch:
			continue // a ledger that was restored: it began a new log, and says so
		case old.Origin.Epoch > s.head.Origin.Epoch || old.Size > s.head.Size:
			return nil, fmt.Errorf("%w: it shows %d entries in epoch %d, and signed for %d in epoch %d", ErrUnproven,
				s.head.Size, s.head.Origin.Epoch, old.Size, old.Origin.Epoch)
		}
		i := slices.IndexFunc(extensions, func(e Extension) bool { return e.Size == old.Size })
		if i < 0 {
			return nil, fmt.Errorf("%w: nothing about its head of %d entries", ErrUnproven, old.Size)
		}
		e := extensions[i]
		if _, _, err := history.Fork(note, e.Own, s.signer.Device); err == nil {
			return nil, t.fork(w, s.signer.Device, note, e.Own)
		}
		if err := history.CheckConsistency(nodes(e.Proof), old, s.head); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnproven, err)
		}
		out[old.Size] = true
	}
	return out, nil
}

func nodes(from []wire.Hash) []history.Hash {
	out := make([]history.Hash, len(from))
	for i, h := range from {
		out[i] = history.Hash(h)
	}
	return out
}

// cosign keeps a head whose growth was shown from the heads of the sizes in proven as the checked one, with this side's cosignature. It
// does not, where the checked one or a larger one came meanwhile.
func (t *Tx) cosign(s sighting, delegation wire.Hash, proven map[uint64]bool) ([]byte, error) {
	device := s.signer.Device
	w, ok, err := t.log(s.head.Origin, witnessed{Account: s.signer.Account, Proof: delegation})
	if err != nil || !ok {
		return nil, err
	}
	checked, err := w.checked()
	if err != nil || w.Note != nil && !proven[checked.Size] {
		return nil, err
	}
	var done [][]byte
	for p, err := range t.own.Iterate(seenKey(s.head.Origin), nil) {
		if err != nil {
			return nil, err
		}
		cp, err := history.Read(p.Value)
		if err != nil {
			return nil, fmt.Errorf("head of device %s: %w: %w", device, ErrCorrupt, err)
		}
		if cp.Size > s.head.Size {
			return nil, nil
		}
		if proven[cp.Size] || cp == s.head {
			done = append(done, p.Key)
		}
	}
	dev := t.b.config.Device
	cosigned, err := history.Cosign(s.note, device, dev.Peer(), t.now, dev.SignCosignature)
	if err != nil {
		return nil, err
	}
	w.Note, w.By, w.At, w.Suspect, w.Since = cosigned, dev.Peer(), t.now.UnixMilli(), "", 0
	errs := []error{save(t.own, witnessKey(s.head.Origin), w), t.own.Delete(askKey(device))}
	for _, k := range done {
		errs = append(errs, t.own.Delete(k))
	}
	return cosigned, errors.Join(errs...)
}

// KeepCosigned keeps the newest head of this ledger that a device cosigned. One of an earlier epoch, an older one, or one by a device of
// which no record is here changes nothing. One that this ledger does not begin as wraps ErrBehind, and [Books.Behind] is to be told.
func (t *Tx) KeepCosigned(device identity.PeerID, note []byte) error {
	got, err := history.OpenCosigned(note, t.b.config.Device.Peer(), device)
	if err != nil {
		return err
	}
	state, err := t.judge(got.Checkpoint)
	switch {
	case err != nil || state == ended:
		return err
	case state != extends:
		return fmt.Errorf("%w: device %s cosigned its head of %d entries in epoch %d", ErrBehind, device, got.Size, got.Origin.Epoch)
	}
	w, _, err := t.newest(device)
	if errors.Is(err, ErrUnknownDevice) {
		return nil
	}
	if err != nil {
		return err
	}
	have, ok, err := load[cosignedBy](t.own, cosignedKey(device))
	if err != nil {
		return err
	}
	if ok {
		old, err := history.OpenCosigned(have.Note, t.b.config.Device.Peer(), device)
		if err == nil && old.Origin == got.Origin && (old.Size > got.Size || old.Size == got.Size && !old.Time.Before(got.Time)) {
			return nil
		}
	}
	return save(t.own, cosignedKey(device), cosignedBy{Account: w.Account, Note: got.Note, Proof: w.Proof})
}

// Suspect notes why a device's newest log is suspicious, until it shows that it is not.
func (t *Tx) Suspect(device identity.PeerID, why string) error {
	w, _, err := t.newest(device)
	if err != nil {
		return err
	}
	epochs, err := t.epochs(device)
	if err != nil {
		return err
	}
	if w.Suspect == "" {
		w.Since = t.now.UnixMilli()
	}
	why = ledger.Cut(why, maxSuspicion)
	if w.Suspect == why {
		return nil
	}
	w.Suspect = why
	return save(t.own, witnessKey(history.Origin{Peer: device, Epoch: epochs[len(epochs)-1]}), w)
}

// Due reports whether a device is to be asked about its log: a lane with it ended, or it has signed heads that were not checked for as
// long as every. One that is known to have forked is not asked.
func (r *Reader) Due(device identity.PeerID, now time.Time, every time.Duration) (bool, error) {
	if err := r.Forked(device); err != nil {
		return false, ignoreFork(err)
	}
	epochs, err := r.epochs(device)
	if err != nil || len(epochs) == 0 {
		return false, err
	}
	if _, err := r.own.Get(askKey(device)); err == nil {
		return true, nil
	}
	o := history.Origin{Peer: device, Epoch: epochs[len(epochs)-1]}
	w, _, err := load[witnessed](r.own, witnessKey(o))
	if err != nil || now.Sub(time.UnixMilli(w.At)) < every {
		return false, err
	}
	for _, err := range r.own.Iterate(seenKey(o), nil) {
		return err == nil, err
	}
	return false, nil
}

func ignoreFork(err error) error {
	if errors.Is(err, ErrFork) {
		return nil
	}
	return err
}
