package local

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// DefaultDisputeDays is how long a dispute stays open if neither the request nor the settings say otherwise. MaxDisputeDays is the most that
// they may: the other side holds a longer one for 60 days only.
const DefaultDisputeDays, MaxDisputeDays = 14, 60

const dayMs = 24 * 60 * 60 * 1000

// disputes puts disputes on the API.
func (d Desk) disputes(a huma.API) {
	serve.Get(a, "/ledger/disputes", "Disputes about what leases come to", func(ctx context.Context) (out statement.Disputes, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowDisputes(); return err })
		return out, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/leases/{id}/dispute", "The dispute about a lease"),
		func(ctx context.Context, in *struct {
			ID string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
		},
		) (*serve.Body[statement.Dispute], error) {
			lane, err := d.lane(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			var out statement.Dispute
			err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowDispute(lane); return err })
			if errors.Is(err, books.ErrNoDispute) {
				return nil, serve.Fail(http.StatusNotFound, err, "`ledger dispute LEASE --reason …` opens one")
			}
			return &serve.Body[statement.Dispute]{Body: out}, fail(err)
		})
	huma.Register(a, serve.Op(http.MethodPost, "/ledger/leases/{id}/dispute", "Dispute what a lease comes to, or propose an amount to end a dispute"),
		func(ctx context.Context, in *struct {
			ID   string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
			Body statement.DisputeRequest
		},
		) (*serve.Body[statement.Dispute], error) {
			lane, err := d.lane(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			out, err := d.dispute(ctx, lane, in.Body)
			return &serve.Body[statement.Dispute]{Body: out}, err
		})
}

// dispute opens a dispute or proposes to end it, and tells the other side if that is there.
func (d Desk) dispute(ctx context.Context, lane ledger.Lane, in statement.DisputeRequest) (out statement.Dispute, err error) {
	switch {
	case in.Amount != "":
		err = d.offer(ctx, lane, in.Amount)
	case in.Reason != "":
		err = d.open(ctx, lane, in)
	default:
		err = serve.Fail(http.StatusUnprocessableEntity, errors.New("dispute: neither a reason nor an amount"), "give a reason to open one, or an amount to end it")
	}
	if err != nil {
		return out, err
	}
	if err := d.tell(ctx, lane); err != nil && !away(err) {
		return out, fail(err)
	}
	err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowDispute(lane); return err })
	return out, fail(err)
}

func (d Desk) open(ctx context.Context, lane ledger.Lane, in statement.DisputeRequest) error {
	days := in.Days
	if days == 0 {
		days = uint32(cmp.Or(d.DisputeDays, DefaultDisputeDays))
	}
	err := d.Books.Update(ctx, func(t *books.Tx) error {
		_, err := t.OpenDispute(lane, in.Reason, int64(days)*dayMs)
		return err
	})
	switch {
	case errors.Is(err, books.ErrNothingOwed):
		return serve.Fail(http.StatusConflict, err, "nothing is promised on it yet: stop the lease instead")
	case errors.Is(err, books.ErrConflict):
		return serve.Fail(http.StatusConflict, err, "`ledger dispute LEASE` shows it; while it is open, --close --amount proposes an end")
	}
	return fail(err)
}

func (d Desk) offer(ctx context.Context, lane ledger.Lane, text string) error {
	amount, err := money.Parse(text)
	if err != nil {
		return serve.Fail(http.StatusUnprocessableEntity, err, "")
	}
	err = d.Books.Update(ctx, func(t *books.Tx) error { return t.OfferCredit(lane, amount) })
	switch {
	case errors.Is(err, books.ErrNoDispute):
		return serve.Fail(http.StatusConflict, err, "`ledger dispute LEASE --reason …` opens one")
	case errors.Is(err, books.ErrRunning):
		return serve.Fail(http.StatusConflict, err, "the dispute ends the lease in a moment; try again then")
	case errors.Is(err, books.ErrDiffer):
		return serve.Fail(http.StatusConflict, err, "propose that, or less")
	}
	return fail(err)
}

// tell brings a dispute to the other side. What does not reach it goes out again by itself.
func (d Desk) tell(ctx context.Context, lane ledger.Lane) error {
	var l books.Lane
	err := d.Books.View(ctx, func(r *books.Reader) (err error) { l, err = r.Lane(lane); return err })
	if err != nil {
		return err
	}
	peer, err := d.Peer(ctx, l.Channel.Peer(d.Books.Self()))
	if err != nil {
		return err
	}
	return d.Claims.Dispute(ctx, peer, lane)
}
