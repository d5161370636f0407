package settle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxTrailPages of one peer at one time: some thousand leased hours. The rest comes the next time.
const maxTrailPages = 1 << 12

// trails asks for what lies between the first and the last voucher of the lanes that a peer gave back, and for the evidence. No money hangs on
// it, so what fails is noted and given up; a peer that goes away is asked on when it is back.
func (r *Recovery) trails(ctx context.Context, peer identity.PeerID, f Found) {
	for range maxTrailPages {
		var lane ledger.Lane
		var place []byte
		var more bool
		err := r.c.Books.View(ctx, func(b *books.Reader) (err error) {
			lane, place, more, err = b.Wanted(f.Account)
			return err
		})
		if err != nil || !more {
			r.noted(err)
			return
		}
		got, err := r.page(ctx, peer, &f, RecoverAsk{Delegation: r.c.Books.Device().Delegation(), Lane: &lane, Place: place})
		if err != nil && !errors.Is(err, ErrNotOurs) {
			r.noted(err)
			return
		}
		if err == nil && got.Trail == nil || len(got.Place) > 0 && bytes.Compare(got.Place, place) <= 0 {
			err = fmt.Errorf("%w: no trail", ErrNotOurs)
		}
		if err == nil {
			err = r.c.Books.Update(ctx, func(t *books.Tx) error { return t.AdoptTrail(lane, *got.Trail, got.Place) })
		}
		if err == nil {
			continue
		}
		r.c.Log.Warn("the vouchers between and the evidence of a lease did not come back", "lane", lane.Short(), "peer", peer.Short(), "err", err)
		if err := r.c.Books.Update(ctx, func(t *books.Tx) error { return t.ForgetTrail(lane) }); err != nil {
			return
		}
	}
}

func (r *Recovery) noted(err error) {
	if err != nil {
		r.c.Log.Debug("trails of leases go on later", "err", err)
	}
}

// follow asks those again who have not said how a lease ended that came back, or of whose leases the trail is not here, for a month after the
// restore.
func (r *Recovery) follow(ctx context.Context, restored time.Time, only identity.PeerID) {
	if time.Since(restored) > askStrangers {
		return
	}
	var left map[identity.AccountID]bool
	err := r.c.Books.View(ctx, func(b *books.Reader) (err error) { left, err = b.Unfinished(); return err })
	for account := range left {
		peer, perr := r.c.Peer(ctx, account)
		if perr != nil || !only.IsZero() && peer != only || ctx.Err() != nil {
			continue
		}
		if _, aerr := r.Ask(ctx, peer); aerr != nil {
			err = errors.Join(err, aerr)
		}
	}
	if err != nil {
		r.c.Log.Debug("what came back is not finished", "err", err)
	}
}
