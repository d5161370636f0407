package books

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/p2p/wire"
)

// MaxEvidence is the longest evidence of one interval, in bytes. The agents' own has under 100.
const MaxEvidence = 512

// Interval is what is kept of one metered interval beside its lane: evidence that the books do not read, and the voucher that paid it. The
// receipt of that voucher has the evidence's hash, so neither side can change it later.
type Interval struct {
	At       uint64 `cbor:"-"` // place in the lane: rises with each
	Evidence []byte `cbor:"1,keyasint"`
	Voucher  uint64 `cbor:"2,keyasint"` // sequence; 0: none paid it
}

func intervalKey(l ledger.Lane, at uint64) []byte { return key("ev/", l[:], []byte("/"), be8(at)) }

// KeepInterval keeps an interval of a lane, in the transaction of its tick or of its voucher. One that is here already only gets its
// voucher: evidence is never changed. The error is ErrNoLane, wire.ErrTooLarge, or ErrConflict for other evidence in the same place.
func (t *Tx) KeepInterval(id ledger.Lane, v Interval) error {
	if len(v.Evidence) > MaxEvidence {
		return fmt.Errorf("evidence of %d bytes for lane %s: %w (limit %d)", len(v.Evidence), id.Short(), wire.ErrTooLarge, MaxEvidence)
	}
	if _, err := t.Lane(id); err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	have, ok, err := load[Interval](t.own, intervalKey(id, v.At))
	if err != nil {
		return err
	}
	if ok && string(have.Evidence) != string(v.Evidence) {
		return fmt.Errorf("evidence %d of lane %s: %w", v.At, id.Short(), ErrConflict)
	}
	v.Voucher = max(v.Voucher, have.Voucher)
	return save(t.own, intervalKey(id, v.At), v)
}

// Intervals calls f with a lane's intervals in order, until f gives false.
func (r *Reader) Intervals(id ledger.Lane, f func(Interval) (bool, error)) error {
	prefix := key("ev/", id[:], []byte("/"))
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		v, _, err := load[Interval](r.own, p.Key)
		if err != nil {
			return err
		}
		if len(p.Key) != len(prefix)+8 {
			return fmt.Errorf("evidence of lane %s: %w", id.Short(), ErrCorrupt)
		}
		v.At = binary.BigEndian.Uint64(p.Key[len(prefix):])
		if more, err := f(v); err != nil || !more {
			return err
		}
	}
	return nil
}

// dropAtOnce bounds the intervals that one transaction deletes.
const dropAtOnce = 2048

// DropIntervals deletes the evidence of lanes that have ended and did not change since before. Vouchers, receipts and entries stay. It
// gives how many intervals it deleted, and may be stopped and repeated at any point.
func (b *Books) DropIntervals(ctx context.Context, before time.Time) (dropped int, err error) {
	for at, more := []byte(nil), true; more; more = at != nil {
		var next []byte
		var n int
		err := b.Update(ctx, func(t *Tx) (err error) {
			next, n, err = t.dropIntervals(at, before.UnixMilli())
			return err
		})
		if err != nil {
			return dropped, err
		}
		at, dropped = next, dropped+n
	}
	return dropped, nil
}

// dropIntervals goes on at a key and gives the one to go on at, nil at the end.
func (t *Tx) dropIntervals(from []byte, before int64) (next []byte, n int, err error) {
	for n < dropAtOnce {
		id, ok, err := t.laneWithIntervals(from)
		if err != nil || !ok {
			return nil, n, err
		}
		l, err := t.Lane(id)
		if err != nil {
			return nil, n, err
		}
		prefix := key("ev/", id[:], []byte("/"))
		if !l.Closed() || l.Changed >= before {
			from = append(prefix[:len(prefix)-1:len(prefix)-1], '/'+1)
			continue
		}
		for p, err := range t.own.Iterate(prefix, nil) {
			if err != nil {
				return nil, n, err
			}
			if n == dropAtOnce {
				return prefix, n, nil
			}
			if err := t.own.Delete(p.Key); err != nil {
				return nil, n, err
			}
			n++
		}
		from = append(prefix[:len(prefix)-1:len(prefix)-1], '/'+1)
	}
	return from, n, nil
}

// laneWithIntervals finds the first lane that has evidence at or after a key.
func (r *Reader) laneWithIntervals(from []byte) (id ledger.Lane, ok bool, err error) {
	for p, err := range r.own.Iterate([]byte("ev/"), from) {
		if err != nil {
			return id, false, err
		}
		if len(p.Key) != len("ev/")+len(id)+1+8 {
			return id, false, fmt.Errorf("evidence %x: %w", p.Key, ErrCorrupt)
		}
		return ledger.Lane(p.Key[len("ev/"):][:len(id)]), true, nil
	}
	return id, false, nil
}
