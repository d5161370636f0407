package local

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// intervals puts the statement of a lease, line by line, on an API.
func (d Desk) intervals(a huma.API) {
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/leases/{id}/intervals", "A lease's statement, interval by interval"),
		func(ctx context.Context, in *struct {
			ID    string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
			Skip  int    `query:"skip" minimum:"0" doc:"how many lines were read already"`
			Limit int    `query:"limit" default:"1000" minimum:"1" maximum:"10000"`
		},
		) (*serve.Body[statement.Intervals], error) {
			lane, err := d.lane(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			out := statement.Intervals{Lease: lane.String(), Intervals: []statement.Interval{}}
			err = d.Books.View(ctx, func(r *books.Reader) error {
				n := 0
				return r.ShowIntervals(lane, d.Evidence, func(line statement.Interval) (bool, error) {
					if n++; n <= in.Skip {
						return true, nil
					}
					if out.More = len(out.Intervals) == in.Limit; !out.More {
						out.Intervals = append(out.Intervals, line)
					}
					return !out.More, nil
				})
			})
			return &serve.Body[statement.Intervals]{Body: out}, fail(err)
		})
}
