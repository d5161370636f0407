package proof

import (
	"bytes"
	"fmt"

	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// attachments checks that each record of another wing is signed by a side and is about the lane.
func (c *check) attachments() error {
	tied := c.tied()
	for i, a := range c.f.Attachments {
		record := fmt.Sprintf("attachment %d (%q)", i, a.Name)
		r, err := a.open()
		if err != nil {
			return forged(record, err)
		}
		if c.f.Channel.RoleOf(r.Account) == 0 {
			return corrupt(record, "account %s signed it, which is no side of the channel", r.Account)
		}
		if !tied[i] {
			return corrupt(record, "it is not about lease %s", c.f.Lane.Short())
		}
		if err := c.allowed(record, r.Header, r.Delegation, 0); err != nil {
			return err
		}
		c.out.Attachments = append(c.out.Attachments, statement.ProofAttachment{Name: a.Name, Hash: identity.Hash(a.Data).String(), Signed: r.Account.String()})
		c.proven("account %s signed the attached %s record of this lease", r.Account, a.Name)
	}
	return nil
}

// tied says of each attachment whether it is about the lane: by its key 5, by being a part of one that is (an accept in its lease), or by
// being what such a one names under key 5 (the offer of that accept).
func (c *check) tied() []bool {
	list := c.f.Attachments
	tied, keys := make([]bool, len(list)), make([]wire.Hash, len(list))
	for i, a := range list {
		keys[i] = a.about()
		tied[i] = keys[i] == wire.Hash(c.f.Lane)
	}
	for range list { // each round ties those that the last one's lead to
		for i, a := range list {
			for j, by := range list {
				if tied[j] && i != j && (keys[j] == identity.Hash(a.Data) || bytes.Contains(by.Data, a.Data)) {
					tied[i] = true
				}
			}
		}
	}
	return tied
}
