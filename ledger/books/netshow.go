package books

import (
	"cmp"
	"slices"

	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ShowClearings gives every clearing as people are told of it, the oldest first.
func (r *Reader) ShowClearings() ([]statement.Clearing, error) {
	out := []statement.Clearing{}
	err := r.Clearings(func(id wire.Hash, v Netted) error {
		out = append(out, ShowClearing(id, v.Clearing))
		return nil
	})
	slices.SortStableFunc(out, func(a, b statement.Clearing) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

// ShowClearing gives a clearing as people are told of it.
func ShowClearing(id wire.Hash, c netting.Clearing) statement.Clearing {
	out := statement.Clearing{
		ID: id.String(), Time: when(c.Changed), Unit: string(c.Terms.Unit), Amount: c.Terms.Amount.String(), State: c.State.String(),
		Deadline: when(c.Terms.Deadline), Accounts: []string{}, Missing: []string{},
	}
	for _, l := range c.Terms.Legs {
		out.Accounts = append(out.Accounts, l.Debtor.String())
	}
	accounts := func(devices []identity.PeerID) (all []string) {
		for _, d := range devices {
			if a := c.Terms.Side(d).Account().String(); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
		return all
	}
	out.Missing = append(out.Missing, accounts(c.Missing())...)
	out.Liars = accounts(c.Liars())
	return out
}
