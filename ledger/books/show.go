package books

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// signed writes micro-units with a sign: "-0.25".
func signed(v int64) string {
	if v < 0 {
		return "-" + money.Micro(-v).String()
	}
	return money.Micro(v).String()
}

func when(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// ShowLedger gives the ledger as people are told of it: size, root and a balance for each counterparty and unit.
func (r *Reader) ShowLedger() (statement.Ledger, error) {
	h, err := r.head()
	if err != nil {
		return statement.Ledger{}, err
	}
	out := statement.Ledger{Account: r.b.self.String(), Entries: h.Size, Root: h.Root.String(), Balances: []statement.Balance{}}
	if err := r.b.ReadOnly(); err != nil {
		out.ReadOnly = err.Error()
	}
	totals, err := r.Totals()
	if err != nil {
		return out, err
	}
	for _, t := range totals {
		held, err1 := money.Add(t.HeldForMe, t.HeldByMe)
		prepaid, err2 := money.Add(t.PrepaidTo, t.PrepaidBy)
		settled, err3 := money.Add(t.Received, t.Paid)
		for _, err := range []error{err1, err2, err3} {
			if err != nil {
				return out, err
			}
		}
		out.Balances = append(out.Balances, statement.Balance{
			Account: t.Peer.String(), Unit: string(t.Unit), OwedToMe: t.OwedToMe.String(), IOwe: t.IOwe.String(), Held: held.String(),
			Prepaid: prepaid.String(), Settled: settled.String(), Leases: int(t.Lanes), LastEntry: when(t.LastEntry),
		})
	}
	owed, err := r.ShowOwed()
	for _, d := range owed.Owed {
		if d.Late || d.Role == ledger.AsRenter.String() && d.Reminders > 0 {
			out.Due = append(out.Due, d)
		}
	}
	return out, err
}

// ShowEntry gives an entry as people are told of it.
func ShowEntry(index uint64, e ledger.Entry) statement.Entry {
	out := statement.Entry{Index: index, ID: e.ID.String(), Time: when(e.Time), Kind: e.Kind.String(), Account: e.Peer.String(), Ref: e.Note}
	if e.Lane != (ledger.Lane{}) {
		out.Lease = e.Lane.String()
	}
	for _, p := range e.Postings {
		out.Unit = string(p.Unit)
		out.Postings = append(out.Postings, statement.Posting{Account: p.Account.String(), Amount: signed(p.Amount)})
	}
	out.Amount = signed(e.Postings[0].Amount)
	return out
}

// ShowEntries gives the entries from an index on, at most limit of them.
func (r *Reader) ShowEntries(from uint64, limit int) ([]statement.Entry, error) {
	out := []statement.Entry{}
	err := r.Entries(from, func(i uint64, e ledger.Entry) (bool, error) {
		if len(out) < limit {
			out = append(out, ShowEntry(i, e))
		}
		return len(out) < limit, nil
	})
	return out, err
}

// ShowLane gives what a lease cost and the proof of it. The signatures that it lists were checked just now, and a wrong one is ErrForged.
func (r *Reader) ShowLane(id ledger.Lane) (statement.Statement, error) {
	l, role, err := r.laneAs(id, 0)
	if err != nil {
		return statement.Statement{}, err
	}
	out := statement.Statement{
		Lease: id.String(), Account: l.Channel.Peer(r.b.self).String(), Role: role.String(), Unit: string(l.Channel.Unit),
		Amount: l.Owed().String(), Sequence: l.Seq, Voucher: l.Voucher.String(), Entries: []statement.Entry{},
	}
	if out.Settled, err = r.isPaid(l, role); err != nil {
		return out, err
	}
	if !l.Receipt.IsZero() {
		out.Receipt = l.Receipt.String()
	}
	signers, err := r.checkNewest(l)
	if err != nil {
		return out, err
	}
	for _, a := range signers {
		out.Signed = append(out.Signed, a.String())
	}
	err = r.EntriesOf(id, func(i uint64, e ledger.Entry) error {
		out.Entries = append(out.Entries, ShowEntry(i, e))
		return nil
	})
	return out, err
}

// isPaid reports whether nothing is left to pay of a lane: payments settle the oldest ended lanes first, and running ones last. What was
// written off is not paid.
func (r *Reader) isPaid(l Lane, role ledger.Role) (bool, error) {
	unpaid, err := r.Claim(role, l.Channel.Unit, l.Channel.Peer(r.b.self))
	of := l.Lane
	if !l.Closed() {
		of = ledger.Lane{} // what running lanes promise is one debt
	}
	open := slices.ContainsFunc(unpaid, func(d ledger.Debt) bool { return d.Lane == of && d.Amount > 0 })
	return l.Owed() == 0 || !open, err
}

// checkNewest checks the signatures of a lane's newest voucher and its receipt, and gives whose they are.
func (r *Reader) checkNewest(l Lane) ([]identity.AccountID, error) {
	b, err := r.Voucher(l.Lane, l.Seq)
	if err != nil {
		return nil, err
	}
	v, err := voucher.Open(b)
	if err != nil || v.Hash != l.Voucher || v.Amount != l.Amount || v.Account != l.Channel.Renter {
		return nil, fmt.Errorf("newest voucher of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
	}
	out := []identity.AccountID{v.Account}
	b, err = r.Receipt(l.Voucher)
	if err != nil || b == nil {
		return out, err
	}
	got, err := voucher.OpenReceipt(b)
	if err != nil || got.Voucher != l.Voucher || got.Account != l.Channel.Provider {
		return nil, fmt.Errorf("receipt of lane %s: %w: %w", l.Lane.Short(), ErrForged, err)
	}
	return append(out, got.Account), nil
}

// ShowSettlements gives every settlement, the newest first.
func (r *Reader) ShowSettlements() ([]statement.Settlement, error) {
	out := []statement.Settlement{}
	err := r.Settlements(func(id wire.Hash, s voucher.Settlement, v Settled) error {
		out = append(out, ShowSettlement(r.b.self, s, v, time.UnixMilli(r.at)))
		return nil
	})
	slices.SortFunc(out, func(a, b statement.Settlement) int {
		if c := b.Time.Compare(a.Time); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out, err
}

// ShowSettlement gives a settlement as self is told of it. now is for its age.
func ShowSettlement(self identity.AccountID, s voucher.Settlement, v Settled, now time.Time) statement.Settlement {
	signers := []string{s.Account.String()}
	if v.State == Signed {
		signers = append(signers, s.Channel.Peer(s.Account).String())
	}
	why := ""
	if v.State == Refused {
		why = strings.ToValidUTF8(v.Why, "?")
	}
	return statement.Settlement{
		ID: s.ID().String(), Account: s.Channel.Peer(self).String(), Unit: string(s.Channel.Unit), Amount: s.Amount.String(),
		Method: s.Method, Reference: strings.ToValidUTF8(s.Reference, "?"), Time: when(s.Time), ByMe: s.Channel.Renter == self,
		State: v.State.String(), Signed: signers, Why: why, RefusedBy: refusedBy(self, s, v), Undelivered: v.State == Proposed && v.Held != 0,
		Overdue: (v.State == Proposed || v.State == Waiting) && Overdue(s.Time, now),
	}
}
