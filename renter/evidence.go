package renter

import (
	"errors"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// evidenced is what a provider said that its job used, until it is stored, and what the receipts are compared with. Of the lane's goroutine.
type evidenced struct {
	last work.Evidence           // of the newest interval that was taken
	wait []books.Interval        // not stored yet
	took int                     // by this process
	paid map[wire.Hash]wire.Hash // hash of a voucher: of the evidence that came with its claim
}

// Limits of what a provider can make this side keep: an honest one ends an interval each tick, and a few at pauses.
const (
	evidencedBurst = 32 // and as many at once wait to be stored with a claim
	evidencedEach  = work.TickInterval / 2 * time.Second
	paidMost       = 64 // vouchers whose receipts are compared
)

// takeEvidence judges the evidence in a beat: it is about that beat, and says the same as its claim. It gives the interval to be stored with
// a voucher, and keeps one that brings something new even if nothing is paid.
func (j *job) takeEvidence(b work.Beat) (*books.Interval, error) {
	if len(b.Evidence) == 0 {
		return nil, nil
	}
	e, err := work.OpenEvidence(b.Evidence)
	if err != nil {
		return nil, err
	}
	if e.Beat != b.Seq || e.Charge != b.Charge || e.Billable != b.Billable || e.State != b.State {
		return nil, badStatus("beat %d with the evidence of another", b.Seq)
	}
	v := &books.Interval{At: b.Seq, Evidence: b.Evidence}
	idle := e.Billable == j.ev.last.Billable && e.State == j.ev.last.State && e.Why == j.ev.last.Why
	room := evidencedBurst + int(time.Since(j.begun)/evidencedEach)
	if !idle && e.Beat > j.ev.last.Beat && j.ev.took < room && len(j.ev.wait) < evidencedBurst {
		j.ev.wait, j.ev.last = append(j.ev.wait, *v), e
		j.ev.took++
	}
	return v, nil
}

// keepEvidence stores the intervals that wait, the one that a voucher pays with its sequence.
func (j *job) keepEvidence(tx *books.Tx, paid *books.Interval, seq uint64) error {
	list := j.ev.wait
	if paid != nil && seq > 0 {
		list = append(list[:len(list):len(list)], books.Interval{At: paid.At, Evidence: paid.Evidence, Voucher: seq})
	}
	for _, v := range list {
		err := tx.KeepInterval(j.lane(), v)
		if err != nil && !errors.Is(err, books.ErrConflict) { // a provider that numbers two beats alike: the first stays
			return err
		}
	}
	return nil
}

// evidencePaid remembers what the receipt for a voucher must name.
func (j *job) evidencePaid(raw []byte, paid *books.Interval) {
	if len(raw) == 0 {
		return
	}
	var h wire.Hash
	if paid != nil {
		h = voucher.EvidenceHash(paid.Evidence)
	}
	if j.ev.paid == nil || len(j.ev.paid) >= paidMost {
		j.ev.paid = map[wire.Hash]wire.Hash{}
	}
	j.ev.paid[identity.Hash(raw)] = h
}

// checkReceipt compares a receipt that was taken with what was sent for its claim. It counts as a receipt all the same: what was paid is
// proven, what ran is in doubt, and the lease's statement shows the interval.
func (j *job) checkReceipt(raw []byte) {
	r, err := voucher.OpenReceipt(raw)
	if err != nil {
		return // it was taken a moment ago
	}
	want, known := j.ev.paid[r.Voucher]
	delete(j.ev.paid, r.Voucher)
	if known && want != r.Evidence {
		why := reason.New(reason.EvidenceDiffers, "receipt for voucher %s: the claim came with %s, the receipt names %s", r.Voucher.Short(), want.Short(), r.Evidence.Short())
		j.log.Warn("evidence", "reason", why)
		j.mu.Lock()
		j.finding = &why
		j.mu.Unlock()
		j.changed()
	}
}
