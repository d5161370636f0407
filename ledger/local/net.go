package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/wire"
)

// circles finds circles of debts and clears them, and shows those of before.
func (d Desk) circles(a huma.API) {
	serve.Get(a, "/ledger/net", "Circles of debts that were cleared, or were to be", func(ctx context.Context) (out statement.Clearings, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out.Clearings, err = r.ShowClearings(); return err })
		return out, fail(err)
	})
	serve.Post(a, "/ledger/net", "Find circles of debts and clear them", d.net)
	huma.Register(a, serve.Op(http.MethodPost, "/ledger/net/{id}/release", "Wait no longer for the members of a clearing"),
		func(ctx context.Context, in *struct {
			ID string `path:"id" doc:"id of a clearing, or an unambiguous start of it"`
		},
		) (*serve.Body[statement.Clearing], error) {
			id, err := d.clearing(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			var out statement.Clearing
			err = d.Books.Update(ctx, func(tx *books.Tx) error {
				c, err := tx.ReleaseClearing(id)
				out = books.ShowClearing(id, c)
				return err
			})
			return &serve.Body[statement.Clearing]{Body: out}, failNet(err)
		})
}

// net finds circles through this account and clears each, unless it is only to look.
func (d Desk) net(ctx context.Context, in statement.NetRequest) (statement.Circles, error) {
	unit := d.Unit
	if in.Unit != "" {
		unit = money.Unit(in.Unit)
	}
	if err := unit.Validate(); err != nil {
		return statement.Circles{}, serve.Fail(http.StatusUnprocessableEntity, err, "")
	}
	found, err := d.Net.Find(ctx, unit)
	if err != nil {
		return statement.Circles{}, failNet(err)
	}
	out := statement.Circles{Circles: []statement.Circle{}}
	for _, c := range found {
		one := statement.Circle{Unit: string(c.Unit), Amount: c.Amount.String(), State: "found"}
		for _, l := range c.Legs {
			one.Accounts = append(one.Accounts, l.Debtor.String())
		}
		if !in.DryRun {
			got, err := d.Net.Clear(ctx, c)
			switch {
			case errors.Is(err, books.ErrNotOwed), errors.Is(err, books.ErrClearings), errors.Is(err, books.ErrUnsure):
				one.State, one.Why = "skipped", err.Error()
			case err != nil:
				return out, failNet(err)
			default:
				one.State, one.ID, one.Booked, one.Why = d.outcome(ctx, got), got.ID.String(), got.Has, got.Why
			}
		}
		out.Circles = append(out.Circles, one)
	}
	return out, nil
}

// outcome is the state of a clearing after all that was said: one that was given up is refused by now.
func (d Desk) outcome(ctx context.Context, got settle.Cleared) string {
	state := got.State
	err := d.Books.View(ctx, func(r *books.Reader) error {
		v, err := r.Clearing(got.ID)
		if err == nil {
			state = v.State
		}
		return err
	})
	if err != nil {
		return got.State.String()
	}
	return state.String()
}

// clearing finds a clearing by its id or an unambiguous start of it.
func (d Desk) clearing(ctx context.Context, start string) (id wire.Hash, err error) {
	var found []wire.Hash
	err = d.Books.View(ctx, func(r *books.Reader) error {
		return r.Clearings(func(id wire.Hash, _ books.Netted) error {
			if start != "" && strings.HasPrefix(id.String(), strings.ToLower(start)) {
				found = append(found, id)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return id, fail(err)
	case len(found) == 0:
		return id, serve.Fail(http.StatusNotFound, fmt.Errorf("clearing %q: not in this ledger", start), "`ledger net list` shows the ids")
	case len(found) > 1:
		return id, serve.Fail(http.StatusConflict, fmt.Errorf("clearing %q: fits %d clearings", start, len(found)), "give more of its id")
	}
	return found[0], nil
}

// failNet makes an error of a clearing one for the person who asked.
func failNet(err error) error {
	switch {
	case errors.Is(err, settle.ErrNoConsent):
		return serve.Fail(http.StatusConflict, err, "netting tells those you owe, and those they owe, of your debts: it is off until you say so in the settings")
	case errors.Is(err, books.ErrExpired):
		return serve.Fail(http.StatusConflict, err, "wait until its deadline has passed: `ledger net list` shows it")
	case errors.Is(err, netting.ErrOver), errors.Is(err, netting.ErrBound):
		return serve.Fail(http.StatusConflict, err, "`ledger net list` shows how it ended")
	}
	return fail(err)
}
