package books

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Trail is a part of what lies between a lane's first voucher and its last: the vouchers with their receipts, then the evidence of the
// intervals. No amount hangs on it: it is what a statement of the lease shows, second by second.
type Trail struct {
	Paid        []PaidVoucher  `cbor:"1,keyasint,omitempty"` // rising
	Intervals   []IntervalCopy `cbor:"2,keyasint,omitempty"` // rising
	Delegations [][]byte       `cbor:"3,keyasint,omitempty"` // that the receipts name
}

// PaidVoucher is a voucher with its receipt, if there is one.
type PaidVoucher struct {
	Voucher []byte `cbor:"1,keyasint"`
	Receipt []byte `cbor:"2,keyasint,omitempty"`
}

// IntervalCopy is an [Interval] with its place.
type IntervalCopy struct {
	At       uint64 `cbor:"1,keyasint"`
	Evidence []byte `cbor:"2,keyasint"`
	Voucher  uint64 `cbor:"3,keyasint,omitempty"`
}

// Limits of a trail.
const (
	trailBytes     = 128 << 10 // of a page
	trailRecords   = 1024      // of a page
	trailDevices   = 8         // delegations of a page
	unsignedSpare  = 64        // intervals that no receipt bears out, beyond as many as there are signed ones
	placeVoucher   = 'v'       // kinds of a place of a trail, its first byte
	placeInterval  = 'w'
	trailPlaceSize = 9
)

// Trail gives a page of a lane's trail from a place on, and the place to go on from, nil at the end. The lane must be one with peer, else the
// trail is empty.
func (r *Reader) Trail(peer identity.AccountID, lane ledger.Lane, place []byte) (out Trail, next []byte, err error) {
	l, err := r.Lane(lane)
	if errors.Is(err, ErrNoLane) || err == nil && l.Channel.Peer(r.b.self) != peer {
		return out, nil, nil
	}
	if err != nil {
		return out, nil, err
	}
	kind, from := byte(placeVoucher), uint64(0)
	if len(place) == trailPlaceSize && (place[0] == placeVoucher || place[0] == placeInterval) {
		kind, from = place[0], binary.BigEndian.Uint64(place[1:])
	}
	if kind == placeVoucher {
		next, err = r.trailVouchers(l, from, &out)
	} else {
		next, err = r.trailIntervals(l, from, &out)
	}
	return out, next, err
}

// trailVouchers gives the vouchers after a sequence; the opening one is in every copy of a lane.
func (r *Reader) trailVouchers(l Lane, after uint64, out *Trail) (next []byte, err error) {
	size := 0
	var named []wire.Hash
	for p, err := range r.own.Iterate(key("v/", l.Lane[:], []byte("/")), voucherKey(l.Lane, after+1)) {
		if err != nil {
			return nil, err
		}
		if size > trailBytes || len(out.Paid) == trailRecords || len(named) == trailDevices {
			return append([]byte{placeVoucher}, be8(after)...), nil
		}
		receipt, err := r.Receipt(identity.Hash(p.Value))
		if err != nil {
			return nil, err
		}
		if receipt != nil {
			got, err := voucher.OpenReceipt(receipt)
			if err != nil {
				return nil, fmt.Errorf("receipt of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
			}
			if len(named) == 0 || named[len(named)-1] != got.Delegation {
				named = append(named, got.Delegation)
			}
		}
		after, size = binary.BigEndian.Uint64(p.Key[len(p.Key)-8:]), size+len(p.Value)+len(receipt)
		out.Paid = append(out.Paid, PaidVoucher{Voucher: p.Value, Receipt: receipt})
		if out.Delegations, err = r.delegations(named); err != nil {
			return nil, err
		}
	}
	return append([]byte{placeInterval}, be8(0)...), nil
}

// trailIntervals gives the evidence from a place in the lane on.
func (r *Reader) trailIntervals(l Lane, from uint64, out *Trail) (next []byte, err error) {
	size := 0
	for p, err := range r.own.Iterate(key("ev/", l.Lane[:], []byte("/")), intervalKey(l.Lane, from)) {
		if err != nil {
			return nil, err
		}
		at := binary.BigEndian.Uint64(p.Key[len(p.Key)-8:])
		if size > trailBytes || len(out.Intervals) == trailRecords {
			return append([]byte{placeInterval}, be8(at)...), nil
		}
		v, _, err := load[Interval](r.own, p.Key)
		if err != nil {
			return nil, err
		}
		size += len(v.Evidence) + 16
		out.Intervals = append(out.Intervals, IntervalCopy{At: at, Evidence: v.Evidence, Voucher: v.Voucher})
	}
	return nil, nil
}

// wanted is how far the trail of a lane that was lost has come back.
type wanted struct {
	Peer     identity.AccountID `cbor:"1,keyasint"`
	Place    []byte             `cbor:"2,keyasint,omitempty"` // to go on from
	Last     uint64             `cbor:"3,keyasint"`           // sequence of the newest voucher that is here before it
	Signed   uint64             `cbor:"4,keyasint"`           // intervals that a receipt bears out
	Unsigned uint64             `cbor:"5,keyasint"`
	At       uint64             `cbor:"6,keyasint"` // place of the last interval, if there was one
	Paid     uint64             `cbor:"7,keyasint"` // sequence of the voucher of the last one that a receipt bears out
}

func wantKey(l ledger.Lane) []byte { return key("want/", l[:]) }

// want notes that a lane's trail is to be asked for.
func (a *adoption) want() error {
	if !a.changed || a.lane.Seq == 0 {
		return nil
	}
	return save(a.t.own, wantKey(a.lane.Lane), wanted{Peer: a.lane.Channel.Peer(a.t.b.self)})
}

// Wanted is the first lane with an account whose trail is to be asked for, and the place to go on from; ok is false if there is none.
func (r *Reader) Wanted(peer identity.AccountID) (lane ledger.Lane, place []byte, ok bool, err error) {
	for p, err := range r.own.Iterate([]byte("want/"), nil) {
		if err != nil {
			return lane, nil, false, err
		}
		var w wanted
		if err := wire.UnmarshalStrict(p.Value, &w); err != nil || len(p.Key) != len("want/")+len(lane) {
			return lane, nil, false, fmt.Errorf("trail %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		if w.Peer == peer {
			return ledger.Lane(p.Key[len("want/"):]), w.Place, true, nil
		}
	}
	return lane, nil, false, nil
}

// ForgetTrail gives up what is left of a lane's trail.
func (t *Tx) ForgetTrail(lane ledger.Lane) error { return t.own.Delete(wantKey(lane)) }

// AdoptTrail takes a page of a lane's trail that was asked for by [Reader.Wanted]: vouchers that fit between those that are here, their
// receipts, and evidence that rises and that the receipts name, one interval each. Other evidence is kept within a bound. next is the place
// after the page, nil if that was all. Errors wrap ErrCopy or say which check failed; then nothing was written.
func (t *Tx) AdoptTrail(lane ledger.Lane, page Trail, next []byte) error {
	err := t.txn.Try(func() error { return t.adoptTrail(lane, page, next) })
	if err != nil {
		return fmt.Errorf("adopt trail of lane %s: %w", lane.Short(), err)
	}
	return nil
}

func (t *Tx) adoptTrail(lane ledger.Lane, page Trail, next []byte) error {
	w, ok, err := load[wanted](t.own, wantKey(lane))
	if err != nil || !ok {
		return err
	}
	if len(page.Paid) > trailRecords || len(page.Intervals) > trailRecords || len(page.Delegations) > trailDevices || len(next) > trailPlaceSize {
		return fmt.Errorf("%w: %d vouchers, %d intervals", ErrCopy, len(page.Paid), len(page.Intervals))
	}
	l, err := t.Lane(lane)
	if err != nil {
		return err
	}
	a := &adoption{t: t, lane: l, delegations: map[wire.Hash][]byte{}}
	for _, raw := range page.Delegations {
		if len(raw) > maxDelegation {
			return fmt.Errorf("%w: delegation of %d bytes", ErrCopy, len(raw))
		}
		a.delegations[identity.Hash(raw)] = raw
	}
	for _, p := range page.Paid {
		if err := a.between(&w, p); err != nil {
			return err
		}
	}
	for _, i := range page.Intervals {
		if err := a.evidence(&w, i); err != nil {
			return err
		}
	}
	if len(next) == 0 {
		return t.ForgetTrail(lane)
	}
	w.Place = next
	return save(t.own, wantKey(lane), w)
}

// between keeps a voucher below the lane's newest one, with its receipt. It must fit between those that are here.
func (a *adoption) between(w *wanted, p PaidVoucher) error {
	v, err := voucher.Open(p.Voucher)
	if err != nil {
		return err
	}
	if v.Seq <= w.Last {
		return fmt.Errorf("%w: voucher %d after %d", ErrCopy, v.Seq, w.Last)
	}
	verdict, err := a.next(v)
	switch {
	case err == nil && verdict == voucher.New:
		return nil // newer than all that was asked about: the next exchange brings it
	case errors.Is(err, voucher.ErrOld):
		if err := a.fits(w.Last, v); err != nil {
			return err
		}
		if err := a.t.keepVoucher(v); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	w.Last = v.Seq
	if len(p.Receipt) == 0 {
		return nil
	}
	a.copy.Receipt = p.Receipt
	return a.receipt()
}

// fits checks that a voucher rises between the one before it and the one after it, and that they name each other where nothing lies between.
func (a *adoption) fits(before uint64, v voucher.Signed) error {
	rules, err := a.t.rules(a.lane)
	if err != nil {
		return err
	}
	var last, next []byte
	for p, err := range a.t.own.Iterate(key("v/", a.lane.Lane[:], []byte("/")), voucherKey(a.lane.Lane, before)) {
		if err != nil {
			return err
		}
		if binary.BigEndian.Uint64(p.Key[len(p.Key)-8:]) > v.Seq {
			next = p.Value
			break
		}
		last = p.Value
	}
	for _, raw := range [][]byte{last, next} {
		kept, err := voucher.Open(raw)
		if err != nil {
			return fmt.Errorf("voucher of lane %s: %w: %w", a.lane.Lane.Short(), ErrForged, err)
		}
		of := v
		if kept.Seq < v.Seq {
			rules.Last = &kept
		} else {
			rules.Last, of = &v, kept
		}
		if _, err := rules.Next(of, nil); err != nil {
			return err
		}
	}
	return nil
}

// evidence keeps an interval. They rise, and a receipt bears out one of them: else a peer could fill this disk by repeating a single one.
func (a *adoption) evidence(w *wanted, i IntervalCopy) error {
	if w.Signed+w.Unsigned > 0 && i.At <= w.At {
		return fmt.Errorf("%w: evidence %d after %d", ErrCopy, i.At, w.At)
	}
	w.At = i.At
	known, signed, err := a.named(i)
	if err != nil {
		return err
	}
	if signed && i.Voucher > w.Paid {
		w.Signed, w.Paid = w.Signed+1, i.Voucher
	} else if w.Unsigned++; w.Unsigned > w.Signed+unsignedSpare {
		return nil
	}
	if !known {
		i.Voucher = 0
	}
	err = a.t.KeepInterval(a.lane.Lane, Interval(i))
	if errors.Is(err, ErrConflict) {
		return nil // what is here stays
	}
	return err
}

// named reports whether the voucher that paid an interval is here, and whether its receipt has the evidence's hash.
func (a *adoption) named(i IntervalCopy) (known, signed bool, err error) {
	if i.Voucher == 0 {
		return false, false, nil
	}
	v, err := a.t.Voucher(a.lane.Lane, i.Voucher)
	if err != nil || v == nil {
		return false, false, err
	}
	receipt, err := a.t.Receipt(identity.Hash(v))
	if err != nil || receipt == nil {
		return true, false, err
	}
	got, err := voucher.OpenReceipt(receipt)
	if err != nil {
		return true, false, fmt.Errorf("receipt of lane %s: %w: %w", a.lane.Lane.Short(), ErrForged, err)
	}
	return true, got.Evidence == voucher.EvidenceHash(i.Evidence), nil
}
