package negotiate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	maxStalls  = 512             // auctions of one seller at once
	tryAgainIn = 5 * time.Second // after the store or a sale failed
	releaseMax = 128             // holds that end in one transaction
	filesKept  = 4               // transcripts ready to send
)

// AuctionBook is the seller's durable part, which its agent fulfils. Each method is one durable transaction: all of it happens, or none of
// it and the error says why. Safe for concurrent use.
type AuctionBook interface {
	// Auctions gives those that are not closed.
	Auctions(ctx context.Context) ([]KeptAuction, error)
	// Auction gives one, closed or not; false if there is none.
	Auction(ctx context.Context, id auction.ID) (KeptAuction, bool, error)
	// Turn stores the head, posts holds and voids others. A hold that has ended already is no error.
	Turn(ctx context.Context, id auction.ID, head AuctionHead, post []Posted, void []wire.Hash) error
	// Take stores a commit as the next leaf and holds its amount under its hash; replaced, if there is one, is the hold that ends. A
	// refusal is a [reason.Error].
	Take(ctx context.Context, c TakenCommit) error
	// Show stores an opening.
	Show(ctx context.Context, id auction.ID, s KeptShown) error
	// Sell takes the slots, voids the commit's hold, opens the lane with the win's, and signs the lease. The same win again changes
	// nothing. A refusal is a [reason.Error].
	Sell(ctx context.Context, w Won) error
	// Sold gives the sealed lease of that id; nil if there is none.
	Sold(ctx context.Context, id market.LeaseID) (leaseRaw []byte, err error)
	// Called gives the auction of a lot of an offer that takes commits now, or opens one by [House.Open] because account wants to bid;
	// or says why not, as a [reason.Error]. Two that call at once get one auction.
	Called(ctx context.Context, account identity.AccountID, offer wire.Hash, lot uint8) (auction.ID, error)
}

// TakenCommit is a checked commit that is about to become a leaf.
type TakenCommit struct {
	Auction  auction.ID
	Open     auction.Open
	Leaf     uint32
	Commit   auction.Commit
	Hash     wire.Hash // of its envelope
	Kept     KeptLeaf
	Replaced *wire.Hash // of the account's commit that no longer counts
}

// Won is a win that is about to become a lease.
type Won struct {
	Open       auction.Open
	Opening    auction.Opening
	Commit     auction.Commit
	Bid        auction.Bid
	Win        auction.Win
	Lease      market.LeaseID
	Voucher    []byte
	Needs      work.Needs
	Delegation []byte // of the bidder's device
	Discount   auction.Due
}

// House is a seller's auctions: hundreds at once, each with its own clock, kept in an [AuctionBook] before anything of them is said. Safe
// for concurrent use.
type House struct {
	dev   *identity.Device
	floor *Floor
	book  AuctionBook
	log   *slog.Logger

	running sync.WaitGroup
	begin   sync.Mutex // one Open at a time: a nonce makes one auction
	mu      sync.Mutex
	ctx     context.Context       // guarded by mu; of Run, nil before
	stalls  map[auction.ID]*stall // guarded by mu; not closed
	files   []file                // guarded by mu; newest last
}

// file is a transcript ready to send, and who took part.
type file struct {
	id   auction.ID
	raw  []byte
	took map[identity.PeerID]bool
}

// stall is one auction that is not closed.
type stall struct {
	id   auction.ID
	wake chan struct{}

	mu     sync.Mutex
	m      *Auctioneer // guarded by mu
	kept   KeptAuction // guarded by mu; as stored
	failed bool        // guarded by mu; the machine may be ahead of the store: read it again
}

// NewHouse makes the auctions of a floor's device. Call it before the floor runs. It starts nothing.
func NewHouse(f *Floor, book AuctionBook) (*House, error) {
	if f == nil || book == nil {
		return nil, errors.New("negotiate: a house needs a floor and a book")
	}
	h := &House{dev: f.dev, floor: f, book: book, log: f.log, stalls: map[auction.ID]*stall{}}
	f.house = h
	return h, nil
}

// Run goes on with the stored auctions and holds those that are opened, until ctx ends; the error is nil then. It is called once, beside the
// floor's Run. A reveal that was interrupted begins anew, since nobody's window is measured by another's clock; and what would end so
// only after its bidders have gone is aborted.
func (h *House) Run(ctx context.Context) error {
	kept, err := h.book.Auctions(ctx)
	if err != nil {
		return fmt.Errorf("read auctions: %w", err)
	}
	h.mu.Lock()
	h.ctx = ctx
	h.mu.Unlock()
	for _, k := range kept {
		if err := h.resume(ctx, k); err != nil {
			h.log.Error("auction not resumed", "auction", auction.IDOf(k.Head.Open).Short(), "err", err)
		}
	}
	<-ctx.Done()
	h.mu.Lock()
	h.ctx = nil // nothing is opened any more
	h.mu.Unlock()
	h.running.Wait()
	return nil
}

func (h *House) resume(ctx context.Context, k KeptAuction) error {
	now := time.Now()
	s, err := h.stand(k)
	if err != nil {
		return err
	}
	switch late := now.Sub(s.m.times.Opened) - s.m.open.SealAfter(); {
	case s.m.Stage() > Revealing:
	case late > patience: // with a reveal from now on it ends later than its bidders wait
		if err := h.abort(ctx, s, reason.New(reason.ProviderRestarted, "the seller came back %v after the seal was due", late.Round(time.Second))); err != nil {
			return err
		}
	case s.m.Stage() == Revealing:
		s.m.times.Sealed = now
	}
	h.add(s)
	return nil
}

// stand makes the stall of a stored auction.
func (h *House) stand(k KeptAuction) (*stall, error) {
	m, err := ResumeAuctioneer(h.dev, k.Transcript(), k.Head.times())
	if err != nil {
		return nil, err
	}
	s := &stall{id: m.ID(), wake: make(chan struct{}, 1), m: m, kept: k}
	if len(k.Head.Awards) > 0 && k.Head.Sold {
		m.stage = Over
	}
	return s, nil
}

// add starts the clock of a stall.
func (h *House) add(s *stall) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalls[s.id] = s
	if ctx := h.ctx; ctx != nil && ctx.Err() == nil {
		h.running.Go(func() { h.tend(ctx, s) })
	}
}

// Open begins an auction: it is stored, and then announced. The fields that name the seller are filled in.
func (h *House) Open(ctx context.Context, open auction.Open) (auction.ID, error) {
	h.begin.Lock()
	defer h.begin.Unlock()
	h.mu.Lock()
	n, running := len(h.stalls), h.ctx != nil
	h.mu.Unlock()
	switch {
	case !running:
		return auction.ID{}, p2p.Errorf(p2p.KindUnavailable, "the seller is starting")
	case n >= maxStalls:
		return auction.ID{}, p2p.Errorf(p2p.KindBusy, "the seller has %d auctions at once", n)
	}
	m, err := NewAuctioneer(h.dev, open, time.Now())
	if err != nil {
		return auction.ID{}, err
	}
	if _, known, err := h.kept(ctx, m.ID()); err != nil || known {
		return auction.ID{}, fmt.Errorf("open auction %s: its nonce was used before: %w", m.ID().Short(), errors.Join(auction.ErrInvalid, err))
	}
	head := AuctionHead{Open: m.Transcript().Open, Delegations: [][]byte{h.dev.Delegation()}, Opened: m.Times().Opened.UnixMilli()}
	if err := h.book.Turn(ctx, m.ID(), head, nil, nil); err != nil {
		return auction.ID{}, fmt.Errorf("open auction %s: %w", m.ID().Short(), err)
	}
	s := &stall{id: m.ID(), wake: make(chan struct{}, 1), m: m, kept: KeptAuction{Head: head}}
	h.add(s)
	h.log.Info("auction opened", "auction", s.id.Short(), "lot", open.Lot, "gpus", open.K, "reserve", open.Reserve, "mode", string(open.Mode))
	h.floor.say(ctx, newsOpen, head.Open, h.dev.Delegation())
	return s.id, nil
}

// Abort ends an auction without an award, for a reason of the owner's.
func (h *House) Abort(ctx context.Context, id auction.ID, why reason.Reason) error {
	s := h.stall(id)
	if s == nil {
		return reason.Errorf(reason.AuctionUnknown, "auction %s is not open", id.Short())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.abort(ctx, s, why); err != nil {
		return err
	}
	s.kick()
	return nil
}

// abort signs and stores the end; the stall's mu is held, or nobody else has it.
func (h *House) abort(ctx context.Context, s *stall, why reason.Reason) error {
	raw, err := s.m.Abort(why)
	if err != nil {
		return err
	}
	if err := h.turn(ctx, s, nil, nil); err != nil {
		return err
	}
	h.log.Warn("auction aborted", "auction", s.id.Short(), "why", why)
	h.floor.say(ctx, newsAbort, raw, nil)
	return nil
}

func (h *House) stall(id auction.ID) *stall {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stalls[id]
}

// HouseAuction is an auction of this seller that is not closed.
type HouseAuction struct {
	ID    auction.ID
	Open  auction.Open
	Stage Stage
	Times Times
}

// Auction is one that is not closed; false if there is none.
func (h *House) Auction(id auction.ID) (HouseAuction, bool) {
	s := h.stall(id)
	if s == nil {
		return HouseAuction{}, false
	}
	return s.view(), true
}

func (s *stall) view() HouseAuction {
	s.mu.Lock()
	defer s.mu.Unlock()
	return HouseAuction{ID: s.id, Open: s.m.open, Stage: s.m.Stage(), Times: s.m.Times()}
}

// Auctions lists what is not closed, in no order.
func (h *House) Auctions() []HouseAuction {
	h.mu.Lock()
	stalls := make([]*stall, 0, len(h.stalls))
	for _, s := range h.stalls {
		stalls = append(stalls, s)
	}
	h.mu.Unlock()
	out := make([]HouseAuction, 0, len(stalls))
	for _, s := range stalls {
		out = append(out, s.view())
	}
	return out
}

func (s *stall) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tend does what is due in one auction until it is closed or ctx ends.
func (h *House) tend(ctx context.Context, s *stall) {
	for {
		next, err := h.step(ctx, s)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			h.log.Error("auction", "auction", s.id.Short(), "err", err)
			next = time.Now().Add(tryAgainIn)
		case next.IsZero():
			h.mu.Lock()
			delete(h.stalls, s.id)
			h.mu.Unlock()
			return
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// step does what is due now and says when to look again; zero: it is closed.
func (h *House) step(ctx context.Context, s *stall) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.heal(ctx, s); err != nil {
		return time.Time{}, err
	}
	for now := time.Now(); s.m.Stage() != Over; {
		was := s.m.Stage()
		raw, err := s.m.Tick(now)
		if err != nil {
			return time.Time{}, err
		}
		if s.m.Stage() == was {
			return s.m.Due(), nil
		}
		if raw == nil { // the first Award stands
			break
		}
		if err := h.turn(ctx, s, nil, nil); err != nil {
			return time.Time{}, err
		}
		kind := newsAward
		if was == Committing {
			kind = newsSeal
		}
		h.floor.say(ctx, kind, raw, nil)
	}
	return h.conclude(ctx, s)
}

// heal reads a stall again whose machine may be ahead of the store; mu is held.
func (h *House) heal(ctx context.Context, s *stall) error {
	if !s.failed {
		return nil
	}
	k, ok, err := h.book.Auction(ctx, s.id)
	if err == nil && !ok {
		err = errors.New("it is not stored")
	}
	if err != nil {
		return fmt.Errorf("read auction %s again: %w", s.id.Short(), err)
	}
	again, err := h.stand(k)
	if err != nil {
		return err
	}
	if again.m.Stage() == Revealing && s.m.times.Sealed.After(again.m.times.Sealed) { // the window began anew after a restart
		again.m.times.Sealed = s.m.times.Sealed
	}
	s.m, s.kept, s.failed = again.m, again.kept, false
	return nil
}

// turn stores the machine's head as it is now; mu is held.
func (h *House) turn(ctx context.Context, s *stall, post []Posted, void []wire.Hash) error {
	head, t := s.kept.Head, s.m.t
	head.Seals, head.Awards, head.Aborts, head.Declines = t.Seals, t.Awards, t.Aborts, t.Declines
	ms := func(at time.Time) int64 {
		if at.IsZero() {
			return 0
		}
		return at.UnixMilli()
	}
	head.Sealed, head.Awarded = ms(s.m.times.Sealed), ms(s.m.times.Awarded)
	if err := h.book.Turn(ctx, s.id, head, post, void); err != nil {
		s.failed = true
		return fmt.Errorf("store auction %s: %w", s.id.Short(), err)
	}
	s.kept.Head = head
	return nil
}
