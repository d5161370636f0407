package proof

import (
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// comesTo looks for a credit note that both sides signed, and gives what the lane comes to by it: at most what was promised.
func (c *check) comesTo(promised money.Micro) (money.Micro, error) {
	var notes []voucher.CreditNote
	hashes := map[int][]byte{}
	for _, a := range c.f.Attachments {
		switch identity.Domain(a.Name) {
		case voucher.DomainDispute:
			d, err := voucher.OpenDispute(a.Data)
			if err != nil {
				return 0, forged("dispute", err)
			}
			c.unproven("that account %s agrees: it disputes the lease (%q), with %v as what both had signed on %s; without a credit note that stands",
				d.Account.Short(), d.Reason, d.Amount, time.UnixMilli(d.Time).UTC().Format(time.DateOnly))
		case voucher.DomainCreditNote:
			n, err := voucher.OpenCreditNote(a.Data)
			if err != nil {
				return 0, forged("credit note", err)
			}
			if n.Channel != c.f.Channel || n.Lane != c.f.Lane {
				return 0, corrupt("credit note", "it is of another lane")
			}
			power := identity.PowerProvide
			if n.Account == n.Channel.Renter {
				power = identity.PowerPay
			}
			if err := c.allowed("credit note", n.Header, n.Delegation, power); err != nil {
				return 0, err
			}
			hashes[len(notes)] = a.Data
			notes = append(notes, n)
		}
	}
	for i, proposal := range notes {
		for _, counter := range notes {
			if proposal.Proposal.IsZero() && voucher.Agreed(proposal, identity.Hash(hashes[i]), counter) == nil {
				c.proven("both agreed that the lease comes to %v: both signatures of a credit note", proposal.Amount)
				promised, c.agreedOn = min(promised, proposal.Amount), true
			}
		}
	}
	return promised, nil
}
