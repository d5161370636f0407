package proof

import (
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/wire"
)

// cosigned checks the other side's cosignature of the log, and that the log still begins as it was then: so whoever made the file can't
// have changed what was booked before, not even together with all its own signatures.
func (c *check) cosigned() error {
	const record = "cosigned head"
	if c.f.Cosigned == nil {
		c.unproven("that account %s ever checked this log: it has cosigned no head of it", c.f.Channel.Peer(c.f.Account))
		return nil
	}
	by, other := c.f.Cosigned.By, c.f.Channel.Peer(c.f.Account)
	got, err := history.OpenCosigned(c.f.Cosigned.Note, c.head.Origin.Peer, by)
	if err != nil {
		return forged(record, err)
	}
	theirs := false
	for _, d := range c.delegations {
		theirs = theirs || d.Account == other && d.Device == by
	}
	switch {
	case !theirs:
		return corrupt(record, "no delegation in the file lets device %s sign for account %s", by, other.Short())
	case got.Origin != c.head.Origin:
		return corrupt(record, "it is of log %s", got.Origin)
	case got.Size > c.head.Size:
		c.note(&finding{Behind, record, fmt.Sprintf("it is of %d entries, the file's head of %d", got.Size, c.head.Size)})
		return nil
	}
	var p []wire.Hash
	for _, e := range c.f.Extensions {
		if e.Size == got.Size {
			p = e.Proof
		}
	}
	if err := history.CheckConsistency(hashes(p), got.Checkpoint, c.head); err != nil {
		return corrupt(record, "the file does not show that its log extends this one: %v", err)
	}
	c.out.Cosigned, c.out.CosignedAt = got.Size, got.Time
	c.proven("account %s cosigned the first %d entries of that log, by its clock at %s, and none of them was changed since: consistency proof",
		other, got.Size, got.Time.Format(time.RFC3339))
	return nil
}
