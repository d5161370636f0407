package proof

import (
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// log checks the signed head, that every checkpoint which the same device signed before is a part of it, and that no two checkpoints of
// one log contradict each other.
func (c *check) log() error {
	line, _, _ := strings.Cut(string(c.f.Checkpoint), "\n")
	origin, err := history.ParseOrigin(line)
	if err != nil {
		return corrupt("checkpoint", "%v", err)
	}
	cp, err := history.Open(c.f.Checkpoint, origin.Peer)
	if err != nil {
		return forged("checkpoint", err)
	}
	c.head = cp
	mine := false
	for _, d := range c.delegations {
		mine = mine || d.Account == c.f.Account && d.Device == origin.Peer
	}
	if !mine {
		return corrupt("checkpoint", "no delegation in the file lets device %s sign for account %s", origin.Peer, c.f.Account.Short())
	}
	if err := c.contradictions(head{cp, "the file's head"}); err != nil {
		return err
	}
	proofs := map[uint64][]wire.Hash{}
	for _, e := range c.f.Extensions {
		proofs[e.Size] = e.Proof
	}
	grown := 0
	for _, h := range c.heads {
		switch {
		case h.Origin != origin:
			continue
		case h.Size > cp.Size:
			c.note(&finding{Behind, "checkpoint", fmt.Sprintf("its log has %d entries, the same device signed for %d in the %s", cp.Size, h.Size, h.record)})
			continue
		}
		if err := history.CheckConsistency(hashes(proofs[h.Size]), h.Checkpoint, cp); err != nil {
			return corrupt("checkpoint in "+h.record, "the file does not show that its log extends this one: %v", err)
		}
		grown++
	}
	c.out.Origin, c.out.Entries, c.out.Root = origin.String(), cp.Size, wire.Hash(cp.Root).String()
	c.proven("account %s had booked %d entries, with root %s: signature of its log's head", c.f.Account, cp.Size, wire.Hash(cp.Root).Short())
	if grown > 0 {
		c.proven("nothing was rewritten since the checkpoints that the records here carry, %d in number: consistency proofs", grown)
	}
	return nil
}

// contradictions looks for two checkpoints of one log and one size with different roots: a proof of rewriting that needs nothing else.
func (c *check) contradictions(file head) error {
	type at struct {
		origin history.Origin
		size   uint64
	}
	roots := map[at]head{}
	for _, h := range append([]head{file}, c.heads...) {
		k := at{h.Origin, h.Size}
		if other, ok := roots[k]; ok && other.Root != h.Root {
			return &finding{Forged, "checkpoint in " + h.record, fmt.Sprintf("device %s signed two histories of its log: at %d entries it has another root in %s",
				h.Origin.Peer, h.Size, other.record)}
		}
		roots[k] = h
	}
	return nil
}

// entries checks that each entry is in the log and of this lane or its settlements, and sums up what was booked.
func (c *check) entries() error {
	var booked int64
	found := 0
	for i, raw := range c.f.Entries {
		record := fmt.Sprintf("entry %d", raw.Index)
		if i > 0 && raw.Index <= c.f.Entries[i-1].Index {
			return corrupt(record, "the entries are not in order")
		}
		e, err := ledger.DecodeLeaf(raw.Leaf)
		if err != nil {
			return corrupt(record, "%v", err)
		}
		if err := history.CheckInclusion(hashes(raw.Proof), c.head, raw.Index, raw.Leaf); err != nil {
			return &finding{Forged, record, "it is not the one in the signed log: " + err.Error()}
		}
		if e.Peer != c.f.Channel.Peer(c.f.Account) {
			return corrupt(record, "it is of another account")
		}
		if s, ok := c.settled[e.ID]; ok && e.Kind == ledger.KindSettlement {
			if len(e.Postings) == 0 || e.Postings[0].Amount != int64(s.Amount) || e.Postings[0].Unit != s.Channel.Unit {
				return corrupt(record, "it books another amount than the %v that both signed", s.Amount)
			}
			found++
			continue
		}
		if amount, ok := c.cleared[e.ID]; ok && e.Kind == ledger.KindNetting {
			if len(e.Postings) == 0 || e.Postings[0].Amount != int64(amount) || e.Postings[0].Unit != c.f.Channel.Unit {
				return corrupt(record, "it books another amount than the %v that all members signed", amount)
			}
			found++
			continue
		}
		if e.Lane != c.f.Lane {
			return corrupt(record, "it is of another lease")
		}
		if booked, err = c.book(record, e, booked); err != nil {
			return err
		}
	}
	if want := len(c.settled) + len(c.cleared); found != want {
		return corrupt("entries", "%d payments and clearings are signed by all, %d of them are booked", want, found)
	}
	if len(c.f.Entries) > 0 {
		c.proven("account %s booked the %d entries here as they are: inclusion proofs", c.f.Account, len(c.f.Entries))
	}
	return c.sum(booked)
}

// book adds what an entry says is owed for the lane.
func (c *check) book(record string, e ledger.Entry, booked int64) (int64, error) {
	if e.Kind != ledger.KindUsage && e.Kind != ledger.KindCorrection {
		return booked, nil
	}
	for _, p := range e.Postings {
		amount := p.Amount
		switch {
		case p.Unit != c.f.Channel.Unit || p.Account.Peer != e.Peer:
			continue
		case p.Account.Kind == ledger.Payable && c.role == ledger.AsRenter:
			amount = -amount
		case p.Account.Kind != ledger.Receivable || c.role != ledger.AsProvider:
			continue
		}
		sum, err := ledger.AddSigned(booked, amount)
		if err != nil {
			return 0, corrupt(record, "%v", err)
		}
		booked = sum
		if e.Kind == ledger.KindCorrection && amount < 0 {
			if c.corrected, err = money.Add(c.corrected, ledger.Positive(-amount)); err != nil {
				return 0, corrupt(record, "%v", err)
			}
		}
	}
	return booked, nil
}

// sum compares what was booked with what was promised.
func (c *check) sum(booked int64) error {
	c.all, c.booked = c.f.Older.Entries == 0, ledger.Positive(booked)
	switch {
	case !c.all:
		c.unproven("%d older entries of the lease: they are not in the file", c.f.Older.Entries)
		c.corrected = min(c.corrected, c.newest.Amount)
	case booked < 0:
		return corrupt("entries", "they book less than nothing")
	case c.booked > c.newest.Amount:
		c.note(&finding{Behind, "entries", fmt.Sprintf("they book %v, the newest voucher here promises %v", c.booked, c.newest.Amount)})
		c.booked = c.newest.Amount
	case c.booked == c.newest.Amount:
		c.proven("the entries of the lease sum up to the promised amount")
	}
	return nil
}
