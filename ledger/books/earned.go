package books

import (
	"cmp"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Unpaid is what of a lane is not paid, when payments settle the oldest debts first: open, or written off.
type Unpaid struct{ Open, Lost money.Micro }

// UnpaidLanes gives what is not paid of each lane of which this account is the provider.
func (r *Reader) UnpaidLanes() (map[ledger.Lane]Unpaid, error) {
	out := map[ledger.Lane]Unpaid{}
	err := r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		if role != ledger.AsProvider {
			return nil
		}
		debts, err := r.Claim(role, u, peer)
		if err != nil {
			return err
		}
		lost := a.BadDebt // the oldest
		for _, d := range debts {
			if d.Lane == (ledger.Lane{}) {
				if err := r.running(u, peer, d.Amount, out); err != nil {
					return err
				}
				continue
			}
			gone := min(lost, d.Amount)
			lost -= gone
			out[d.Lane] = Unpaid{Open: d.Amount - gone, Lost: gone}
		}
		return nil
	})
	return out, err
}

// running spreads what is unpaid of an account's running lanes over them, the newest first.
func (r *Reader) running(u money.Unit, peer identity.AccountID, amount money.Micro, to map[ledger.Lane]Unpaid) error {
	lanes, err := r.Lanes(peer)
	if err != nil {
		return err
	}
	slices.SortFunc(lanes, func(a, b Lane) int {
		return cmp.Or(cmp.Compare(b.Opened, a.Opened), slices.Compare(a.Lane[:], b.Lane[:]))
	})
	for _, l := range lanes {
		if l.Closed() || l.Channel.Unit != u || l.Channel.Renter != peer {
			continue
		}
		part := min(amount, l.Owed())
		amount -= part
		to[l.Lane] = Unpaid{Open: part}
	}
	return nil
}
