package books

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger/voucher"
)

// away takes the newest allowance, and the evidence of the newest receipt's interval if the receipt names it.
func (g *gathering) away(l Lane) (err error) {
	if g.f.Allowance, err = g.r.Allowance(l.Lane); err != nil {
		return err
	}
	if g.f.Allowance != nil {
		a, err := voucher.OpenAllowance(g.f.Allowance)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrForged, err)
		}
		if err := g.delegation(a.Delegation); err != nil {
			return err
		}
	}
	if g.f.Receipt == nil {
		return nil
	}
	r, err := voucher.OpenReceipt(g.f.Receipt)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	return g.r.Intervals(l.Lane, func(v Interval) (bool, error) {
		if v.Voucher == l.Receipts && voucher.EvidenceHash(v.Evidence) == r.Evidence {
			g.f.Evidence = v.Evidence
		}
		return g.f.Evidence == nil, nil
	})
}
