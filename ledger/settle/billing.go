package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/rail"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Rail runs the owner's program that makes invoices, checks payments and pays. It may be asked the same again at any time.
type Rail interface {
	Do(ctx context.Context, r rail.Request) (rail.Answer, error)
}

// When the program is asked. It knows its payments only when it is asked about them.
const (
	billEvery   = time.Minute      // the ledger is looked through
	askLeast    = time.Minute      // between two questions about one payment: a tenth of its age
	askMost     = time.Hour        //
	sendEvery   = 10 * time.Minute // a proposal that was not answered; and whenever the other side connects
	meetPause   = time.Second      // several peers connect at once
	askAgain    = time.Hour        // at least, between an invoice that came to nothing and the next
	failedFirst = time.Minute      // after a failure; twice as long after each further one, up to askMost
)

// BillingConfig is what billing needs.
type BillingConfig struct {
	Network p2p.Network
	Books   *books.Books
	Settle  *Service
	Claims  *Claims
	Role    ledger.Role   // this account's side of the payments: as provider it makes invoices and checks them, as renter it pays
	Rail    Rail          // nil: there is none, and people do what it would
	Methods []string      // how the owner may be paid
	After   time.Duration // after the end of the oldest unpaid lease, an invoice is made
	Log     *slog.Logger
}

// Billing drives the owner's program, and asks again about settlements that the other side has not answered. What the program may have
// done outside is written down before, and what it says becomes a settlement in the transaction that notes it. Safe for concurrent use.
type Billing struct {
	c    BillingConfig
	wake chan struct{} // capacity 1

	mu    sync.Mutex
	tries map[string]*Trouble      // guarded by mu
	met   map[identity.PeerID]bool // guarded by mu; connected since proposals were last sent for that
}

// Trouble is a step towards a payment that does not go on by itself, or waits for its time.
type Trouble struct {
	Peer  identity.AccountID
	Unit  money.Unit
	What  string    // "make an invoice"
	Err   string    // of the last try; empty: there is none, it only waits
	Tries uint32    // in a row that failed
	Next  time.Time // when it is tried again

	pause time.Duration
	seen  bool
}

// Text says it in a line, for people.
func (t Trouble) Text() string {
	return fmt.Sprintf("settlement.command can't %s of %s: %s; tried %d times, again at %s", t.What, t.Peer, t.Err, t.Tries, t.Next.Local().Format(time.TimeOnly))
}

// NewBilling makes a billing; the caller runs Run.
func NewBilling(c BillingConfig) (*Billing, error) {
	if c.Network == nil || c.Books == nil || c.Settle == nil || c.Claims == nil || c.Role == 0 || c.Log == nil {
		return nil, errors.New("billing config: network, books, settlements, claims, role and log are needed")
	}
	return &Billing{c: c, wake: make(chan struct{}, 1), tries: map[string]*Trouble{}, met: map[identity.PeerID]bool{}}, nil
}

// Troubles gives what does not go on, for people, by account.
func (b *Billing) Troubles() (out []Trouble) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tries {
		if t.Err != "" {
			out = append(out, *t)
		}
	}
	slices.SortFunc(out, func(a, b Trouble) int {
		return strings.Compare(a.Peer.String()+string(a.Unit)+a.What, b.Peer.String()+string(b.Unit)+b.What)
	})
	return out
}

// Run does what is to be done until ctx ends.
func (b *Billing) Run(ctx context.Context, peerOf PeerOf) error {
	b.c.Network.Watch(ctx, b.meets)
	tick := time.NewTicker(billEvery)
	defer tick.Stop()
	for look := b.look; ; {
		if err := look(ctx, peerOf); err != nil && ctx.Err() == nil {
			b.c.Log.Warn("ledger not looked through for payments", "err", err)
		}
		select {
		case <-tick.C:
			look = b.look
		case <-b.wake:
			look = b.greet
		case <-ctx.Done():
			return nil
		}
	}
}

// meets notes that a peer connected. It returns at once.
func (b *Billing) meets(peer identity.PeerID, up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !up {
		delete(b.met, peer) // there are never more than connected peers
		return
	}
	b.met[peer] = true
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// greet sends this account's proposals to those who have connected.
func (b *Billing) greet(ctx context.Context, peerOf PeerOf) error {
	select {
	case <-time.After(meetPause):
	case <-ctx.Done():
		return nil
	}
	b.mu.Lock()
	met := b.met
	b.met = map[identity.PeerID]bool{}
	b.mu.Unlock()
	at := b.reach(peerOf)
	var steps []errand
	err := b.c.Books.View(ctx, func(r *books.Reader) error { return b.unanswered(r, &steps, at) })
	for _, s := range steps {
		if peer, ok := at(ctx, s.peer); ok && met[peer] && ctx.Err() == nil {
			b.try(ctx, s, true)
		}
	}
	return err
}

// reach finds the device of an account, if it is connected.
type reach func(context.Context, identity.AccountID) (identity.PeerID, bool)

// errand is one thing to be done about payments with an account. It gives the time until it is to be done again: 0 if it is done.
type errand struct {
	peer identity.AccountID
	unit money.Unit
	what string
	id   string
	do   func(context.Context) (time.Duration, error)
}

// reach finds those who are connected now.
func (b *Billing) reach(peerOf PeerOf) reach {
	connected := map[identity.PeerID]bool{}
	for _, p := range b.c.Network.Peers() {
		connected[p.Peer] = true
	}
	return func(ctx context.Context, account identity.AccountID) (identity.PeerID, bool) {
		peer, err := peerOf(ctx, account)
		return peer, err == nil && connected[peer]
	}
}

// look does all that is to be done now.
func (b *Billing) look(ctx context.Context, peerOf PeerOf) error {
	at := b.reach(peerOf)
	if b.c.Rail != nil && b.c.Role == ledger.AsProvider {
		if err := b.c.Books.IndexReferences(ctx); err != nil {
			return err
		}
	}
	var steps []errand
	err := b.c.Books.View(ctx, func(r *books.Reader) (err error) {
		if b.c.Rail != nil && b.c.Role == ledger.AsProvider {
			if err := b.claimed(r, &steps, at); err != nil {
				return err
			}
		}
		err = r.Standings(b.c.Role, func(u money.Unit, peer identity.AccountID, a books.Account, bill books.Bill) error {
			if b.c.Role == ledger.AsProvider {
				return b.billing(r, &steps, at, u, peer, a, bill)
			}
			return b.paying(r, &steps, at, u, peer, bill)
		})
		if err != nil {
			return err
		}
		return b.unanswered(r, &steps, at)
	})
	for _, s := range steps {
		if ctx.Err() != nil {
			return nil
		}
		b.try(ctx, s, false)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, t := range b.tries {
		if !t.seen && err == nil {
			delete(b.tries, id)
		}
		t.seen = false
	}
	return err
}

// try does a step if its time has come, or now, and notes how it went.
func (b *Billing) try(ctx context.Context, s errand, now bool) {
	b.mu.Lock()
	id := s.what + " " + s.id
	t := b.tries[id]
	if t == nil {
		t = &Trouble{Peer: s.peer, Unit: s.unit, What: s.what}
		b.tries[id] = t
	}
	t.seen = true
	wait := !now && time.Now().Before(t.Next)
	b.mu.Unlock()
	if wait {
		return
	}
	next, err := s.do(ctx)
	if ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(err, rail.ErrLater) {
		next, err = askLeast, nil
	}
	if err == nil {
		t.Err, t.Tries, t.pause, t.Next = "", 0, 0, time.Now().Add(next)
		return
	}
	if t.Tries++; t.Tries == 1 {
		b.c.Log.Warn("a payment does not go on by itself", "to", s.what, "account", s.peer.Short(), "err", err)
	}
	t.pause = min(max(2*t.pause, failedFirst), askMost)
	t.Err, t.Next = err.Error(), time.Now().Add(t.pause)
}

// poll is the pause between two questions about something that began then.
func poll(since int64) time.Duration {
	return min(max(time.Since(time.UnixMilli(since))/10, askLeast), askMost)
}

// unanswered finds this account's proposals that the other side has not answered, and is there to be asked.
func (b *Billing) unanswered(r *books.Reader, steps *[]errand, at reach) error {
	self := b.c.Books.Self()
	return r.Unsigned(books.Proposed, identity.AccountID{}, func(id wire.Hash, s voucher.Settlement) error {
		account := s.Channel.Peer(self)
		*steps = append(*steps, errand{account, s.Channel.Unit, "get a settlement signed", id.String(), func(ctx context.Context) (time.Duration, error) {
			if !b.deliver(ctx, at, account, id) {
				return 0, nil
			}
			return sendEvery, nil // a person sees in `settle list` how long it waits
		}})
		return nil
	})
}

// deliver brings this account's signature under a settlement to the other side; ok is false if that is not there, or has no time. What does not arrive is
// asked for again by the side whose proposal it is.
func (b *Billing) deliver(ctx context.Context, at reach, account identity.AccountID, id wire.Hash) (ok bool) {
	peer, ok := at(ctx, account)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, claimWithin)
	defer cancel()
	_, err := b.c.Settle.Send(ctx, peer, id)
	if err != nil {
		b.c.Log.Info("settlement not taken", "account", account.Short(), "err", err)
	}
	return err == nil || !Away(err)
}

// request is one to the program about an amount.
func (b *Billing) request(a rail.Action, peer identity.AccountID, u money.Unit, key wire.Hash, amount money.Micro) rail.Request {
	return rail.Request{
		Action: a, Key: key.String(), Account: b.c.Books.Self().String(), Peer: peer.String(), Unit: string(u), Amount: amount.String(),
	}
}

// came judges the answer about a payment: whether the whole amount has come in. Of one that a renter claims, the amount is the renter's word
// until the program says it.
func came(a rail.Answer, want money.Micro, claimed bool) (bool, error) {
	if a.State != rail.Paid {
		return false, nil
	}
	if a.Amount == "" {
		if claimed {
			return false, fmt.Errorf("%w: a payment that a renter claims is %q without its amount", rail.ErrAnswer, a.State)
		}
		return true, nil
	}
	got, err := money.Parse(a.Amount)
	if err == nil && got != want {
		err = fmt.Errorf("%v has come in, %v was to come: record it with `settle`, and give it another reference", got, want)
	}
	return err == nil, err
}
