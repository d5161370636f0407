package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/p2p/wire"
)

// settle proposes a settlement and, if the other side is there, gets its signature.
func (d Desk) settle(ctx context.Context, in statement.SettleRequest) (statement.Settlement, error) {
	p, peer, err := d.payment(ctx, in)
	if err != nil {
		return statement.Settlement{}, err
	}
	if !in.Force {
		if err := d.alone(ctx, p); err != nil {
			return statement.Settlement{}, err
		}
	}
	id, _, err := d.Settle.Settle(ctx, peer, p)
	if err != nil && (id.IsZero() || !settle.Away(err)) {
		return statement.Settlement{}, fail(err)
	}
	out, shown := d.show(ctx, id) // proposed: the other side signs when it is back
	if shown == nil && out.State == "refused" {
		return out, serve.Fail(http.StatusConflict, fmt.Errorf("the other side refused it: %s", out.Why), "`settle list` shows it; nothing was booked")
	}
	out.Undelivered = err != nil
	return out, shown
}

// away says that the other side could not be asked, which costs nothing but time.
func away(err error) bool {
	return errors.Is(err, p2p.ErrUnreachable) || errors.Is(err, p2p.ErrUnsupported) || errors.Is(err, context.DeadlineExceeded)
}

// payment reads a request: whom, in which channel, how much.
func (d Desk) payment(ctx context.Context, in statement.SettleRequest) (books.Payment, identity.PeerID, error) {
	bad := func(err error) (books.Payment, identity.PeerID, error) {
		return books.Payment{}, identity.PeerID{}, serve.Fail(http.StatusUnprocessableEntity, err, "")
	}
	account, err := identity.ParseAccount(in.Account)
	if err != nil {
		return bad(err)
	}
	unit := d.unit(in.Unit)
	role, err := d.side(ctx, in.PaidBy, account, unit)
	if err != nil {
		return bad(err)
	}
	c := ledger.Channel{Renter: d.Books.Self(), Provider: account, Unit: unit}
	if role == ledger.AsProvider {
		c.Renter, c.Provider = account, d.Books.Self()
	}
	if err := c.Validate(); err != nil {
		return bad(err)
	}
	amount, err := d.amount(ctx, in, c)
	if err != nil {
		return bad(err)
	}
	method := in.Method
	if method == "" {
		method = "manual"
	}
	peer, err := d.Peer(ctx, account)
	if err != nil {
		return bad(err)
	}
	return books.Payment{Channel: c, Amount: amount, Method: method, Reference: in.Reference}, peer, nil
}

// side is this account's side of the channel in which a payment was made: as the request says who paid, or the usual one, unless all dealings
// with the account, or all that is owed, are on the other: a provider may have taken over what a lost PC of its account had rented.
func (d Desk) side(ctx context.Context, paidBy string, account identity.AccountID, unit money.Unit) (role ledger.Role, err error) {
	switch paidBy {
	case "me":
		return ledger.AsRenter, nil
	case "them":
		return ledger.AsProvider, nil
	case "":
	default:
		return 0, fmt.Errorf("paid by %q: want me or them", paidBy)
	}
	other := ledger.AsRenter
	if d.Role == ledger.AsRenter {
		other = ledger.AsProvider
	}
	var usual, there books.Account
	err = d.Books.View(ctx, func(r *books.Reader) (err error) {
		if usual, err = r.Account(d.Role, unit, account); err == nil {
			there, err = r.Account(other, unit, account)
		}
		return err
	})
	never := usual.Lanes == 0 && usual.Owed == 0 && usual.Settled == 0
	if there.Lanes > 0 && (never || usual.Owed <= 0 && there.Owed > 0) {
		return other, err
	}
	return d.Role, err
}

// amount reads how much, or takes what is owed on the channel less what this account's proposals there, that the other side did not
// answer yet, come to: those pay for it already. A proposal with the request's own reference is the same payment, not another.
func (d Desk) amount(ctx context.Context, in statement.SettleRequest, c ledger.Channel) (money.Micro, error) {
	if in.Amount != "" {
		m, err := money.Parse(in.Amount)
		if err == nil && m == 0 {
			err = errors.New("an amount of 0 settles nothing")
		}
		return m, err
	}
	var owed int64
	var proposed money.Micro
	err := d.Books.View(ctx, func(r *books.Reader) error {
		role := c.RoleOf(d.Books.Self())
		a, err := r.Account(role, c.Unit, c.Peer(d.Books.Self()))
		if err != nil {
			return err
		}
		aside, err := r.Aside(role, c.Unit, c.Peer(d.Books.Self()))
		if err != nil {
			return err
		}
		owed = a.Owed - int64(aside) // what is being cleared in a circle is not proposed for payment besides
		return r.Settlements(func(_ wire.Hash, s voucher.Settlement, v books.Settled) error {
			if v.State != books.Proposed || s.Channel != c || in.Reference != "" && s.Reference == in.Reference {
				return nil
			}
			proposed, err = money.Add(proposed, s.Amount)
			return err
		})
	})
	left := ledger.Positive(owed)
	switch {
	case err != nil:
		return 0, err
	case left == 0:
		return 0, fmt.Errorf("nothing is owed in %s: give an amount to prepay", c.Unit)
	case left <= proposed:
		return 0, fmt.Errorf("a proposal of %s %s waits for %s's signature: `settle list`, or give an --amount",
			proposed, c.Unit, c.Peer(d.Books.Self()).Short())
	}
	return left - proposed, nil
}

// alone refuses a payment of what the owner's program may be paying at this moment. One under the invoice's own reference is the same payment.
func (d Desk) alone(ctx context.Context, p books.Payment) error {
	if d.Role != ledger.AsRenter {
		return nil
	}
	peer, unit := p.Channel.Provider, p.Channel.Unit
	return d.Books.View(ctx, func(r *books.Reader) error {
		b, ok, err := r.Bill(d.Role, unit, peer)
		if err != nil || !ok || b.State != books.BillPaying || b.Method == p.Method && b.Reference == p.Reference {
			return fail(err)
		}
		a, err := r.Account(d.Role, unit, peer)
		if err != nil {
			return fail(err)
		}
		if owed := ledger.Positive(a.Owed); p.Amount <= owed-min(owed, b.Amount) {
			return nil
		}
		return serve.Fail(http.StatusConflict, fmt.Errorf("settlement.command may be paying the provider's invoice %q of %v %s at this moment: with %v more, more is paid than is owed",
			b.Reference, b.Amount, unit, p.Amount), "wait: `ledger owed` shows how the invoice stands; --force records this payment besides")
	})
}

// bring sends a settlement to the other side.
func (d Desk) bring(ctx context.Context, id wire.Hash) error {
	var account identity.AccountID
	err := d.Books.View(ctx, func(r *books.Reader) error {
		s, err := r.Settlement(id)
		if err != nil {
			return err
		}
		proposal, err := voucher.OpenSettlement(s.Proposal)
		account = proposal.Channel.Peer(d.Books.Self())
		return err
	})
	if err != nil {
		return err
	}
	peer, err := d.Peer(ctx, account)
	if err != nil {
		return fmt.Errorf("%w: %w", p2p.ErrUnreachable, err)
	}
	_, err = d.Settle.Send(ctx, peer, id)
	return err
}

// refuse says no to a settlement, and says so to the other side.
func (d Desk) refuse(ctx context.Context, id wire.Hash) error {
	err := d.Settle.Refuse(ctx, id, "")
	if errors.Is(err, books.ErrGiven) {
		return serve.Fail(http.StatusConflict, err, fmt.Sprintf("the other side can refuse it: `gpufair settle refuse %s` there (`gpufaird` on an owner's PC); until then it may sign it, and it counts", id.String()[:12]))
	}
	if err != nil {
		return err
	}
	return d.bring(ctx, id)
}

// show is a settlement as it stands.
func (d Desk) show(ctx context.Context, id wire.Hash) (out statement.Settlement, err error) {
	err = d.Books.View(ctx, func(r *books.Reader) error {
		s, err := r.Settlement(id)
		if err != nil {
			return err
		}
		proposal, err := voucher.OpenSettlement(s.Proposal)
		out = books.ShowSettlement(d.Books.Self(), proposal, s, time.Now())
		return err
	})
	return out, fail(err)
}
