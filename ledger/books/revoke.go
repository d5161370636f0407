package books

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// revocationKey leads to the highest revocation of a device of an account.
func revocationKey(a identity.AccountID, d identity.PeerID) []byte {
	return key("rv/", a[:], []byte("/"), d[:])
}

// KeepRevocation is [Tx.KeepRevocation] in a transaction of its own, if there is anything to keep: strangers make us write nothing.
func (b *Books) KeepRevocation(ctx context.Context, envelope []byte) (kept bool, err error) {
	v, err := identity.OpenRevocation(envelope)
	if err != nil {
		return false, err
	}
	dealt := false
	err = b.View(ctx, func(r *Reader) (err error) {
		dealt, err = r.dealt(v.Account)
		return err
	})
	if err != nil || !dealt {
		return false, err
	}
	err = b.Update(ctx, func(t *Tx) (err error) {
		kept, err = t.KeepRevocation(envelope)
		return err
	})
	if errors.Is(err, identity.ErrTwoKeys) { // the proof of it is kept
		err = nil
	}
	return kept, err
}

// Revocations is [Reader.Revocations] in a view of its own.
func (b *Books) Revocations(ctx context.Context) (all [][]byte, err error) {
	err = b.View(ctx, func(r *Reader) (err error) {
		all, err = r.Revocations()
		return err
	})
	return all, err
}

// KeepRevocation keeps a revocation for ever if its account is this one or one that was dealt with, and it is higher than what is kept;
// kept says whether it is among those kept now. An account's revocations are bounded by the devices that it may have. One by a key that the
// account has replaced is not kept; one that shows two keys to follow one is [identity.ErrTwoKeys], and the proof is kept.
func (t *Tx) KeepRevocation(envelope []byte) (kept bool, err error) {
	r, err := identity.OpenRevocation(envelope)
	if err != nil {
		return false, err
	}
	if dealt, err := t.dealt(r.Account); err != nil || !dealt {
		return false, err
	}
	switch err := t.follow(r.Account, r.Chain); {
	case errors.Is(err, identity.ErrReplaced):
		return false, nil
	case err != nil:
		return false, err
	}
	have, ok, err := t.revocation(r.Account, r.Device)
	if err != nil || ok && !r.Over(have) {
		return ok, err
	}
	if !ok {
		n := 0
		for _, err := range t.own.Iterate(key("rv/", r.Account[:]), nil) {
			if n++; err != nil || n >= identity.MaxDevices {
				return false, err
			}
		}
	}
	return true, t.own.Set(revocationKey(r.Account, r.Device), envelope)
}

// dealt reports whether account is this one, or has a lane here.
func (r *Reader) dealt(account identity.AccountID) (bool, error) {
	if account == r.b.self {
		return true, nil
	}
	for _, err := range r.own.Iterate(key("lp/", account[:], []byte("/")), nil) {
		return err == nil, err
	}
	return false, nil
}

func (r *Reader) revocation(a identity.AccountID, d identity.PeerID) (v identity.Revocation, ok bool, err error) {
	b, err := raw(r.own, revocationKey(a, d))
	if err != nil || b == nil {
		return v, false, err
	}
	if v, err = identity.OpenRevocation(b); err != nil {
		return v, false, fmt.Errorf("revocation of device %s: %w: %w", d.Short(), ErrCorrupt, err)
	}
	return v, true, nil
}

// Revocations gives every kept revocation as signed.
func (r *Reader) Revocations() (all [][]byte, err error) {
	for p, err := range r.own.Iterate([]byte("rv/"), nil) {
		if err != nil {
			return nil, err
		}
		all = append(all, p.Value)
	}
	return all, nil
}

// notRevoked refuses a new record by a device whose account let it go, or whose delegation is by a key that the account has replaced: the
// error wraps [identity.ErrRevoked], [identity.ErrReplaced] or [identity.ErrTwoKeys]. What is here already stays.
func (r *Reader) notRevoked(d identity.Delegation) error {
	if err := r.newestKey(d.Account, d.Chain); err != nil {
		return err
	}
	return r.stillActs(d)
}

// stillActs is notRevoked for a record on a lane that runs, which stays with its delegation though the account's key was changed since.
func (r *Reader) stillActs(d identity.Delegation) error {
	v, ok, err := r.revocation(d.Account, d.Device)
	if err != nil {
		return err
	}
	if ok && v.Voids(d) {
		return fmt.Errorf("%w: %s", identity.ErrRevoked, d.Device.Short())
	}
	return nil
}

// settlerNotRevoked is notRevoked for the signer of a settlement under the delegation that it names.
func (r *Reader) settlerNotRevoked(h identity.Header, named wire.Hash) error {
	d, err := r.delegation(named)
	if err != nil {
		return err
	}
	if d.Device != h.Device {
		return identity.ErrSigner
	}
	return r.notRevoked(d)
}

// membersNotRevoked refuses a clearing in which a device is to sign that its account let go. It is asked before this device signs, and
// never of words that came: all agreements together are final, whoever was let go meanwhile.
func (r *Reader) membersNotRevoked(t netting.Terms) error {
	for _, device := range t.Devices() {
		account := t.Side(device).Account()
		v, ok, err := r.revocation(account, device)
		if err == nil && ok {
			ok, err = r.signedSince(v)
			ok = !ok
		}
		if err != nil {
			return err
		}
		if ok {
			return fmt.Errorf("%w: %s", identity.ErrRevoked, device.Short())
		}
	}
	return nil
}

// signedSince reports whether a device is seen here under a delegation that v does not make void. The terms of a clearing name none, so
// one that was let in again counts from its first lane, or receipt of one, on.
func (r *Reader) signedSince(v identity.Revocation) (bool, error) {
	if own := r.b.config.Device; v.Device == own.Peer() {
		d, err := identity.OpenDelegation(own.Delegation())
		return err == nil && !v.Voids(d), err
	}
	lanes, err := r.Lanes(v.Account)
	for _, l := range lanes {
		device, under := l.Device, l.Proof
		if l.Channel.RoleOf(r.b.self) == ledger.AsRenter {
			got, err := r.lastReceipt(l)
			if err != nil {
				return false, err
			}
			device, under = got.Device, got.Delegation
		}
		if device != v.Device {
			continue
		}
		if d, err := r.delegation(under); err != nil || !v.Voids(d) {
			return err == nil, err
		}
	}
	return false, err
}
