package books

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// paysOff lists the lanes of a channel that a payment pays off, at most voucher.MaxLanes of them, with what both sides know them to promise:
// payments settle the oldest ended lanes first, and running ones last. A lane that an earlier payment listed and did not cover is listed again.
// A payment that covers none whole lists the oldest, of which it pays a part.
func (r *Reader) paysOff(c ledger.Channel, amount money.Micro) ([]voucher.LaneAmount, error) {
	unpaid, err := r.unpaidLanes(c)
	if err != nil {
		return nil, err
	}
	var out []voucher.LaneAmount
	for _, d := range unpaid {
		if amount == 0 || len(out) == voucher.MaxLanes || len(out) > 0 && d.Amount > amount {
			break
		}
		amount -= min(amount, d.Amount)
		l, err := r.Lane(d.Lane)
		if err != nil {
			return nil, err
		}
		known, err := r.acknowledged(l)
		if err != nil {
			return nil, err
		}
		if known > 0 {
			out = append(out, voucher.LaneAmount{Lane: d.Lane, Amount: known})
		}
	}
	slices.SortFunc(out, func(a, b voucher.LaneAmount) int { return bytes.Compare(a.Lane[:], b.Lane[:]) })
	return out, nil
}

// unpaidLanes gives what is left of a channel's lanes in the order in which payments settle them.
func (r *Reader) unpaidLanes(c ledger.Channel) ([]ledger.Debt, error) {
	peer := c.Peer(r.b.self)
	out, err := r.Unpaid(c.RoleOf(r.b.self), c.Unit, peer)
	if err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(d ledger.Debt) bool { return d.Lane == ledger.Lane{} }) // running lanes together, below one by one
	lanes, err := r.Lanes(peer)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(lanes, func(a, b Lane) int { return cmp.Compare(a.Opened, b.Opened) })
	for _, l := range lanes {
		if c.Covers(l.Channel) && !l.Closed() && l.Owed() > 0 {
			out = append(out, l.debt())
		}
	}
	return out, nil
}
