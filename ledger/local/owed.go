package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// owed puts what is owed, and since when, on the API.
func (d Desk) owed(a huma.API) {
	serve.Get(a, "/ledger/owed", "What is owed, by counterparty and age", func(ctx context.Context) (out statement.Owed, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowOwed(); return err })
		d.troubles(&out)
		return out, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/accounts/{account}/unpaid", "The leases of an account that are unpaid"),
		func(ctx context.Context, in *struct {
			Account string `path:"account"`
		},
		) (*serve.Body[statement.Claim], error) {
			account, err := identity.ParseAccount(in.Account)
			if err != nil {
				return nil, serve.Fail(http.StatusUnprocessableEntity, err, "give an account as `ledger owed` prints it")
			}
			var out statement.Claim
			err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowClaim(account); return err })
			return &serve.Body[statement.Claim]{Body: out}, fail(err)
		})
	serve.Post(a, "/ledger/write-off", "Give up hope for what an account owes on leases that have ended", d.writeOff)
}

// troubles adds what the owner's program can't do.
func (d Desk) troubles(out *statement.Owed) {
	if d.Billing == nil {
		return
	}
	for _, t := range d.Billing.Troubles() {
		out.Troubles = append(out.Troubles, statement.Trouble{Account: t.Peer.String(), Unit: string(t.Unit), What: t.What, Error: t.Err, Tries: t.Tries, Next: t.Next})
		for i := range out.Owed {
			if o := &out.Owed[i]; o.Account == t.Peer.String() && o.Unit == string(t.Unit) && o.Role == d.Role.String() && o.Trouble == "" {
				o.Trouble = t.Text()
			}
		}
	}
}

func (d Desk) writeOff(ctx context.Context, in statement.WriteOffRequest) (statement.WriteOff, error) {
	account, err := identity.ParseAccount(in.Account)
	if err != nil {
		return statement.WriteOff{}, serve.Fail(http.StatusUnprocessableEntity, err, "give an account as `ledger owed` prints it")
	}
	unit := d.unit(in.Unit)
	if err := unit.Validate(); err != nil {
		return statement.WriteOff{}, serve.Fail(http.StatusUnprocessableEntity, err, "")
	}
	if in.Reason == "" || len(in.Reason) > ledger.MaxNote {
		return statement.WriteOff{}, serve.Fail(http.StatusUnprocessableEntity, fmt.Errorf("a reason of %d bytes: want 1 to %d", len(in.Reason), ledger.MaxNote),
			"say why: it stands in the ledger's entry, and nobody else reads it")
	}
	var amount money.Micro
	var early error
	err = d.Books.Update(ctx, func(t *books.Tx) (err error) {
		if !in.Force {
			if early = allDue(t.Reader, account, unit, time.Now()); early != nil {
				return early
			}
		}
		amount, err = t.WriteOff(account, unit, in.Reason)
		return err
	})
	if early != nil {
		return statement.WriteOff{}, early
	}
	if errors.Is(err, books.ErrNothingOwed) {
		return statement.WriteOff{}, serve.Fail(http.StatusConflict, err, "`ledger owed` shows what is owed; leases that run can't be written off")
	}
	return statement.WriteOff{Account: account.String(), Unit: string(unit), Amount: amount.String(), Reason: in.Reason}, fail(err)
}

// allDue refuses to give up a debt that its renter may still pay in time: a write-off takes its credit.
func allDue(r *books.Reader, renter identity.AccountID, u money.Unit, now time.Time) error {
	debts, err := r.Unpaid(ledger.AsProvider, u, renter)
	if err != nil {
		return fail(err)
	}
	for _, d := range debts {
		if due := time.UnixMilli(d.Due); d.Since != 0 && d.Amount > 0 && due.After(now) {
			return serve.Fail(http.StatusConflict, fmt.Errorf("write off what account %s owes: lease %s is due at %s only", renter.Short(), d.Lane.Short(),
				due.Local().Format(time.DateTime)), "wait until then; --force writes all of it off now, and the account gets no credit any more")
		}
	}
	return nil
}

// unit is the unit that a request names, or the default one.
func (d Desk) unit(name string) money.Unit {
	if name == "" {
		return d.Unit
	}
	return money.Unit(name)
}

// originated adds where the limits come from.
func (d Desk) originated(c statement.Credit) statement.Credit {
	if d.Origin != nil {
		c.Origin = d.Origin()
	}
	return c
}
