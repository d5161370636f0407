package settle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Limits of the conversation about what was lost.
const (
	copiesAPage = 4                                                   // lanes, or settlements
	maxPlace    = 64                                                  // bytes of a place to go on from
	maxBadPages = 8                                                   // with something wrong, of one peer
	maxPages    = 1 << 15                                             // of one peer
	maxCopies   = copiesAPage*(2*voucher.MaxSettlement+8<<10) + 4<<10 // bytes of a message
)

// RecoverLimits is what the protocol may cost.
func RecoverLimits() p2p.Limits {
	return p2p.Limits{Streams: 16, PeerStreams: 4, Idle: 30 * time.Second}
}

// RecoverAsk is the request: what do you have of our dealings, or of the trail of one lane, from a place on? It may be repeated; it changes
// nothing. The first version of the conversation has no key above 2.
type RecoverAsk struct {
	Delegation []byte       `cbor:"1,keyasint"`           // of the device that asks
	Place      []byte       `cbor:"2,keyasint,omitempty"` // as the last answer gave it; none: from the beginning
	Lane       *ledger.Lane `cbor:"3,keyasint,omitempty"` // whose trail is asked for
}

// RecoverAnswer is one page of what the answerer has of its dealings with the asker's account: lanes first, then settlements, then clearings;
// or of the trail of a lane. The first version of the conversation has no key above 4, and lanes as [books.LaneCopy.First] gives them.
type RecoverAnswer struct {
	Delegation []byte               `cbor:"1,keyasint"` // of the device that answers
	Lanes      []books.LaneCopy     `cbor:"2,keyasint,omitempty"`
	Settled    []books.SettledCopy  `cbor:"3,keyasint,omitempty"`
	Place      []byte               `cbor:"4,keyasint,omitempty"` // to go on from; none: that was all
	Cleared    []books.ClearingCopy `cbor:"5,keyasint,omitempty"`
	Trail      *books.Trail         `cbor:"6,keyasint,omitempty"`
}

func (a RecoverAnswer) count() int { return len(a.Lanes) + len(a.Settled) + len(a.Cleared) }

// RecoveryConfig is what the conversation needs.
type RecoveryConfig struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	First    p2p.Protocol // the first version, for peers of an older release; empty: they are not understood
	Books    *books.Books
	// Peer finds the device on which an account was last dealt with.
	Peer func(ctx context.Context, account identity.AccountID) (identity.PeerID, error)
	// Records gives the signed records of another wing of a lane, to be given back with it; nil: there are none.
	Records func(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error)
	// Terms reads such records: it checks their signatures, and that they are about the lane; nil: nobody can.
	Terms func(lane ledger.Lane, channel ledger.Channel, records []proof.Attachment) (*books.Terms, error)
	Log   *slog.Logger
}

// Recovery is the conversation by which a ledger that was restored gets back what it lost: from the peers that it dealt with. Safe for
// concurrent use.
type Recovery struct {
	c       RecoveryConfig
	arrived chan identity.PeerID // peers that connected
	began   chan struct{}        // a ledger that was never restored has something to ask for ([Recovery.Take])
}

// NewRecovery makes a service; the caller serves its Handler and runs it.
func NewRecovery(c RecoveryConfig) (*Recovery, error) {
	if c.Network == nil || c.Books == nil || c.Protocol == "" || c.Peer == nil || c.Log == nil {
		return nil, errors.New("recovery config: network, protocol, books, peer and log are needed")
	}
	return &Recovery{c: c, arrived: make(chan identity.PeerID, 64), began: make(chan struct{}, 1)}, nil
}

// Handler answers other peers: a device hears what this side has of its own account, and nothing else.
func (r *Recovery) Handler() p2p.Handler { return p2p.Answer(maxCopies, r.answer) }

// FirstHandler is Handler for peers of an older release, in the first version of the conversation.
func (r *Recovery) FirstHandler() p2p.Handler {
	return p2p.Answer(maxCopies, func(ctx context.Context, from identity.PeerID, a RecoverAsk) (RecoverAnswer, error) {
		if a.Lane != nil {
			return RecoverAnswer{}, p2p.Errorf(p2p.KindBadRequest, "no trails in this version")
		}
		out, err := r.answer(ctx, from, a)
		out.Cleared = nil
		if books.PastSettlements(out.Place) {
			out.Place = nil
		}
		for i := range out.Lanes {
			out.Lanes[i] = out.Lanes[i].First()
		}
		return out, err
	})
}

func (r *Recovery) answer(ctx context.Context, from identity.PeerID, a RecoverAsk) (RecoverAnswer, error) {
	if len(a.Place) > maxPlace {
		return RecoverAnswer{}, p2p.Errorf(p2p.KindBadRequest, "place too long")
	}
	d, err := speaks(from, a.Delegation)
	if err != nil {
		return RecoverAnswer{}, err
	}
	out := RecoverAnswer{Delegation: r.c.Books.Device().Delegation()}
	err = r.c.Books.View(ctx, func(b *books.Reader) error {
		if a.Lane != nil {
			trail, next, err := b.Trail(d.Account, *a.Lane, a.Place)
			out.Trail, out.Place = &trail, next
			return err
		}
		p, err := b.Copies(d.Account, a.Place, copiesAPage)
		out.Lanes, out.Settled, out.Cleared, out.Place = p.Lanes, p.Settled, p.Cleared, p.Next
		return err
	})
	if err == nil {
		err = r.attach(ctx, out.Lanes)
	}
	if err == nil && len(a.Place) == 0 {
		err = r.heard(ctx, a.Delegation)
	}
	return out, err
}

// heard notes where an account is found: who asks for what it lost may be on another PC than before.
func (r *Recovery) heard(ctx context.Context, delegation []byte) error {
	news := false
	err := r.c.Books.View(ctx, func(b *books.Reader) (err error) { news, err = b.Heard(delegation); return err })
	if err != nil || !news {
		return err
	}
	err = r.c.Books.Update(ctx, func(t *books.Tx) error { return t.HeardFrom(delegation) })
	if errors.Is(err, books.ErrReadOnly) {
		return nil // a ledger that is being recovered itself
	}
	return err
}

// attach puts the records of another wing beside the lanes that they are about.
func (r *Recovery) attach(ctx context.Context, lanes []books.LaneCopy) error {
	if r.c.Records == nil {
		return nil
	}
	for i := range lanes {
		records, err := r.c.Records(ctx, lanes[i].Lane())
		if err != nil {
			return err
		}
		if len(records) == 0 {
			continue // those that came back with the lane, if it was lost here
		}
		lanes[i].Records = nil
		if err := r.c.Books.View(ctx, func(b *books.Reader) error { return b.AttachTo(&lanes[i], records) }); err != nil {
			return err
		}
	}
	return nil
}

// Found is what a peer gave back.
type Found struct {
	Account     identity.AccountID // that the peer speaks for
	Lanes       int                // of which something was lost
	Settlements int                // that were lost, clearings among them
	Unchanged   int                // lanes, settlements and clearings that were here as they are there
	Skipped     int                // of other devices of this account, which have ledgers of their own
	first       bool               // it speaks the first version of the conversation
}

// ErrNotOurs says that a peer gave back something that no check bears out.
var ErrNotOurs = errors.New("it gave back records that are not what was signed")

// Ask takes back all that peer has of its dealings with this account. What does not pass every check is left out, and the error wraps
// ErrNotOurs; what does is kept all the same. It may be repeated.
func (r *Recovery) Ask(ctx context.Context, peer identity.PeerID) (Found, error) {
	var f Found
	var wrong error
	bad := 0
	ask := RecoverAsk{Delegation: r.c.Books.Device().Delegation()}
	for range maxPages {
		got, err := r.page(ctx, peer, &f, ask)
		if err != nil {
			return f, r.about(peer, err)
		}
		if err := r.adopt(ctx, peer, &f, got); err != nil {
			wrong, bad = errors.Join(wrong, err), bad+1
		}
		if errors.Is(wrong, books.ErrReadOnly) {
			return f, r.about(peer, wrong)
		}
		if len(got.Place) > 0 && bytes.Compare(got.Place, ask.Place) > 0 && bad < maxBadPages {
			ask.Place = got.Place
			continue
		}
		if len(got.Place) > 0 {
			wrong = errors.Join(wrong, errors.New("its pages go on"))
		}
		if wrong != nil {
			return f, r.about(peer, fmt.Errorf("%w: %w", ErrNotOurs, wrong))
		}
		err = r.c.Books.Update(ctx, func(t *books.Tx) error { return t.Answered(f.Account, peer) })
		if err == nil && !f.first {
			r.trails(ctx, peer, f)
		}
		return f, err
	}
	return f, r.about(peer, fmt.Errorf("%w: over %d pages", ErrNotOurs, maxPages))
}

func (r *Recovery) about(peer identity.PeerID, err error) error {
	return fmt.Errorf("recover from %s: %w", peer.Short(), err)
}

// page asks for one page, and checks for whom the peer speaks.
func (r *Recovery) page(ctx context.Context, peer identity.PeerID, f *Found, ask RecoverAsk) (got RecoverAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if !f.first {
		err = p2p.Call(ctx, r.c.Network, peer, r.c.Protocol, ask, &got, maxCopies)
		f.first = errors.Is(err, p2p.ErrUnsupported) && r.c.First != "" && ask.Lane == nil
	}
	if f.first {
		err = p2p.Call(ctx, r.c.Network, peer, r.c.First, ask, &got, maxCopies)
	}
	if err != nil {
		return got, err
	}
	d, err := identity.OpenDelegation(got.Delegation)
	switch {
	case err != nil:
		return got, err
	case d.Device != peer || !f.Account.IsZero() && f.Account != d.Account:
		return got, fmt.Errorf("%w: it answers for account %s", identity.ErrPower, d.Account.Short())
	case len(got.Lanes) > copiesAPage || len(got.Settled) > copiesAPage || len(got.Cleared) > copiesAPage || len(got.Place) > maxPlace:
		return got, fmt.Errorf("%w: a page of %d lanes, %d settlements and %d clearings", ErrNotOurs, len(got.Lanes), len(got.Settled), len(got.Cleared))
	}
	f.Account = d.Account
	return got, nil
}

// adopt takes one page into the books, and gives what of it could not be taken.
func (r *Recovery) adopt(ctx context.Context, peer identity.PeerID, f *Found, got RecoverAnswer) error {
	if got.count() == 0 {
		return nil
	}
	var wrong error
	now := *f
	err := r.c.Books.Update(ctx, func(t *books.Tx) error {
		wrong, now = nil, *f
		for _, c := range got.Lanes {
			a, err := t.AdoptLane(f.Account, c, r.terms(c))
			var sister *books.SisterError
			if errors.As(err, &sister) {
				if err := t.Skip(sister.Device, c.Lane(), f.Account, peer); err != nil {
					return err
				}
			}
			wrong = errors.Join(wrong, now.count(&now.Lanes, a.Changed, err))
		}
		for _, c := range got.Settled {
			changed, err := t.AdoptSettlement(f.Account, c)
			err = now.count(&now.Settlements, changed, err)
			if len(c.Counter) > 0 { // one that is not signed by both decides nothing
				wrong = errors.Join(wrong, err)
			}
		}
		for _, c := range got.Cleared {
			changed, err := t.AdoptClearing(f.Account, c)
			wrong = errors.Join(wrong, now.count(&now.Settlements, changed, err))
		}
		return nil
	})
	*f = now
	return errors.Join(err, wrong)
}

// terms reads the records of a lane. Those that can't be read, or are about something else, are as good as none.
func (r *Recovery) terms(c books.LaneCopy) *books.Terms {
	if r.c.Terms == nil || len(c.Records) == 0 || len(c.Vouchers) == 0 {
		return nil
	}
	first, err := voucher.Open(c.Vouchers[0])
	if err != nil {
		return nil
	}
	terms, err := r.c.Terms(first.Lane, first.Channel, c.Records)
	if err != nil {
		r.c.Log.Warn("records of a lease that came back are not what was signed", "lane", first.Lane.Short(), "err", err)
		return nil
	}
	return terms
}

// count counts one copy, and gives what is wrong with it. One of another device of this account is not wrong, and stays out.
func (f *Found) count(lost *int, changed bool, err error) error {
	var sister *books.SisterError
	switch {
	case errors.As(err, &sister):
		f.Skipped++
		return nil
	case err != nil:
	case changed:
		*lost++
	default:
		f.Unchanged++
	}
	return err
}

// Take takes over the leases of a lost device of this account ([books.Tx.Take]); ask everybody then.
func (r *Recovery) Take(ctx context.Context, device identity.PeerID) error {
	if err := r.c.Books.Update(ctx, func(t *books.Tx) error { return t.Take(device) }); err != nil {
		return err
	}
	r.c.Log.Warn("this ledger takes over the leases of a lost device: with a ledger of its own it would book them once more", "device", device)
	select {
	case r.began <- struct{}{}:
	default:
	}
	return nil
}

// AskAll asks everybody who has not answered since the restore, and says what came of each: the ledger verb. It asks a few at a time.
func (r *Recovery) AskAll(ctx context.Context) ([]statement.Recovered, error) {
	list, err := r.toAsk(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]statement.Recovered, len(list))
	if err := each(ctx, len(list), func(i int) { out[i] = r.askAccount(ctx, list[i].Account) }); err != nil {
		return nil, err
	}
	return out, nil
}

func (r *Recovery) toAsk(ctx context.Context) (list []books.Pending, err error) {
	err = r.c.Books.View(ctx, func(b *books.Reader) (err error) { list, err = b.ToAsk(); return err })
	return list, err
}

// askAccount asks one account where it was dealt with last.
func (r *Recovery) askAccount(ctx context.Context, a identity.AccountID) statement.Recovered {
	out := statement.Recovered{Account: a.String(), Result: statement.Unchanged}
	peer, err := r.c.Peer(ctx, a)
	var f Found
	if err == nil {
		f, err = r.Ask(ctx, peer)
	}
	if err == nil && f.Account != a {
		err = fmt.Errorf("device %s speaks for account %s now", peer.Short(), f.Account.Short())
	}
	out.Leases, out.Settlements, out.Skipped = f.Lanes, f.Settlements, f.Skipped
	r.skipped(f)
	switch {
	case f.Lanes+f.Settlements > 0:
		out.Result = statement.Found
		r.c.Log.Info("records recovered", "account", a.Short(), "leases", f.Lanes, "settlements", f.Settlements)
	case err != nil && errors.Is(err, ErrNotOurs):
		out.Result = statement.NotOurs
	case err != nil:
		out.Result = statement.Unreachable
	}
	if err != nil {
		out.Detail = err.Error()
		note := r.c.Books.Update(context.WithoutCancel(ctx), func(t *books.Tx) error { return t.NotReached(a, err.Error()) })
		r.c.Log.Info("not recovered yet", "account", a.Short(), "err", errors.Join(err, note))
	}
	return out
}

// skipped says that a peer had leases of other devices of this account.
func (r *Recovery) skipped(f Found) {
	if f.Skipped > 0 {
		r.c.Log.Info("records of other devices of this account stay out of this ledger; `ledger recover` says whose", "account", f.Account.Short(),
			"records", f.Skipped)
	}
}
