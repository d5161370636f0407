package local

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// recovery puts backups and recovery from peers on the API.
func (d Desk) recovery(a huma.API) {
	backup := serve.Op(http.MethodGet, "/ledger/backup", "A backup of the ledger and the leases, as a signed file")
	backup.Responses = map[string]*huma.Response{"200": {
		Description: "OK", Content: map[string]*huma.MediaType{octets: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	huma.Register(a, backup, func(context.Context, *struct{}) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			hc.SetHeader("Content-Type", octets)
			w := bufio.NewWriter(hc.BodyWriter())
			_, err := d.Books.Backup(hc.Context(), w, time.Now())
			if err == nil {
				err = w.Flush()
			}
			if err != nil {
				panic(http.ErrAbortHandler) // the answer has begun: a cut connection is the only way to say that it is not whole
			}
		}}, nil
	})
	serve.Get(a, "/ledger/recover", "Who has not answered since the ledger was restored", func(ctx context.Context) (statement.Recovery, error) {
		return d.recovered(ctx, []statement.Recovered{})
	})
	serve.Post(a, "/ledger/recover", "Ask everybody who has not answered what this ledger lost", func(ctx context.Context, _ struct{}) (statement.Recovery, error) {
		if err := d.Books.ReadOnly(); err != nil {
			return statement.Recovery{}, serve.Fail(http.StatusConflict, err, "stop the daemon and run `ledger recover` again: it makes the store anew, then ask the peers")
		}
		asked, err := d.Recovery.AskAll(ctx)
		if err != nil {
			return statement.Recovery{}, fail(err)
		}
		return d.recovered(ctx, asked)
	})
	huma.Register(a, serve.Op(http.MethodPost, "/ledger/recover/{account}/forget", "Give up what one account may have: what is here counts"),
		func(ctx context.Context, in *struct {
			Account string `path:"account"`
		},
		) (*serve.Body[statement.Recovery], error) {
			account, err := identity.ParseAccount(in.Account)
			if err != nil {
				return nil, serve.Fail(http.StatusUnprocessableEntity, err, "`ledger recover` lists who has not answered")
			}
			if err := d.Books.Update(ctx, func(t *books.Tx) error { return t.Forget(account) }); err != nil {
				return nil, fail(err)
			}
			out, err := d.recovered(ctx, []statement.Recovered{})
			return &serve.Body[statement.Recovery]{Body: out}, err
		})
}

// takeOver puts on the API that this ledger takes over a lost device's leases.
func (d Desk) takeOver(a huma.API) {
	huma.Register(a, serve.Op(http.MethodPost, "/ledger/recover/{device}/take", "Take over the leases of a lost device of this account, and ask everybody for them"),
		func(ctx context.Context, in *struct {
			Device string `path:"device"`
		},
		) (*serve.Body[statement.Recovery], error) {
			device, err := identity.ParsePeer(in.Device)
			if err != nil {
				return nil, serve.Fail(http.StatusUnprocessableEntity, err, "`ledger recover` lists other devices whose leases stayed out")
			}
			if err := d.Recovery.Take(ctx, device); err != nil {
				if errors.Is(err, books.ErrOwnDevice) {
					return nil, serve.Fail(http.StatusConflict, err, "nothing is to be taken over: `ledger recover` asks for what is missing")
				}
				return nil, fail(err)
			}
			asked, err := d.Recovery.AskAll(ctx)
			if err != nil {
				return nil, fail(err)
			}
			out, err := d.recovered(ctx, asked)
			return &serve.Body[statement.Recovery]{Body: out}, err
		})
}

// recovered says how far the ledger has got back what it lost.
func (d Desk) recovered(ctx context.Context, asked []statement.Recovered) (statement.Recovery, error) {
	out := statement.Recovery{Epoch: d.Books.Epoch(), Asked: asked, Waiting: []statement.Waiting{}}
	err := d.Books.View(ctx, func(r *books.Reader) (err error) {
		if out.Restored, err = r.Restored(); err != nil {
			return err
		}
		others, err := r.Skipped()
		if err != nil {
			return err
		}
		for device, n := range others {
			out.Others = append(out.Others, statement.OtherDevice{Device: device.String(), Leases: n})
		}
		slices.SortFunc(out.Others, func(a, b statement.OtherDevice) int { return cmp.Compare(a.Device, b.Device) })
		list, err := r.ToAsk()
		if err != nil {
			return err
		}
		for _, p := range list {
			n, err := r.UnsureLanes(p.Account)
			if err != nil {
				return err
			}
			w := statement.Waiting{Account: p.Account.String(), Leases: n, Detail: p.Why}
			if p.Tried != 0 {
				w.Tried = time.UnixMilli(p.Tried).UTC()
			}
			out.Waiting = append(out.Waiting, w)
		}
		return nil
	})
	return out, fail(err)
}
