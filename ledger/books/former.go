package books

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
)

// openOwn opens a head of this ledger that lies on this disk: signed by this device, or by one that it replaced. A device that was
// replaced left its delegation here ([Books.KeepOwn]), so nobody else's head passes.
func (r *Reader) openOwn(note []byte) (history.Checkpoint, error) {
	own := r.b.config.Device.Peer()
	line, _, _ := bytes.Cut(note, []byte("\n"))
	o, err := history.ParseOrigin(string(line))
	if err != nil || o.Peer == own {
		return history.Open(note, own)
	}
	former, err := r.isFormer(o.Peer)
	if err != nil {
		return history.Checkpoint{}, err
	}
	if !former {
		return history.Checkpoint{}, fmt.Errorf("head of %s: %w: this is device %s", o, identity.ErrSigner, own)
	}
	return history.Open(note, o.Peer)
}

// ownDevice is a device whose leases are in this ledger's charge.
type ownDevice struct {
	Since int64 `cbor:"1,keyasint"`           // Unix milliseconds
	Taken bool  `cbor:"2,keyasint,omitempty"` // it had a ledger of its own, which is lost ([Tx.Take])
}

func ownKey(device identity.PeerID) []byte { return key("own/", device[:]) }

// isFormer reports whether this ledger was kept by a device of this account: it is, or was until another replaced it ([Books.KeepOwn]). The
// delegations that are kept say nothing of that: those of sister devices, each with a ledger of its own, are among them.
func (r *Reader) isFormer(device identity.PeerID) (bool, error) {
	v, ok, err := load[ownDevice](r.own, ownKey(device))
	return ok && !v.Taken, err
}

// inCharge reports whether this ledger books what a device of this account signed: it is this device, one that it replaced, or a lost one
// that it took over.
func (r *Reader) inCharge(device identity.PeerID) (bool, error) {
	if device == r.b.config.Device.Peer() {
		return true, nil
	}
	_, ok, err := load[ownDevice](r.own, ownKey(device))
	return ok, err
}

// Hanging is what only the device that signed it can bring to its end, so that changing the device would break it off. What is owed is no
// part of it: any device of the account settles that.
type Hanging struct {
	Running     int // leases that have not ended
	Unconfirmed int // leases that ended, whose last voucher this side has still to sign, or the provider to receive
	Holds       int // bids with a hold
	Proposals   int // payments that this side proposed and the other has not answered
	Clearings   int // circles of debts that are being cleared, or that nobody else is known to have all signatures of
	Disputes    int // that are open
	Unsure      int // counterparties that have not answered since a restore
}

// None reports whether nothing hangs on the device.
func (h Hanging) None() bool { return h == Hanging{} }

// Hanging counts what hangs on this device.
func (r *Reader) Hanging() (h Hanging, err error) {
	err = r.EachLane(func(l Lane) error {
		switch {
		case !l.Closed():
			h.Running++
		case l.Channel.RoleOf(r.b.self) == ledger.AsRenter && !l.Frozen() && (l.Missing() > 0 || l.Amount < *l.Final):
			h.Unconfirmed++
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	err = each(r.own, "hold/", func(_ []byte, v Held) error {
		if v.Left > 0 {
			h.Holds++
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	err = each(r.own, "set/", func(_ []byte, v Settled) error {
		if v.State == Proposed {
			h.Proposals++
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	err = r.EachDispute(func(d Dispute) error {
		if d.Open(r.at) {
			h.Disputes++
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	if h.Clearings, err = r.hangingClearings(); err != nil {
		return h, err
	}
	pending, err := r.ToAsk()
	h.Unsure = len(pending)
	return h, err
}

// hangingClearings counts the open clearings that this device must bring to their end. One that counts, and that another member has too, is
// none: each that has all signatures brings them to the rest.
func (r *Reader) hangingClearings() (n int, err error) {
	open, err := r.OpenClearings()
	if err != nil {
		return 0, err
	}
	for _, id := range open {
		v, err := r.Clearing(id)
		if err != nil {
			return n, err
		}
		elsewhere := slices.ContainsFunc(v.Has, func(d identity.PeerID) bool { return d != v.Self })
		if v.State != netting.Cleared || !elsewhere {
			n++
		}
	}
	return n, nil
}
