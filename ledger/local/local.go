// Package local is the ledger's part of both daemons' local APIs: balances, statements, verification, export, credit and settlements.
// It shows what ledger/books knows and passes on what its owner decides; it computes nothing and knows no socket.
package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/export"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/wire"
)

// maxEntries of one answer; the rest is asked with from.
const maxEntries = 10_000

// Desk is what the operations work on.
type Desk struct {
	Books  *books.Books
	Settle *settle.Service
	Claims *settle.Claims
	// Billing drives the owner's program for payments; nil: nothing is told of it.
	Billing *settle.Billing
	Net     *settle.Net
	// Recovery asks peers for what a restored ledger lost.
	Recovery *settle.Recovery
	Unit     money.Unit  // the default unit
	Role     ledger.Role // this account's usual side of a channel
	// DisputeDays is how long a dispute stays open if nobody says otherwise; then what both signed stands. 0: [DefaultDisputeDays].
	DisputeDays int
	// Peer finds the device on which an account was last dealt with.
	Peer func(ctx context.Context, account identity.AccountID) (identity.PeerID, error)
	// Lanes finds the lanes whose ids start so.
	Lanes func(ctx context.Context, start string) ([]ledger.Lane, error)
	// Origin says where the credit limits come from; nil: this account lends nothing.
	Origin func() statement.CreditOrigin
	// Records gives the agent's own signed records of a lane (lease, release, end), for proofs; nil: there are none.
	Records func(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error)
	// Evidence puts the evidence of an interval, which the ledger can't read, into a line of a statement.
	Evidence func(raw []byte) (statement.Interval, error)
}

// Register puts the ledger's operations on an API.
func Register(a huma.API, d Desk) {
	serve.Get(a, "/ledger", "Balances by counterparty", func(ctx context.Context) (out statement.Ledger, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowLedger(); return err })
		return out, fail(err)
	})
	serve.Post(a, "/ledger/verify", "Check every signature, sum and root", func(ctx context.Context, _ struct{}) (statement.Verdict, error) {
		v, err := d.Books.Verify(ctx)
		return v, fail(err)
	})
	d.entries(a)
	d.recovery(a)
	d.takeOver(a)
	d.intervals(a)
	d.owed(a)
	d.disputes(a)
	d.credit(a)
	d.settlements(a)
	d.circles(a)
	d.witnesses(a)
}

func (d Desk) entries(a huma.API) {
	type list struct {
		Entries []statement.Entry `json:"entries"`
	}
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/entries", "Entries in order"), func(ctx context.Context, in *struct {
		From  uint64 `query:"from" doc:"index of the first"`
		Limit int    `query:"limit" default:"1000" minimum:"1" maximum:"10000"`
	},
	) (*serve.Body[list], error) {
		out := list{Entries: []statement.Entry{}}
		err := d.Books.View(ctx, func(r *books.Reader) (err error) {
			out.Entries, err = r.ShowEntries(in.From, min(in.Limit, maxEntries))
			return err
		})
		return &serve.Body[list]{Body: out}, fail(err)
	})
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/leases/{id}", "What a lease cost, and the proof of it"),
		func(ctx context.Context, in *struct {
			ID string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
		},
		) (*serve.Body[statement.Statement], error) {
			lane, err := d.lane(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			var out statement.Statement
			err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowLane(lane); return err })
			return &serve.Body[statement.Statement]{Body: out}, fail(err)
		})
	huma.Register(a, bytesOp("/ledger/leases/{id}/proof", "One file that shows a third person what a lease came to"),
		func(ctx context.Context, in *struct {
			ID string `path:"id" doc:"id of a lease, or an unambiguous start of it"`
		},
		) (*file, error) {
			lane, err := d.lane(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			raw, err := d.prove(ctx, lane)
			return &file{Type: octets, Body: raw}, fail(err)
		})
	huma.Register(a, serve.Op(http.MethodGet, "/ledger/export", "All postings as a file"), func(_ context.Context, in *struct {
		Format string `query:"format" enum:"csv,json,hledger,beancount" default:"csv"`
	},
	) (*huma.StreamResponse, error) {
		format := export.Format(in.Format)
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			hc.SetHeader("Content-Type", format.MediaType())
			if err := d.export(hc, format); err != nil {
				panic(http.ErrAbortHandler) // the answer has begun: a cut connection is the only way to say that it is not whole
			}
		}}, nil
	})
}

const octets = "application/octet-stream"

// bytesOp is an operation that gives a file.
func bytesOp(path, summary string) huma.Operation {
	op := serve.Op(http.MethodGet, path, summary)
	op.Responses = map[string]*huma.Response{"200": {
		Description: "OK", Content: map[string]*huma.MediaType{octets: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}},
	}}
	return op
}

// file is an answer of bytes.
type file struct {
	Type string `header:"Content-Type"`
	Body []byte
}

// prove makes the proof file of a lane.
func (d Desk) prove(ctx context.Context, lane ledger.Lane) (raw []byte, err error) {
	var attached []proof.Attachment
	if d.Records != nil {
		if attached, err = d.Records(ctx, lane); err != nil {
			return nil, err
		}
	}
	err = d.Books.View(ctx, func(r *books.Reader) error {
		f, err := r.Prove(lane, attached)
		if err != nil {
			return err
		}
		raw, err = f.Encode()
		return err
	})
	return raw, err
}

func (d Desk) export(hc huma.Context, format export.Format) error {
	w := bufio.NewWriter(hc.BodyWriter())
	err := d.Books.View(hc.Context(), func(r *books.Reader) error {
		var entries iter.Seq2[ledger.Entry, error] = func(yield func(ledger.Entry, error) bool) {
			err := r.Entries(0, func(_ uint64, e ledger.Entry) (bool, error) { return yield(e, nil), nil })
			if err != nil {
				yield(ledger.Entry{}, err)
			}
		}
		return export.Write(w, format, entries)
	})
	return errors.Join(err, w.Flush())
}

func (d Desk) lane(ctx context.Context, start string) (ledger.Lane, error) {
	lanes, err := d.Lanes(ctx, strings.ToLower(start))
	switch {
	case err != nil:
		return ledger.Lane{}, fail(err)
	case len(lanes) == 0:
		return ledger.Lane{}, serve.Fail(http.StatusNotFound, fmt.Errorf("lease %q: not in this ledger", start), d.listsLeases())
	case len(lanes) > 1:
		return ledger.Lane{}, serve.Fail(http.StatusConflict, fmt.Errorf("lease %q: fits %d leases", start, len(lanes)), "give more of its id")
	}
	return lanes[0], nil
}

// listsLeases says where a lease's id is found.
func (d Desk) listsLeases() string {
	if d.Role == ledger.AsRenter {
		return "give a job's id as `gpufair ps --all` lists it, or the start of it: the ledger does not know jobs by name"
	}
	return "give a lease's id as `gpufaird leases --all` lists it, or the start of it"
}

func (d Desk) credit(a huma.API) {
	serve.Get(a, "/credit", "Credit limits and what is used of them", func(ctx context.Context) (out statement.Credit, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowCredit(d.Unit); return err })
		return d.originated(out), fail(err)
	})
	huma.Register(a, serve.Op(http.MethodPut, "/credit/{account}", "Set one account's limit by hand"), func(ctx context.Context, in *struct {
		Account string `path:"account"`
		Body    statement.SetCredit
	},
	) (*serve.Body[statement.Credit], error) {
		account, err := identity.ParseAccount(in.Account)
		if err != nil {
			return nil, serve.Fail(http.StatusUnprocessableEntity, err, "")
		}
		var limit *money.Micro
		if in.Body.Limit != "" {
			m, err := money.Parse(in.Body.Limit)
			if err != nil {
				return nil, serve.Fail(http.StatusUnprocessableEntity, err, "")
			}
			limit = &m
		}
		var out statement.Credit
		err = d.Books.Update(ctx, func(tx *books.Tx) (err error) {
			if err := tx.SetLimit(account, d.Unit, limit); err != nil {
				return err
			}
			out, err = tx.ShowCredit(d.Unit)
			return err
		})
		return &serve.Body[statement.Credit]{Body: d.originated(out)}, fail(err)
	})
}

func (d Desk) settlements(a huma.API) {
	serve.Get(a, "/settlements", "Payments made outside", func(ctx context.Context) (out statement.Settlements, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out.Settlements, err = r.ShowSettlements(); return err })
		return out, fail(err)
	})
	serve.Post(a, "/settle", "Record a payment made outside, for both to sign", d.settle)
	type one struct {
		ID string `path:"id" doc:"id of a settlement, or an unambiguous start of it"`
	}
	decide := func(path, summary string, f func(context.Context, wire.Hash) error) {
		huma.Register(a, serve.Op(http.MethodPost, path, summary), func(ctx context.Context, in *one) (*serve.Body[statement.Settlement], error) {
			id, err := d.settlement(ctx, in.ID)
			if err != nil {
				return nil, err
			}
			said := f(ctx, id)
			if said != nil && !settle.Away(said) {
				return nil, fail(said)
			}
			out, err := d.show(ctx, id)
			out.Undelivered = said != nil // it stays as it is until the other side is back
			return &serve.Body[statement.Settlement]{Body: out}, err
		})
	}
	decide("/settlements/{id}/accept", "Sign the other side's proposal", func(ctx context.Context, id wire.Hash) error {
		if err := d.Settle.Accept(ctx, id); err != nil {
			return err
		}
		return d.bring(ctx, id)
	})
	decide("/settlements/{id}/refuse", "Refuse the other side's proposal, or drop one of this side that was never sent", d.refuse)
	decide("/settlements/{id}/send", "Ask the other side again", d.bring)
	huma.Register(a, bytesOp("/settlements/{id}/proof", "One file that shows a third person who signed for a payment"), func(ctx context.Context, in *one) (*file, error) {
		id, err := d.settlement(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		var raw []byte
		if err = d.Books.Update(ctx, func(t *books.Tx) error { return t.Sending(id) }); err != nil && !errors.Is(err, books.ErrReadOnly) {
			return nil, fail(err) // the file holds the signature
		}
		err = d.Books.View(ctx, func(r *books.Reader) error {
			p, err := r.ProvePayment(id)
			if err != nil {
				return err
			}
			raw, err = p.Encode()
			return err
		})
		return &file{Type: octets, Body: raw}, fail(err)
	})
}

// settlement finds a settlement by its id or an unambiguous start of it.
func (d Desk) settlement(ctx context.Context, start string) (id wire.Hash, err error) {
	if id, err := wire.ParseHash(strings.ToLower(start)); err == nil {
		return id, nil
	}
	var list []statement.Settlement
	err = d.Books.View(ctx, func(r *books.Reader) (err error) { list, err = r.ShowSettlements(); return err })
	if err != nil {
		return id, fail(err)
	}
	list = slices.DeleteFunc(list, func(s statement.Settlement) bool {
		return start == "" || !strings.HasPrefix(s.ID, strings.ToLower(start))
	})
	switch len(list) {
	case 0:
		return id, serve.Fail(http.StatusNotFound, fmt.Errorf("settlement %q: not in this ledger", start), "`settle list` shows the ids")
	case 1:
		id, err = wire.ParseHash(list[0].ID)
		return id, fail(err)
	}
	return id, serve.Fail(http.StatusConflict, fmt.Errorf("settlement %q: fits %d settlements", start, len(list)), "give more of its id")
}

// fail makes an error one for the person who asked.
func fail(err error) error {
	var (
		paid *ledger.CreditError
		said *p2p.Error
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(huma.StatusError)):
		return err // it says already what to do
	case errors.Is(err, books.ErrNoDealings):
		return serve.Fail(http.StatusNotFound, err, "`ledger` lists the accounts and units that were dealt with: name one of them, and its --unit")
	case errors.Is(err, books.ErrRefused):
		return serve.Fail(http.StatusConflict, err, "if the payment was made, `settle` records it anew")
	case errors.Is(err, books.ErrNoSettlement), errors.Is(err, books.ErrNoLane), errors.Is(err, books.ErrUnknownDevice):
		return serve.Fail(http.StatusNotFound, err, "")
	case errors.Is(err, identity.ErrRevoked):
		return serve.Fail(http.StatusConflict, err, "what that device signed counts no more: its owner does it again on another device of the account, or links this one anew (`identity link`)")
	case errors.Is(err, identity.ErrPower):
		return serve.Fail(http.StatusConflict, err, "settle on a device of the account that may pay, or link this one again with the power it needs")
	case p2p.KindOf(err) == p2p.KindForbidden:
		return serve.Fail(http.StatusConflict, err, "the other side takes nothing from this device: if its account has revoked it, use another, or link this one anew (`identity link`)")
	case errors.Is(err, books.ErrDisputed):
		return serve.Fail(http.StatusConflict, err, "`ledger dispute` lists the disputes")
	case errors.Is(err, books.ErrRole):
		return serve.Fail(http.StatusConflict, err, "the other side must say it; `settle list` shows who has signed, and `settle send` asks again")
	case errors.Is(err, books.ErrPaid):
		return serve.Fail(http.StatusConflict, err, "give this payment its own reference")
	case errors.Is(err, books.ErrUnsure):
		return serve.Fail(http.StatusConflict, err, "`ledger recover` asks it; `ledger recover --forget ACCOUNT` gives up what it may have")
	case errors.Is(err, books.ErrBehind):
		return serve.Fail(http.StatusConflict, err, "stop the daemon and run `ledger recover`")
	case errors.Is(err, books.ErrReadOnly):
		return serve.Fail(http.StatusConflict, err, "run `ledger verify`: it says which entry is wrong")
	case errors.Is(err, books.ErrDiffer):
		return serve.Fail(http.StatusConflict, err, "for a payment: `settle refuse` it, and have the other side record it anew, which brings its newest vouchers along")
	case away(err):
		return serve.Fail(http.StatusBadGateway, err, "wait until the other side is back: `peers` shows who is connected")
	case errors.As(err, &said) && said.Kind != p2p.KindInternal:
		return serve.Fail(http.StatusConflict, err, "the other side did not take it: `settle list` shows how it stands, and `settle send` asks again")
	case errors.As(err, &paid), errors.Is(err, books.ErrConflict):
		return serve.Fail(http.StatusConflict, err, "")
	}
	return serve.Fail(http.StatusInternalServerError, err, "the daemon's log says more")
}
