package books

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// SisterError says that a record that a peer gave back is of another device of this account. That one has a ledger of its own, in which
// it stands: here it would be booked twice. It is no lie of the peer's, which gives an account all that it has of it.
type SisterError struct {
	Device identity.PeerID // zero: nothing that came with it says which
}

func (e *SisterError) Error() string {
	if e.Device.IsZero() {
		return "it does not say of which device of this account it is"
	}
	return fmt.Sprintf("it is of device %s of this account, which has a ledger of its own", e.Device.Short())
}

// charge checks that a device is one whose records this ledger books.
func (r *Reader) charge(device identity.PeerID) error {
	in, err := r.inCharge(device)
	if err == nil && !in {
		err = &SisterError{Device: device}
	}
	return err
}

// ours checks that a lane that is not here is to be opened here. What says whose it is was signed by that device: as renter the opening
// voucher, as provider the receipt, or the records of the lease where there is none.
func (a *adoption) ours(first voucher.Signed) error {
	if a.own {
		return nil
	}
	if a.role == ledger.AsRenter {
		if err := a.signedHere(first.Header, first.Delegation, identity.PowerPay); err != nil {
			return err
		}
		return a.t.charge(first.Device)
	}
	if len(a.copy.Receipt) > 0 {
		r, err := voucher.OpenReceipt(a.copy.Receipt)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(a.vouchers, func(v voucher.Signed) bool { return v.Hash == r.Voucher }) {
			return fmt.Errorf("%w: receipt of another voucher", ErrCopy)
		}
		if err := a.signedHere(r.Header, r.Delegation, identity.PowerProvide); err != nil {
			return err
		}
		return a.t.charge(r.Device)
	}
	var sister error = &SisterError{}
	if a.terms == nil {
		return sister
	}
	for _, s := range a.terms.Signed { // the provider's devices, by [adoption.signedTerms]
		if sister = a.t.charge(s.Device); sister == nil {
			return nil
		}
	}
	return sister
}

// signedHere checks that this account let the device of a record sign it. Nothing is kept for it.
func (a *adoption) signedHere(h identity.Header, delegation wire.Hash, power identity.Powers) error {
	if h.Account != a.t.b.self {
		return fmt.Errorf("%w: signed by account %s", ErrCopy, h.Account.Short())
	}
	raw := a.delegations[delegation]
	if delegation == a.t.b.config.Device.DelegationHash() {
		raw = a.t.b.config.Device.Delegation()
	}
	if raw == nil {
		d, err := a.t.delegation(delegation)
		if err != nil {
			return err
		}
		return d.Allows(h, power)
	}
	d, err := identity.OpenDelegation(raw)
	if err != nil {
		return err
	}
	return d.Allows(h, power)
}

// ownSignature checks that what this account signed of a settlement was by a device whose records this ledger books. A settlement of a sister
// device is in that one's ledger, as for a ledger that was never lost: it hears of no other's. One that only the other side has signed is of
// nobody yet.
func (r *Reader) ownSignature(s voucher.Settlement, counter []byte) error {
	if s.Account == r.b.self {
		return r.charge(s.Device)
	}
	if len(counter) == 0 {
		return nil
	}
	c, err := voucher.OpenSettlement(counter)
	if err != nil {
		return err
	}
	if c.Account != r.b.self {
		return fmt.Errorf("%w: countersigned by account %s", ErrCopy, c.Account.Short())
	}
	return r.charge(c.Device)
}

// skipped is a lane that a peer gave back and that stayed out, since it is of another device of this account.
type skipped struct {
	Peer identity.AccountID `cbor:"1,keyasint"` // the other side
	At   identity.PeerID    `cbor:"2,keyasint"` // its device, which gave it back
}

func skippedKey(device identity.PeerID, lane ledger.Lane) []byte {
	return key("sis/", device[:], lane[:])
}

// Skip notes that a lane of another device of this account stayed out, for `ledger recover` to say and for [Tx.Take]. Each was signed by that
// device, so that no stranger fills the disk with them.
func (t *Tx) Skip(device identity.PeerID, lane ledger.Lane, peer identity.AccountID, at identity.PeerID) error {
	if device.IsZero() {
		return nil
	}
	return save(t.own, skippedKey(device, lane), skipped{Peer: peer, At: at})
}

// found forgets that a lane which is opened here now had stayed out: its device was taken over since.
func (a *adoption) found() error {
	var keys [][]byte
	for p, err := range a.t.own.Iterate([]byte("own/"), nil) {
		if err != nil {
			return err
		}
		device, err := deviceOf(p.Key[len("own/"):])
		if err != nil {
			return err
		}
		keys = append(keys, skippedKey(device, a.lane.Lane))
	}
	for _, k := range keys {
		if err := a.t.own.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// eachSkipped calls f with each lane that stayed out.
func (r *Reader) eachSkipped(f func(device identity.PeerID, v skipped) error) error {
	for p, err := range r.own.Iterate([]byte("sis/"), nil) {
		if err != nil {
			return err
		}
		var device identity.PeerID
		var v skipped
		if err := wire.UnmarshalStrict(p.Value, &v); err != nil || copy(device[:], p.Key[len("sis/"):]) != len(device) {
			return fmt.Errorf("skipped lane %x: %w", p.Key, ErrCorrupt)
		}
		if err := f(device, v); err != nil {
			return err
		}
	}
	return nil
}

// Skipped counts the lanes that peers gave back and that stayed out, by the device of this account that they are of; without those of a device
// that was taken over since, which are on their way in.
func (r *Reader) Skipped() (map[identity.PeerID]int, error) {
	out := map[identity.PeerID]int{}
	err := r.eachSkipped(func(device identity.PeerID, _ skipped) error {
		in, err := r.inCharge(device)
		if err == nil && !in {
			out[device]++
		}
		return err
	})
	return out, err
}

// skippedAt is the device of a counterparty that gave back a lane which stayed out, zero if none did: it may be all that is known of the account.
func (r *Reader) skippedAt(peer identity.AccountID) (at identity.PeerID, err error) {
	err = r.eachSkipped(func(_ identity.PeerID, v skipped) error {
		if v.Peer == peer {
			at = v.At
		}
		return nil
	})
	return at, err
}

// ErrOwnDevice says that a device's leases are in this ledger as it is.
var ErrOwnDevice = errors.New("this ledger has that device's leases")

// Take takes over what a lost device of this account signed: its lanes, settlements and clearings are taken back here, from everybody who has
// them. The device must be gone for good: with a ledger of its own it would book the same debts once more. Who gave back a lane of it, and every
// counterparty, is to be asked again. A ledger that was never restored counts as restored now, so that everybody who connects is asked, too. A
// repeat asks again. Errors: ErrOwnDevice.
func (t *Tx) Take(device identity.PeerID) error {
	former, err := t.isFormer(device)
	if err != nil {
		return err
	}
	if former || device == t.b.config.Device.Peer() {
		return fmt.Errorf("take over device %s: %w", device.Short(), ErrOwnDevice)
	}
	now := t.now.UnixMilli()
	if err := save(t.own, ownKey(device), ownDevice{Since: now, Taken: true}); err != nil {
		return err
	}
	ask := map[identity.AccountID]bool{}
	err = errors.Join(
		t.eachSkipped(func(d identity.PeerID, v skipped) error { ask[v.Peer] = ask[v.Peer] || d == device; return nil }),
		t.eachCounterparty(func(a identity.AccountID) { ask[a] = true }),
	)
	if err != nil {
		return err
	}
	for a, yes := range ask {
		if _, ok, err := load[Pending](t.own, pendingKey(a)); err != nil || ok || !yes {
			if err != nil {
				return err
			}
			continue
		}
		if err := save(t.own, pendingKey(a), Pending{Account: a, Since: now}); err != nil {
			return err
		}
	}
	return save(t.own, []byte(keyRestored), now)
}
