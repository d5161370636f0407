package books

import (
	"cmp"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// ShowDisputes gives every dispute, the newest first.
func (r *Reader) ShowDisputes() (statement.Disputes, error) {
	out := statement.Disputes{Disputes: []statement.Dispute{}}
	err := r.EachDispute(func(d Dispute) error {
		v, err := r.ShowDispute(d.Lane)
		out.Disputes = append(out.Disputes, v)
		return err
	})
	slices.SortFunc(out.Disputes, func(a, b statement.Dispute) int {
		return cmp.Or(b.Opened.Compare(a.Opened), cmp.Compare(a.Lease, b.Lease))
	})
	return out, err
}

// ShowDispute gives a lane's dispute.
func (r *Reader) ShowDispute(lane ledger.Lane) (statement.Dispute, error) {
	d, err := r.Dispute(lane)
	if err != nil {
		return statement.Dispute{}, err
	}
	l, role, err := r.laneAs(lane, 0)
	if err != nil {
		return statement.Dispute{}, err
	}
	out := statement.Dispute{
		Lease: lane.String(), Account: l.Channel.Peer(r.b.self).String(), Role: role.String(), Unit: string(l.Channel.Unit), By: "both",
		Until: when(d.Until), Amount: l.Owed().String(), Told: d.Told, State: "over",
	}
	switch {
	case d.Agreed != nil:
		out.State = "agreed"
	case d.Open(r.at):
		out.State = "open"
	}
	first := d.Mine
	if d.Mine == nil {
		first, out.By = d.Theirs, "other"
	} else if d.Theirs == nil {
		out.By = "me"
	}
	record, err := voucher.OpenDispute(first)
	if err != nil {
		return out, corrupt("dispute of lane "+lane.Short(), "%v", err)
	}
	out.Reason, out.Opened = record.Reason, when(record.Time)
	if d.Mine != nil && d.Theirs != nil {
		theirs, err := voucher.OpenDispute(d.Theirs)
		if err != nil {
			return out, corrupt("dispute of lane "+lane.Short(), "%v", err)
		}
		out.TheirReason = theirs.Reason
	}
	for raw, to := range map[*[]byte]*string{&d.Offer: &out.IOffer, &d.Offered: &out.TheyOffer} {
		n, err := noteOf(*raw)
		if err != nil {
			return out, err
		}
		if *raw != nil {
			*to = n.Amount.String()
		}
	}
	out.Turn = turn(out, l)
	return out, nil
}

// turn says who can bring an open dispute to its end now.
func turn(d statement.Dispute, l Lane) string {
	switch {
	case d.State != "open" || !l.Closed():
		return "nobody"
	case d.IOffer != "" && d.TheyOffer == "":
		return "other"
	case d.IOffer == "" && d.TheyOffer != "":
		return "me"
	}
	return "both"
}
