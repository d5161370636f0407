package books

import (
	"errors"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// ShowCredit gives a unit's limits, what is used of each, what each renter uses of its own, and how this account stands with providers
// in any unit. Where the limits come from is not for the books to know.
func (r *Reader) ShowCredit(u money.Unit) (statement.Credit, error) {
	limits := r.b.Limits(u)
	used, err := r.StrangersUsed(u, identity.AccountID{})
	if err != nil {
		return statement.Credit{}, err
	}
	out := statement.Credit{
		Unit: string(u), Stranger: limits.Stranger.String(), StrangersTotal: limits.StrangersTotal.String(), StrangersUsed: used.String(),
		KnownPercent: limits.KnownPercent, KnownCap: limits.KnownCap.String(), Accounts: []statement.CreditLimit{},
		Standings: []statement.CreditStanding{},
	}
	var known, lost money.Micro
	err = r.eachAccount(ledger.AsProvider, u, func(peer identity.AccountID, a Account) error {
		c, covered, err := r.creditOf(limits, peer, u, a)
		if err != nil {
			return err
		}
		out.Accounts = append(out.Accounts, c)
		if lost, err = money.Add(lost, a.BadDebt); err != nil {
			return err
		}
		known, err = money.Add(known, covered)
		return err
	})
	if err != nil {
		return out, err
	}
	out.KnownUsed, out.WrittenOff = known.String(), lost.String()
	out.Standings, err = r.standings()
	return out, err
}

// creditOf gives one renter's credit, and how much of what it owes its own history covers.
func (r *Reader) creditOf(limits ledger.Limits, peer identity.AccountID, u money.Unit, a Account) (statement.CreditLimit, money.Micro, error) {
	exposure, err := a.Exposure()
	if err != nil {
		return statement.CreditLimit{}, 0, err
	}
	room, cause, err := r.Room(peer, u)
	if err != nil {
		return statement.CreditLimit{}, 0, err
	}
	used := ledger.Positive(exposure)
	return statement.CreditLimit{
		Account: peer.String(), Limit: limits.Limit(a.Standing).String(), Used: used.String(), Prepaid: ledger.Positive(-a.Owed).String(),
		Room: room.String(), Why: why(cause, a.ByHand != nil), Settled: a.Settled.String(), WrittenOff: a.BadDebt.String(),
		Known: a.Settled > 0, ByHand: a.ByHand != nil, Late: a.Late,
	}, min(used, limits.Earned(a.Standing)), nil
}

// why names the limit that ends an account's room.
func why(cause error, byHand bool) string {
	switch {
	case errors.Is(cause, ledger.ErrLate):
		return "late"
	case errors.Is(cause, ledger.ErrWrittenOff):
		return "written off"
	case errors.Is(cause, ledger.ErrStrangersTotal):
		return "strangers_total"
	case byHand:
		return "by hand"
	}
	return "limit"
}

// standings gives how this account stands with each provider.
func (r *Reader) standings() ([]statement.CreditStanding, error) {
	out := []statement.CreditStanding{}
	err := r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
		if role != ledger.AsRenter {
			return nil
		}
		out = append(out, statement.CreditStanding{
			Account: peer.String(), Unit: string(u), Owed: ledger.Positive(a.Owed).String(), Held: a.Open.String(),
			Prepaid: ledger.Positive(-a.Owed).String(), Settled: a.Settled.String(), Late: a.Late,
		})
		return nil
	})
	return out, err
}
