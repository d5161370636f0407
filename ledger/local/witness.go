package local

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// witnesses shows what this side and its counterparties know of each other's ledgers.
func (d Desk) witnesses(a huma.API) {
	serve.Get(a, "/ledger/witnesses", "What counterparties and I checked of each other's ledgers", func(ctx context.Context) (out statement.Witnesses, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out.Witnesses, err = r.ShowWitnesses(); return err })
		return out, fail(err)
	})
	fork := serve.Op(http.MethodGet, "/ledger/witnesses/{peer}/fork", "One file that shows anybody that a counterparty signed two histories")
	fork.Responses = map[string]*huma.Response{"200": {
		Description: "OK", Content: map[string]*huma.MediaType{plainText: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	huma.Register(a, fork, func(ctx context.Context, in *struct {
		Peer string `path:"peer" doc:"a counterparty's account or device, or an unambiguous start of it"`
	},
	) (*file, error) {
		device, err := d.forked(ctx, in.Peer)
		if err != nil {
			return nil, err
		}
		var raw []byte
		err = d.Books.View(ctx, func(r *books.Reader) error {
			f, err := r.ForkOf(device)
			if err != nil {
				return err
			}
			raw, err = f.Encode()
			return err
		})
		return &file{Type: plainText, Body: raw}, fail(err)
	})
}

const plainText = "text/plain; charset=utf-8"

// forked finds the device that signed two histories by a start of its name or its account's.
func (d Desk) forked(ctx context.Context, start string) (identity.PeerID, error) {
	var all []statement.Witness
	err := d.Books.View(ctx, func(r *books.Reader) (err error) { all, err = r.ShowWitnesses(); return err })
	if err != nil {
		return identity.PeerID{}, fail(err)
	}
	var found []string
	for _, w := range all {
		if w.Fork != nil && start != "" && (strings.HasPrefix(w.Device, start) || strings.HasPrefix(w.Account, start)) && !slices.Contains(found, w.Device) {
			found = append(found, w.Device)
		}
	}
	switch len(found) {
	case 0:
		return identity.PeerID{}, serve.Fail(http.StatusNotFound, fmt.Errorf("%q: no proof here that it signed two histories", start),
			"`ledger witness` lists whom there is a proof against")
	case 1:
		return identity.ParsePeer(found[0])
	}
	return identity.PeerID{}, serve.Fail(http.StatusConflict, fmt.Errorf("%q: fits %d devices", start, len(found)), "give the device, or more of it")
}
