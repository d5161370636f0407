package negotiate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

const (
	askWithin   = 2 * time.Second  // for one question to a seller or participant: the windows are short
	partsWithin = 60 * time.Second // for a whole transcript
	leaseWithin = 60 * time.Second // from the award: a seller that has made no lease by then makes none
)

// ErrSellerGone says that a seller showed neither an award nor an abort, or no lease of a win, as long as its
// bidders wait: it made none, or could not be reached.
var ErrSellerGone = errors.New("the seller showed nothing in time")

// Called is an auction that takes bids.
type Called struct {
	ID    auction.ID
	Open  auction.Open
	Raw   []byte    // the Open's envelope
	Since time.Time // when it was opened, by the local clock and the seller's word
}

// Call asks a provider for the auction of a lot of its offer that takes bids now; it opens one where the owner sells so. The error is a
// [reason.Error] if it does not.
func (f *Floor) Call(ctx context.Context, offer market.SealedOffer, lot uint8) (Called, error) {
	var a floorAnswer
	seller := p2p.PeerAddr{Peer: offer.Device, Addrs: offer.Addrs}
	if err := f.ask(ctx, seller, floorAsk{Want: wantOpen, Hash: offer.Hash, Lot: lot, Delegation: f.dev.Delegation()}, &a); err != nil {
		return Called{}, fmt.Errorf("ask for the auction of lot %d: %w", lot, Typed(err))
	}
	o, err := auction.ReadOpen(a.Record)
	if err != nil {
		return Called{}, fmt.Errorf("auction of lot %d: %w", lot, err)
	}
	if o.Account != offer.Account || o.Device != offer.Device || o.Lot != lot || o.Unit != offer.Unit {
		return Called{}, reason.Errorf(reason.AuctionUnknown, "the seller showed an auction of another lot")
	}
	id, now := auction.IDOf(a.Record), time.Now()
	since := now.Add(-time.Duration(min(a.Elapsed, uint64(o.SealAfter().Milliseconds()))) * time.Millisecond)
	f.remember(id, a.Record, a.Delegation, since, now, true)
	h := f.find(id)
	if h == nil {
		return Called{}, reason.Errorf(reason.AuctionUnknown, "its Open has no good delegation")
	}
	if h.since.Before(since) {
		since = h.since
	}
	return Called{ID: id, Open: o, Raw: a.Record, Since: since}, nil
}

// ask puts one question to a peer; one that is not connected is dialled first.
func (f *Floor) ask(ctx context.Context, to p2p.PeerAddr, ask floorAsk, answer *floorAnswer) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if len(to.Addrs) > 0 {
		_ = f.net.Connect(ctx, to) // where this fails the call says so
	}
	return p2p.Call(ctx, f.net, to.Peer, f.protocol(), ask, answer, maxAsk)
}

// Bidding is a bid to be followed: what is stored before anything is sent, and what goes beside its opening.
type Bidding struct {
	Sealed
	Began   time.Time // first sight of the Open
	Seller  p2p.PeerAddr
	Voucher []byte // the opening voucher that the bid names
	Needs   work.Needs
	// Progress is told what the bidder has come to; nil: nobody asks.
	Progress func(BidStage)
}

// BidStage is how far a bid has come.
type BidStage uint8

// The stages of a bid. A restart may show one twice.
const (
	BidSent     BidStage = iota + 1 // it is on its way
	BidTaken                        // the seller signed a receipt for the commit
	BidSealed                       // a Seal has it
	BidShown                        // it was opened
	BidCounted                      // the seller signed a receipt for the opening
	BidResulted                     // the transcript is here and checked
)

// Followed is what became of a bid.
type Followed struct {
	Report      auction.Report // cleared again by this machine
	File        []byte         // the transcript, with this bidder's receipts in it
	Unwitnessed bool           // it opened although too few others showed the Seal
}

// follower is a bid being followed.
type follower struct {
	f    *Floor
	b    Bidding
	open auction.Open
	id   auction.ID
	m    *Bidder
	done Followed
	no   error // the seller's refusal of the commit
}

// Follow takes a bid through its auction: it commits, opens only under a Seal that has its commit and that others saw too, and checks the
// result by clearing again. It asks again for whatever is lost. Started again with the same Bidding it goes on. The error is a
// [reason.Error] if the seller did not take the commit, and wraps [ErrSellerGone] if it showed no result.
func (f *Floor) Follow(ctx context.Context, b Bidding) (Followed, error) {
	m, err := NewBidder(b.Sealed, b.Began)
	if err != nil {
		return Followed{}, err
	}
	w := &follower{f: f, b: b, open: m.open, id: m.id, m: m}
	gives := b.Began.Add(m.open.SealAfter() + m.open.RevealFor() + patience)
	if least := time.Now().Add(m.open.RevealFor() + partsWithin); gives.Before(least) {
		gives = least // back late: what became of the hold is asked for all the same
	}
	for {
		news := w.look()
		asks, again := m.Next(time.Now())
		for _, a := range asks {
			w.do(ctx, a)
		}
		w.tell()
		switch {
		case m.Report() != nil:
			w.done.Unwitnessed = m.Unwitnessed()
			return w.done, nil
		case w.no != nil:
			return Followed{}, w.no
		case ctx.Err() != nil:
			return Followed{}, context.Cause(ctx)
		case time.Now().After(gives):
			return Followed{}, fmt.Errorf("auction %s: %w", w.id.Short(), ErrSellerGone)
		case len(asks) > 0 && w.ready():
			continue
		}
		timer := time.NewTimer(time.Until(again))
		select {
		case <-ctx.Done():
		case <-news:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// ready reports whether what arrived lets the bidder open at once.
func (w *follower) ready() bool { return !w.m.opened && w.m.mayOpen(time.Now()) }

// look takes in what the topic told, and gives what is closed at the next news.
func (w *follower) look() <-chan struct{} {
	w.f.mu.Lock()
	h := w.f.heard[w.id]
	if h == nil {
		w.f.mu.Unlock()
		return nil
	}
	seals, others, news, over := h.seals, len(h.bidders), h.news, h.aborted || len(h.awards) > 0
	for _, p := range h.bidders {
		if p == w.f.net.Self() {
			others--
		}
	}
	w.f.mu.Unlock()
	w.m.Others(others)
	now := time.Now()
	for _, s := range seals { // by the seller's signature; a Seal from the topic makes nobody a witness
		if err := w.m.Seal(s, w.open.Device, now); err != nil {
			w.f.log.Debug("seal", "auction", w.id.Short(), "err", err)
		}
	}
	if over || len(seals) > 0 && !w.m.included {
		w.m.asked = time.Time{} // it is there: ask at once, whatever the pause
	}
	return news
}

// do asks for one thing. What fails is asked for again.
func (w *follower) do(ctx context.Context, a Ask) {
	var err error
	switch a {
	case SendCommit:
		err = w.sendCommit(ctx)
	case FetchSeal:
		err = w.fetchSeals(ctx)
	case SendOpening:
		err = w.sendOpening(ctx)
	case FetchAward:
		err = w.fetchResult(ctx)
	}
	if err != nil {
		w.f.log.Debug("auction", "auction", w.id.Short(), "ask", a, "err", err)
	}
}

func (w *follower) sendCommit(ctx context.Context) error {
	w.f.say(ctx, newsCommit, w.b.Commit, w.f.dev.Delegation()) // others see who bids, and the seller can't say that it never came
	var a floorAnswer
	ask := floorAsk{Want: wantCommit, Auction: w.id, Record: w.b.Commit, Delegation: w.f.dev.Delegation()}
	if err := w.f.ask(ctx, w.b.Seller, ask, &a); err != nil {
		if final(err) { // it is not in the log, or it would have got its receipt again
			w.no = fmt.Errorf("bid in auction %s: %w", w.id.Short(), Typed(err))
		}
		return err
	}
	return w.m.Receipt(a.Record)
}

// fetchSeals asks the seller for the Seal and the proof, and two other participants for the Seal, all at once.
func (w *follower) fetchSeals(ctx context.Context) error {
	type shown struct {
		peer identity.PeerID
		a    floorAnswer
		err  error
	}
	peers := append([]identity.PeerID{w.open.Device}, w.others(wantWitnesses)...)
	got := make([]shown, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() {
			got[i].peer = p
			to := p2p.PeerAddr{Peer: p}
			if i == 0 {
				to = w.b.Seller
			}
			got[i].err = w.f.ask(ctx, to, floorAsk{Want: wantSeal, Auction: w.id, Hash: identity.Hash(w.b.Commit)}, &got[i].a)
		})
	}
	wg.Wait()
	var errs []error
	now := time.Now()
	for _, g := range got {
		if g.err == nil {
			g.err = w.m.Seal(g.a.Record, g.peer, now)
		}
		if g.err == nil {
			w.f.hearSeller(newsSeal, g.a.Record, now) // so that others can be shown it
		}
		if g.err == nil && g.peer == w.open.Device && g.a.Proven {
			g.err = w.m.Inclusion(g.a.Leaf, g.a.Path)
		}
		errs = append(errs, g.err)
	}
	return errors.Join(errs...)
}

// others are up to n participants besides this one and the seller, any.
func (w *follower) others(n int) []identity.PeerID {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	h := w.f.heard[w.id]
	if h == nil {
		return nil
	}
	var out []identity.PeerID
	for _, i := range rand.Perm(len(h.bidders)) {
		p := h.bidders[i]
		if p != w.f.net.Self() && p != w.open.Device && !w.m.witnesses[p] && len(out) < n {
			out = append(out, p)
		}
	}
	return out
}

func (w *follower) sendOpening(ctx context.Context) error {
	raw, err := w.m.Opening()
	if err != nil {
		return err
	}
	var a floorAnswer
	ask := floorAsk{Want: wantOpening, Auction: w.id, Record: raw, Voucher: w.b.Voucher, Needs: &w.b.Needs}
	if err := w.f.ask(ctx, w.b.Seller, ask, &a); err != nil {
		return err
	}
	return w.m.Receipt(a.Record)
}

// fetchResult fetches the transcript part by part and clears it again.
func (w *follower) fetchResult(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, partsWithin)
	defer cancel()
	var raw []byte
	for {
		var a floorAnswer
		if err := w.f.ask(ctx, w.b.Seller, floorAsk{Want: wantTranscript, Auction: w.id, From: uint32(len(raw))}, &a); err != nil {
			return err
		}
		raw = append(raw, a.Part...)
		if a.Size > auction.MaxTranscript || len(raw) > int(a.Size) || len(a.Part) == 0 {
			return fmt.Errorf("transcript of %d bytes, %d of them here: %w", a.Size, len(raw), auction.ErrTranscript)
		}
		if len(raw) == int(a.Size) {
			break
		}
	}
	t, err := auction.DecodeTranscript(raw)
	if err != nil {
		return err
	}
	r, err := w.m.Transcript(t)
	if err != nil || w.m.Report() == nil {
		return err
	}
	if w.done.File, err = w.m.file(t); err != nil {
		return err
	}
	w.done.Report = r
	return nil
}

// file is the transcript with what this bidder holds besides.
func (b *Bidder) file(t auction.Transcript) ([]byte, error) {
	t = b.evidence(t)
	return t.Encode()
}

// tell says how far it has come.
func (w *follower) tell() {
	if w.b.Progress == nil {
		return
	}
	stage := BidSent
	switch m := w.m; {
	case m.report != nil:
		stage = BidResulted
	case m.acked != nil:
		stage = BidCounted
	case m.opened:
		stage = BidShown
	case m.included:
		stage = BidSealed
	case m.receipt != nil:
		stage = BidTaken
	}
	w.b.Progress(stage)
}

// FetchLease asks the seller for the lease that a win made, until it is there or a minute is over, and checks it: the seller's signature
// and power, and everything that [auction.CheckLease] looks at. The error is a [reason.Error] if the seller refused or signed something else.
func (f *Floor) FetchLease(ctx context.Context, seller p2p.PeerAddr, s Sealed, win auction.Win, lot market.Lot) (work.Sold, market.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseWithin)
	defer cancel()
	id := auction.IDOf(s.Open)
	ask := floorAsk{Want: wantLease, Auction: id, Hash: wire.Hash(s.Lease(f.dev.Account()))}
	for pause := firstPause; ; pause = min(2*pause, askWithin) {
		var a floorAnswer
		err := f.ask(ctx, seller, ask, &a)
		if err == nil {
			return checkWon(s, win, lot, a)
		}
		if final(err) {
			return work.Sold{}, market.Lease{}, fmt.Errorf("lease of auction %s: %w", id.Short(), Typed(err))
		}
		if !sleep(ctx, pause) {
			return work.Sold{}, market.Lease{}, fmt.Errorf("lease of auction %s: %w: %w", id.Short(), ErrSellerGone, err)
		}
	}
}

func checkWon(s Sealed, win auction.Win, lot market.Lot, a floorAnswer) (work.Sold, market.Lease, error) {
	none := func(err error) (work.Sold, market.Lease, error) {
		if _, ok := reason.Of(err); !ok {
			err = reason.Errorf(reason.LeaseInvalid, "%v", err)
		}
		return work.Sold{}, market.Lease{}, fmt.Errorf("lease of auction %s: %w", auction.IDOf(s.Open).Short(), err)
	}
	o, err := auction.ReadOpen(s.Open)
	if err != nil {
		return none(err)
	}
	l, err := market.OpenLease(a.Record)
	if err != nil {
		return none(err)
	}
	if err := auction.CheckLease(o, lot, auction.Opening{Commit: s.Commit, Bid: s.Bid, Nonce: s.Nonce}, win, l); err != nil {
		return none(err)
	}
	if _, err := market.OpenDelegation(a.Delegation, l.Delegation, l.Header, identity.PowerProvide); err != nil {
		return none(err)
	}
	return work.Sold{Lease: a.Record, Delegation: bytes.Clone(a.Delegation)}, l, nil
}
