package serve

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/p2p/local"
)

// Meeting is what a daemon tells of its peers and itself. Both daemons fulfil it.
type Meeting interface {
	Identity(ctx context.Context) (local.Identity, error)
	// Refresh reads anew what lies beside the keys, and tells peers which devices were revoked.
	Refresh(ctx context.Context, in struct{}) (local.Identity, error)
	Peers(ctx context.Context) (local.Peers, error)
	// Invite makes the string that another daemon joins with.
	Invite(ctx context.Context, req local.InviteRequest) (local.Invite, error)
	// Join connects to whoever made an invite and learns the offers that it knows.
	Join(ctx context.Context, invite local.Invite) (local.Joined, error)
	// Doctor checks what a daemon needs, and says what to do about what is missing.
	Doctor(ctx context.Context) (local.Checks, error)
}

// Body is an answer.
type Body[T any] struct{ Body T }

// Get registers a GET operation without parameters.
func Get[T any](api huma.API, path, summary string, f func(context.Context) (T, error)) {
	huma.Register(api, Op(http.MethodGet, path, summary), func(ctx context.Context, _ *struct{}) (*Body[T], error) {
		v, err := f(ctx)
		return &Body[T]{v}, err
	})
}

// Post registers a POST operation from one JSON body to one.
func Post[In, Out any](api huma.API, path, summary string, f func(context.Context, In) (Out, error)) {
	huma.Register(api, Op(http.MethodPost, path, summary), func(ctx context.Context, in *Body[In]) (*Body[Out], error) {
		v, err := f(ctx, in.Body)
		return &Body[Out]{v}, err
	})
}

// Op names an operation; its id is made of method and path.
func Op(method, path, summary string) huma.Operation {
	id := strings.NewReplacer("/", "-", "{", "", "}", "").Replace(strings.ToLower(method) + path)
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary,
		MaxBodyBytes: maxBody,
	}
}

// Meet registers the operations about peers and identity.
func Meet(api huma.API, m Meeting) {
	Get(api, "/identity", "Who this daemon is", m.Identity)
	Post(api, "/identity/refresh", "Tell peers which devices were revoked", m.Refresh)
	Get(api, "/peers", "Connected peers", m.Peers)
	Get(api, "/doctor", "Check what this daemon needs", m.Doctor)
	Post(api, "/invite", "Make an invite", m.Invite)
	Post(api, "/join", "Join by an invite", m.Join)
}
