package control

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/provider/control/api"
)

// transcript is an auction's file as it is.
type transcript struct {
	Type string `header:"Content-Type"`
	Body []byte
}

// auctions puts the owner's sealed auctions on the API.
func (s server) auctions(a huma.API) {
	serve.Get(a, "/auctions", "Sealed auctions with their bids, newest first", func(ctx context.Context) (api.Auctions, error) {
		list, err := s.agent.Auctions(ctx)
		return api.Auctions{Auctions: list}, fail(err)
	})
	op := serve.Op(http.MethodGet, "/auctions/{id}/transcript", "The file from which anybody clears an auction again")
	op.Responses = map[string]*huma.Response{"200": {
		Description: "OK", Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	huma.Register(a, op, func(ctx context.Context, in *struct {
		ID string `path:"id" doc:"id of an auction, or an unambiguous start of it"`
	},
	) (*transcript, error) {
		raw, err := s.agent.AuctionFile(ctx, in.ID)
		return &transcript{Type: "application/octet-stream", Body: raw}, fail(err)
	})
}
