package books

import (
	"encoding/binary"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ShowIntervals calls f with the lines of a lane's statement in order, until f gives false. read puts evidence, which the books do not
// know, into a line. Every voucher is in exactly one line, so that the amounts of all lines sum up to the newest voucher's, to the
// micro-unit.
func (r *Reader) ShowIntervals(id ledger.Lane, read func([]byte) (statement.Interval, error), f func(statement.Interval) (bool, error)) error {
	l, err := r.Lane(id)
	if err != nil {
		return err
	}
	s := &lines{r: r, lane: l, f: f, more: true}
	err = r.Intervals(id, func(v Interval) (bool, error) {
		if v.Voucher > 0 {
			if err := s.without(v.Voucher); err != nil || !s.more {
				return false, err
			}
		}
		line, err := read(v.Evidence)
		if err != nil {
			return false, fmt.Errorf("evidence %d of lane %s: %w: %w", v.At, id.Short(), ErrCorrupt, err)
		}
		return s.more, s.interval(line, v)
	})
	if err != nil || !s.more {
		return err
	}
	return s.without(l.Seq + 1)
}

// lines makes the lines of a statement.
type lines struct {
	r        *Reader
	lane     Lane
	f        func(statement.Interval) (bool, error)
	more     bool
	seq      uint64      // of the last voucher that has a line
	promised money.Micro // by it
	billed   uint64      // milliseconds, up to the last interval
}

// without gives a line to each voucher before a sequence that no interval has.
func (s *lines) without(before uint64) error {
	prefix := key("v/", s.lane.Lane[:], []byte("/"))
	for p, err := range s.r.own.Iterate(prefix, voucherKey(s.lane.Lane, s.seq+1)) {
		switch {
		case err != nil:
			return err
		case len(p.Key) != len(prefix)+8:
			return fmt.Errorf("vouchers of lane %s: %w", s.lane.Lane.Short(), ErrCorrupt)
		}
		seq := binary.BigEndian.Uint64(p.Key[len(prefix):])
		if seq >= before || !s.more {
			return nil
		}
		line := statement.Interval{BillableTotalMs: s.billed}
		if err := s.pay(&line, seq, wire.Hash{}); err != nil {
			return err
		}
		line.Evidence = statement.EvidenceNone
		if err := s.give(line); err != nil {
			return err
		}
	}
	return nil
}

func (s *lines) interval(line statement.Interval, v Interval) error {
	line.BillableMs = int64(line.BillableTotalMs - s.billed) // differences wrap to what they are, credits too
	s.billed = line.BillableTotalMs
	line.Evidence = statement.EvidenceUnsigned
	if v.Voucher > s.seq {
		if err := s.pay(&line, v.Voucher, voucher.EvidenceHash(v.Evidence)); err != nil {
			return err
		}
	}
	return s.give(line)
}

// pay puts a voucher into a line, if it is here.
func (s *lines) pay(line *statement.Interval, seq uint64, evidence wire.Hash) error {
	raw, err := s.r.Voucher(s.lane.Lane, seq)
	if err != nil || raw == nil {
		return err
	}
	v, err := voucher.Open(raw)
	if err != nil {
		return fmt.Errorf("voucher %d of lane %s: %w: %w", seq, s.lane.Lane.Short(), ErrForged, err)
	}
	line.Voucher, line.Amount = seq, (v.Amount - s.promised).String() // they rise
	s.seq, s.promised = seq, v.Amount
	receipt, err := s.r.Receipt(v.Hash)
	if err != nil || receipt == nil {
		return err
	}
	got, err := voucher.OpenReceipt(receipt)
	if err != nil {
		return fmt.Errorf("receipt of voucher %d of lane %s: %w: %w", seq, s.lane.Lane.Short(), ErrForged, err)
	}
	line.Receipt, line.Evidence = true, statement.EvidenceFits
	if got.Evidence != evidence {
		line.Evidence = statement.EvidenceDiffers
	}
	return nil
}

func (s *lines) give(line statement.Interval) (err error) {
	line.Rate, line.Devices, line.Cumulative = s.lane.Rate.String(), s.lane.Devices, s.promised.String()
	if line.Amount == "" {
		line.Amount = money.Micro(0).String()
	}
	s.more, err = s.f(line)
	return err
}
