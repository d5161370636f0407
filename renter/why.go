package renter

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/renter/control/api"
)

// Why says which offers of the book come nearest to a query that refuses them, and which of its conditions refuse how many. It asks nobody.
func (a *Agent) Why(_ context.Context, req api.WhyRequest) (api.WhyResult, error) {
	q, _, err := parseSearch(req.Query, "", req.AllowUnknown)
	if err != nil {
		return api.WhyResult{}, err
	}
	limit := req.Limit
	if limit <= 0 {
		limit = 10
	}
	near, census := a.Board.Book().Nearest(q, limit, time.Now())
	out := api.WhyResult{
		Known: census.Lots, Matches: census.Matches, Peers: len(a.Network.Peers()), Nearest: []api.NearOffer{}, Conditions: []api.ConditionCount{},
	}
	for _, r := range census.Refusals() {
		out.Conditions = append(out.Conditions, api.ConditionCount{Condition: r.Condition, Refuses: r.Lots, Alone: r.Alone})
	}
	for _, n := range near {
		v := api.NearOffer{Offer: a.viewOffer(n.Found), Refused: []api.Refused{}}
		for _, m := range n.Misses {
			v.Refused = append(v.Refused, refusedBy(m))
		}
		out.Nearest = append(out.Nearest, v)
	}
	if census.Lots == 0 {
		out.Note = nothingKnown(out.Peers)
	}
	return out, nil
}

func refusedBy(m query.Miss) api.Refused {
	advice, _ := m.Code.Advice()
	r := api.Refused{Condition: m.Condition, Have: m.Have, Code: string(m.Code), Text: m.String(), Next: advice.Renter, Off: float64(m.Off) / query.Whole}
	if m.Code == reason.PriceBelow {
		r.Next = "raise the price, or look for a cheaper offer"
	}
	return r
}
