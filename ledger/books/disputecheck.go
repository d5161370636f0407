package books

import (
	"bytes"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// disputes checks every dispute: both sides' records, the credit note that counts, and what the lane and the account say of it.
func (a *audit) disputes() error {
	until := map[string]int64{}
	err := a.r.EachDispute(func(d Dispute) error {
		name := "dispute of lane " + d.Lane.Short()
		l, role, err := a.r.laneAs(d.Lane, 0)
		if err != nil {
			return corrupt(name, "%v", err)
		}
		if d.Mine == nil && d.Theirs == nil || !l.Frozen() || l.Agreed != (d.Agreed != nil) || l.Disputed > d.Until {
			return corrupt(name, "the lane does not say the same")
		}
		for raw, signer := range map[string]identity.AccountID{string(d.Mine): a.r.b.self, string(d.Theirs): l.Channel.Peer(a.r.b.self)} {
			if err := a.dispute(name, l, raw, signer); err != nil {
				return err
			}
		}
		if d.Agreed == nil {
			k := string(accountKey(role, l.Channel.Unit, l.Channel.Peer(a.r.b.self)))
			until[k] = max(until[k], d.Until)
			return nil
		}
		return a.creditNote(name, l, d)
	})
	if err != nil {
		return err
	}
	return a.r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, have Account) error {
		if is := until[string(accountKey(role, u, peer))]; have.DisputedUntil != is {
			return corrupt("account "+peer.String(), "its disputes are open until %d, it says %d", is, have.DisputedUntil)
		}
		return nil
	})
}

// dispute checks one side's record.
func (a *audit) dispute(name string, l Lane, raw string, signer identity.AccountID) error {
	if raw == "" {
		return nil
	}
	d, err := voucher.OpenDispute([]byte(raw))
	if err != nil {
		return forged(name, err)
	}
	a.checked++
	if d.Account != signer || d.Lane != l.Lane || d.Channel != l.Channel {
		return corrupt(name, "account %s signed it for lane %s", d.Account.Short(), d.Lane.Short())
	}
	if err := a.r.maySettle(l.Channel, d.Header, d.Delegation); err != nil {
		return forged(name, err)
	}
	return nil
}

// creditNote checks both signatures of the credit note that counts.
func (a *audit) creditNote(name string, l Lane, d Dispute) error {
	n, err := voucher.OpenCreditNote(d.Note)
	if err != nil {
		return forged(name, err)
	}
	c, err := voucher.OpenCreditNote(d.Counter)
	if err != nil {
		return forged(name, err)
	}
	a.checked += 2
	if err := voucher.Agreed(n, identity.Hash(d.Note), c); err != nil {
		return forged(name, err)
	}
	for _, s := range []voucher.CreditNote{n, c} {
		if err := a.r.maySettle(l.Channel, s.Header, s.Delegation); err != nil {
			return forged(name, err)
		}
	}
	if n.Lane != l.Lane || n.Channel != l.Channel || n.Amount != *d.Agreed || l.Owed() != n.Amount {
		return corrupt(name, "both signed %v, the lane comes to %v", n.Amount, l.Owed())
	}
	return nil
}

// disputeProofs gives the signed records of a lane's dispute, for its proof file.
func (r *Reader) disputeProofs(lane ledger.Lane) ([]proof.Attachment, error) {
	d, err := r.disputeOf(lane)
	if err != nil {
		return nil, err
	}
	var out []proof.Attachment
	add := func(name identity.Domain, raw []byte) {
		for _, have := range out {
			if bytes.Equal(have.Data, raw) {
				return
			}
		}
		if raw != nil {
			out = append(out, proof.Attachment{Name: string(name), Data: raw})
		}
	}
	add(voucher.DomainDispute, d.Mine)
	add(voucher.DomainDispute, d.Theirs)
	for _, raw := range [][]byte{d.Note, d.Counter, d.Offer, d.Offered} {
		add(voucher.DomainCreditNote, raw)
	}
	return out, nil
}
