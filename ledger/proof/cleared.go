package proof

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/statement"
)

// clearings checks the circles of debts by which the channel's debt went down: the word of every member, that all agreed, and that the
// channel is one of the circle's debts. Which leases the amount counts for is the booking of the account that made the file.
func (c *check) clearings() error {
	for _, raw := range c.f.Clearings {
		id, err := raw.Terms.ID()
		if err == nil {
			err = raw.Terms.Validate()
		}
		if err != nil {
			return corrupt("clearing", "%v", err)
		}
		record := "clearing " + id.Short()
		if err := c.clearing(record, raw); err != nil {
			return err
		}
		entry := ledger.EntryID(ledger.KindNetting, id, c.f.Channel.AllEpochs().ID())
		if _, twice := c.cleared[entry]; twice {
			return corrupt(record, "it is there twice")
		}
		c.cleared[entry] = raw.Terms.Amount
		if raw.Part > c.clearedFor {
			c.clearedFor = raw.Part
		}
		var sum error
		if c.paid.all, sum = money.Add(c.paid.all, raw.Terms.Amount); sum != nil {
			return corrupt(record, "%v", sum)
		}
		c.out.Clearings = append(c.out.Clearings, statement.ProofClearing{
			ID: id.String(), Amount: raw.Terms.Amount.String(), Part: raw.Part.String(), Members: len(raw.Terms.Legs), Before: time.UnixMilli(raw.Terms.Deadline).UTC(),
		})
		c.proven("%v %s of what account %s owes account %s on the whole channel were cleared in a circle of %d debts: all members' signatures of clearing %s",
			raw.Terms.Amount, raw.Terms.Unit, c.f.Channel.Renter, c.f.Channel.Provider, len(raw.Terms.Legs), id.Short())
	}
	if len(c.f.Clearings) > 0 {
		c.unproven("that the cleared amounts count for this lease: account %s counts them for its oldest leases, up to %v with what was settled before, and "+
			"nobody signed that", c.f.Account.Short(), c.clearedFor)
	}
	if n := c.f.OlderClear; n > 0 {
		c.unproven("%d older circles that cleared a part of this lease: they are not in the file", n)
	}
	return nil
}

// clearing checks that all members agreed to one that has the file's channel.
func (c *check) clearing(record string, raw Clearing) error {
	ours := false
	for _, l := range raw.Terms.Legs {
		ours = ours || raw.Terms.Channel(l) == c.f.Channel.AllEpochs()
	}
	if !ours {
		return corrupt(record, "this lease's channel is none of its debts")
	}
	if len(raw.Words) > 2*netting.MaxDevices {
		return corrupt(record, "it has %d words", len(raw.Words))
	}
	said := netting.Clearing{Terms: raw.Terms}
	for _, w := range raw.Words {
		s, err := netting.Open(raw.Terms, w)
		if errors.Is(err, netting.ErrWord) {
			return corrupt(record, "%v", err)
		}
		if err != nil {
			return forged(record, err)
		}
		said = said.Hear(s)
	}
	if said.State != netting.Cleared {
		return corrupt(record, "%s", fmt.Sprintf("the signatures of %d members are not in the file: it does not count", len(said.Missing())))
	}
	return nil
}
