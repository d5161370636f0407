package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxClaim bounds a message of the conversation about claims, in bytes.
const maxClaim = voucher.MaxVoucher + voucher.MaxReceipt + voucher.MaxDispute + 2*voucher.MaxCreditNote + 6<<10

// ClaimLimits is what that conversation may cost.
func ClaimLimits() p2p.Limits { return p2p.Limits{Streams: 16, PeerStreams: 2, Idle: 30 * time.Second} }

// ClaimsConfig is what the conversation about claims needs.
type ClaimsConfig struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Books    *books.Books
	// Revoked is an error if the account of a delegation let its device go: none of its invoices is taken. Nil: only the books judge.
	Revoked func(d identity.Delegation) error
	Log     *slog.Logger
}

// Claims is the conversation about what is owed: reminders of payments that are due, invoices, and disputes. Safe for concurrent use.
type Claims struct{ c ClaimsConfig }

// NewClaims makes the conversation; the caller serves its Handler.
func NewClaims(c ClaimsConfig) (*Claims, error) {
	if c.Network == nil || c.Books == nil || c.Protocol == "" || c.Log == nil {
		return nil, errors.New("claims config: network, protocol, books and log are needed")
	}
	return &Claims{c: c}, nil
}

// Claim is the request: one of its parts is there.
type Claim struct {
	Channel    ledger.Channel  `cbor:"1,keyasint"` // over all epochs
	Delegation []byte          `cbor:"2,keyasint"` // of the device that asks
	Reminder   *books.Reminder `cbor:"3,keyasint,omitempty"`
	Dispute    *DisputeView    `cbor:"4,keyasint,omitempty"` // what the asker has of one
	Bill       *BillWord       `cbor:"5,keyasint,omitempty"`
}

// BillWord is a provider's invoice, for the renter's program or its owner to pay.
type BillWord struct {
	Amount    money.Micro `cbor:"1,keyasint"`
	Due       int64       `cbor:"2,keyasint"` // Unix milliseconds
	Method    string      `cbor:"3,keyasint"`
	Reference string      `cbor:"4,keyasint"` // of the settlement that records the payment
	Pay       string      `cbor:"5,keyasint"` // what the payer needs, as the owner's program gave it
}

// Reply is the answer to a [Claim].
type Reply struct {
	Delegation []byte       `cbor:"1,keyasint"`           // of the device that answers
	Dispute    *DisputeView `cbor:"2,keyasint,omitempty"` // what the answerer has of the one that was asked about
}

// ask sends a claim and checks for whom the peer answers.
func (c *Claims) ask(ctx context.Context, peer identity.PeerID, m Claim) (Reply, error) {
	m.Delegation = c.c.Books.Device().Delegation()
	var got Reply
	if err := p2p.Call(ctx, c.c.Network, peer, c.c.Protocol, m, &got, maxClaim); err != nil {
		return got, fmt.Errorf("claims with %s: %w", peer.Short(), err)
	}
	if err := answersFor(peer, m.Channel.Peer(c.c.Books.Self()), got.Delegation); err != nil {
		return got, fmt.Errorf("claims with %s: %w", peer.Short(), err)
	}
	return got, nil
}

// Handler answers other peers.
func (c *Claims) Handler() p2p.Handler {
	return p2p.Answer(maxClaim, func(ctx context.Context, from identity.PeerID, m Claim) (Reply, error) {
		if err := onSide(c.c.Books.Self(), from, m.Channel, m.Delegation); err != nil {
			return Reply{}, err
		}
		if m.Dispute == nil && m.Reminder == nil && m.Bill == nil { // else a stranger's delegation would be kept for nothing
			return Reply{}, p2p.Errorf(p2p.KindBadRequest, "claims nothing")
		}
		if m.Bill != nil {
			if err := c.mayBill(m.Delegation); err != nil {
				return Reply{}, err
			}
		}
		out := Reply{Delegation: c.c.Books.Device().Delegation()}
		err := c.c.Books.Update(ctx, func(t *books.Tx) error {
			_, _, err := t.KeepDelegation(m.Delegation)
			if err == nil {
				err = t.HeardFrom(m.Delegation)
			}
			if err != nil {
				return err
			}
			return c.take(t, m, &out)
		})
		return out, toPeer(err)
	})
}

// take does what a claim asks.
func (c *Claims) take(t *books.Tx, m Claim, out *Reply) error {
	if m.Dispute != nil {
		return c.takeDispute(t, m, out)
	}
	if m.Channel.RoleOf(c.c.Books.Self()) != ledger.AsRenter {
		return books.ErrRole
	}
	if w := m.Bill; w != nil {
		return t.TakeBill(m.Channel.Unit, m.Channel.Provider, books.Bill{Amount: w.Amount, Due: w.Due, Method: w.Method, Reference: w.Reference, Pay: w.Pay})
	}
	return t.TakeReminder(m.Channel.Provider, m.Channel.Unit, *m.Reminder)
}

// mayBill checks that the provider lets a device say where money goes, and has not let it go since.
func (c *Claims) mayBill(delegation []byte) error {
	d, err := identity.OpenDelegation(delegation)
	if err == nil && d.Powers&identity.PowerProvide == 0 {
		err = fmt.Errorf("%w: device %s may not ask for payments", identity.ErrPower, d.Device.Short())
	}
	if err == nil && c.c.Revoked != nil {
		err = c.c.Revoked(d)
	}
	if err != nil {
		return p2p.Errorf(p2p.KindForbidden, "%v", err)
	}
	return nil
}

// Times of what goes out by itself.
const (
	claimsEvery = 10 * time.Minute // how often the ledger is looked through for what is to be said
	claimsPause = time.Minute      // at least, between two looks: peers come and go
	claimWithin = 20 * time.Second // for one message
)

// PeerOf finds the device on which an account was last dealt with.
type PeerOf func(context.Context, identity.AccountID) (identity.PeerID, error)

// Run says what is to be said to those who are connected, until ctx ends. It reminds renters of payments that are due, at the due time and
// then weekly, and brings disputes and credit notes to the other side. What was heard is kept before the next message is sent.
func (c *Claims) Run(ctx context.Context, peerOf PeerOf) error {
	came := make(chan struct{}, 1)
	c.c.Network.Watch(ctx, func(_ identity.PeerID, up bool) {
		if up {
			select {
			case came <- struct{}{}:
			default:
			}
		}
	})
	tick := time.NewTicker(claimsEvery)
	defer tick.Stop()
	for {
		if err := c.look(ctx, peerOf); err != nil && ctx.Err() == nil {
			c.c.Log.Warn("ledger not looked through for what is due", "err", err)
		}
		select {
		case <-time.After(claimsPause):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-tick.C:
		case <-came:
		case <-ctx.Done():
			return nil
		}
	}
}

// look sends what is to be sent now to those who are connected.
func (c *Claims) look(ctx context.Context, peerOf PeerOf) error {
	var duns []books.Dun
	untold := map[ledger.Lane]identity.AccountID{}
	err := c.c.Books.View(ctx, func(r *books.Reader) (err error) {
		if duns, err = r.Duns(); err != nil {
			return err
		}
		return r.EachDispute(func(d books.Dispute) error {
			l, err := r.Lane(d.Lane)
			if !d.Told {
				untold[d.Lane] = l.Channel.Peer(c.c.Books.Self())
			}
			return err
		})
	})
	if err != nil || len(duns)+len(untold) == 0 {
		return err
	}
	connected := map[identity.PeerID]bool{}
	for _, p := range c.c.Network.Peers() {
		connected[p.Peer] = true
	}
	send := func(account identity.AccountID, what string, f func(context.Context, identity.PeerID) error) {
		peer, err := peerOf(ctx, account)
		if err != nil || !connected[peer] {
			return
		}
		within, cancel := context.WithTimeout(ctx, claimWithin)
		defer cancel()
		if err := f(within, peer); err != nil {
			c.c.Log.Info(what+" not taken", "account", account.Short(), "err", err)
		}
	}
	for _, d := range duns {
		send(d.Renter, "reminder", func(ctx context.Context, peer identity.PeerID) error { return c.dun(ctx, peer, d) })
	}
	for lane, account := range untold {
		send(account, "dispute", func(ctx context.Context, peer identity.PeerID) error { return c.Dispute(ctx, peer, lane) })
	}
	return nil
}

// dun sends one reminder and keeps that it was heard.
func (c *Claims) dun(ctx context.Context, peer identity.PeerID, d books.Dun) error {
	channel := ledger.Channel{Renter: d.Renter, Provider: c.c.Books.Self(), Unit: d.Unit}
	if _, err := c.ask(ctx, peer, Claim{Channel: channel, Reminder: &d.Reminder}); err != nil {
		return err
	}
	return c.c.Books.Update(ctx, func(t *books.Tx) error { return t.Reminded(d) })
}
