package books

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/p2p/identity"
)

// heardKey leads to the delegation of the device on which an account was heard last.
func heardKey(a identity.AccountID) []byte { return key("at/", a[:]) }

// Heard says whether the delegation of a device that speaks for an account is news to [Reader.DevicesOf]: it is of an account that was dealt
// with, and that has not let the device go. Strangers make us write nothing.
func (r *Reader) Heard(delegation []byte) (news bool, err error) {
	d, err := identity.OpenDelegation(delegation)
	if err != nil || d.Account == r.b.self {
		return false, err
	}
	if dealt, err := r.dealt(d.Account); err != nil || !dealt || r.notRevoked(d) != nil {
		return false, err
	}
	was, err := raw(r.own, heardKey(d.Account))
	return !bytes.Equal(was, delegation), err
}

// HeardFrom notes the delegation of the device that speaks for an account, if that is news: one for each account, and the last counts.
func (t *Tx) HeardFrom(delegation []byte) error {
	news, err := t.Heard(delegation)
	if err != nil || !news {
		return err
	}
	d, err := identity.OpenDelegation(delegation)
	if err != nil {
		return err
	}
	return t.own.Set(heardKey(d.Account), delegation)
}

// heard is where an account was heard last, zero if it was not, or has let that device go since.
func (r *Reader) heard(a identity.AccountID) (device identity.PeerID, err error) {
	kept, err := raw(r.own, heardKey(a))
	if err != nil || kept == nil {
		return device, err
	}
	d, err := identity.OpenDelegation(kept)
	if err != nil || d.Account != a {
		return device, fmt.Errorf("device of account %s: %w: %w", a.Short(), ErrCorrupt, err)
	}
	if r.notRevoked(d) != nil {
		return device, nil
	}
	return d.Device, nil
}

// DevicesOf are the devices on which an account may be found, the likeliest first: where it was heard last, with which the newest lane was
// dealt, and which gave back what stayed out of a restored ledger. Those that the account has let go are not among them.
func (r *Reader) DevicesOf(a identity.AccountID) (out []identity.PeerID, err error) {
	heard, err := r.heard(a)
	if err != nil {
		return nil, err
	}
	if !heard.IsZero() {
		out = append(out, heard)
	}
	last, err := r.lastDevice(a, func(Lane) bool { return true })
	if err != nil {
		return nil, err
	}
	skipped, err := r.skippedAt(a)
	if err != nil {
		return nil, err
	}
	for _, d := range []identity.PeerID{last, skipped} {
		if d.IsZero() || slices.Contains(out, d) {
			continue
		}
		gone, err := r.LetGo(a, d)
		if err != nil {
			return nil, err
		}
		if !gone {
			out = append(out, d)
		}
	}
	return out, nil
}

// LetGo reports whether a revocation of an account's device is kept here. The account may have linked it anew since.
func (r *Reader) LetGo(a identity.AccountID, device identity.PeerID) (bool, error) {
	_, ok, err := r.revocation(a, device)
	return ok, err
}
