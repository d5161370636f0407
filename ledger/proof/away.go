package proof

import (
	"time"

	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxEvidence is the longest evidence of one interval, in bytes.
const maxEvidence = 512

// allowance checks the renter's word for the time when it was away. It is a promise to sign, and no debt by itself: what ran is the
// provider's word until a voucher says so. So it raises what may be owed at most, and never what is at least.
func (c *check) allowance() error {
	if len(c.f.Allowance) == 0 {
		return nil
	}
	const record = "allowance"
	a, err := voucher.OpenAllowance(c.f.Allowance)
	if err != nil {
		return forged(record, err)
	}
	if a.Channel != c.f.Channel || a.Lane != c.f.Lane || a.Device != c.newest.Device {
		return corrupt(record, "it is of another lease or device")
	}
	if err := c.allowed(record, a.Header, a.Delegation, identity.PowerPay); err != nil {
		return err
	}
	until := time.UnixMilli(a.Until).UTC()
	c.most, c.out.Allowed, c.out.AllowedUntil = a.Amount, a.Amount.String(), &until
	c.proven("account %s promised to sign, after an absence until %s, for what was metered up to %v in all: signature of its allowance",
		a.Account, until.Format(time.RFC3339), a.Amount)
	if a.Amount > c.newest.Amount {
		c.unproven("that the job ran for more than %v while account %s was away: only account %s can say so", c.newest.Amount, a.Account.Short(), c.f.Channel.Provider.Short())
	}
	return nil
}

// evidence checks that what the job used in the interval of the newest receipt is what the provider signed for. What it says is not read here.
func (c *check) evidence() error {
	if len(c.f.Evidence) == 0 {
		return nil
	}
	r, err := voucher.OpenReceipt(c.f.Receipt)
	if err != nil || r.Evidence != voucher.EvidenceHash(c.f.Evidence) {
		return corrupt("evidence", "the receipt does not name it")
	}
	c.proven("account %s signed for what the job used in the interval of voucher %d: hash in its receipt", r.Account, c.received.Seq)
	return nil
}
