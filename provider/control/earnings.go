package control

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/provider/control/api"
)

// Earnings tells what was earned since a time, by day, card or renter.
type Earnings func(ctx context.Context, since time.Time, by string) (api.Earnings, error)

// RegisterEarnings puts what was earned on an API.
func RegisterEarnings(a huma.API, f Earnings) {
	huma.Register(a, serve.Op(http.MethodGet, "/earnings", "What was earned, and what became of it"), func(ctx context.Context, in *struct {
		Since time.Time `query:"since" doc:"the first moment that counts" required:"true"`
		By    string    `query:"by" enum:"day,card,renter" default:"day"`
	},
	) (*serve.Body[api.Earnings], error) {
		out, err := f(ctx, in.Since, in.By)
		return &serve.Body[api.Earnings]{Body: out}, fail(err)
	})
}
