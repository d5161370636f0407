package provider

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// AuctionConfig is how the owner sells the lots that have a reserve by sealed bids. Zero fields are the defaults of the rules.
type AuctionConfig struct {
	Mode   auction.Mode  // "": [auction.First]
	Bond   uint32        // percent of the whole lot at its reserve for the minimum term; the other modes need 100
	Commit time.Duration // in which bids are sent
	Reveal time.Duration // in which they are shown
}

// Limits of the windows: shorter ones lose bidders on slow lines, longer ones keep a device from buyers.
const (
	minWindow = 5 * time.Second
	maxWindow = time.Hour
)

// Validate says which setting makes no sense.
func (c AuctionConfig) Validate() error {
	switch c.Mode {
	case "", auction.First:
	case auction.KPlus1, auction.VCG:
		if c.Bond < 100 {
			return fmt.Errorf("%w: auction: a bond of %d %%: mode %q is only trusted with 100", ErrConfig, c.Bond, string(c.Mode))
		}
	default:
		return fmt.Errorf("%w: auction: mode %.16q: want first, kplus1 or vcg", ErrConfig, string(c.Mode))
	}
	if c.Bond > 1000 {
		return fmt.Errorf("%w: auction: a bond of %d %%: want at most 1000", ErrConfig, c.Bond)
	}
	for _, w := range []time.Duration{c.Commit, c.Reveal} {
		if w != 0 && (w < minWindow || w > maxWindow) {
			return fmt.Errorf("%w: auction: a window of %v: want %v to %v", ErrConfig, w, minWindow, maxWindow)
		}
	}
	return nil
}

// Auctions that an account may call for: each keeps devices from buyers for its windows.
const (
	callEvery = time.Minute
	callBurst = 5
)

// auctions is what the agent has of sealed auctions beside its store.
type auctions struct {
	floor *negotiate.Floor
	house *negotiate.House

	// Guarded by the agent's mu.
	coming *comingAuction                       // what the head that is being opened is stored with
	held   map[auction.ID]heldLot               // devices that an auction keeps from others until its leases are made
	calls  map[identity.AccountID]*rate.Limiter // of the accounts that the owner serves
}

// comingAuction is an auction that is about to be stored, and its devices: they are held from the moment it is, since it may be aborted before
// whoever opens it comes back.
type comingAuction struct {
	record auctionRecord
	held   heldLot
}

// heldLot is the devices of an auction.
type heldLot struct {
	devices []wire.Hash
	release []func()
}

// openAuctions makes the floor and the house of the agent's device.
func (a *Agent) openAuctions(n p2p.Network, network string) error {
	floor, err := negotiate.NewFloor(n, a.dev, network, a.log)
	if err != nil {
		return err
	}
	house, err := negotiate.NewHouse(floor, auctionBook{a})
	if err != nil {
		return err
	}
	a.auctions = auctions{floor: floor, house: house, held: map[auction.ID]heldLot{}, calls: map[identity.AccountID]*rate.Limiter{}}
	return nil
}

// usedBy is why a device is kept back while it is in the auction with that nonce.
func usedBy(nonce wire.Hash) string { return "in an auction (" + nonce.Short() + ")" }

// Called gives the auction of a lot that takes bids, or opens one. For [negotiate.AuctionBook].
func (b auctionBook) Called(ctx context.Context, account identity.AccountID, offer wire.Hash, lot uint8) (auction.ID, error) {
	a := b.a
	a.calling.Lock()
	defer a.calling.Unlock()
	o, ok := a.publisher.Own(offer)
	if !ok {
		return auction.ID{}, reason.Errorf(reason.OfferUnknown, "offer %s", offer.Short())
	}
	l, ok := o.Lot(lot)
	if !ok {
		return auction.ID{}, reason.Errorf(reason.OfferUnknown, "it has no lot %d", lot)
	}
	if id, ok := a.openFor(l); ok {
		return id, nil
	}
	open, devices, err := a.opening(account, o, l)
	if err != nil {
		return auction.ID{}, err
	}
	return a.holdAuction(ctx, open, o, devices)
}

// openFor is the auction of a lot that still takes commits.
func (a *Agent) openFor(l market.Lot) (auction.ID, bool) {
	a.mu.Lock()
	var of auction.ID
	for id, h := range a.auctions.held {
		if len(h.devices) > 0 && h.devices[0] == l.Slots[0].Device {
			of = id
		}
	}
	a.mu.Unlock()
	h, ok := a.auctions.house.Auction(of)
	return of, ok && h.Stage == negotiate.Committing && time.Since(h.Times.Opened) < h.Open.CommitFor()
}

// opening is the auction of a lot as the owner wants it, or why there is none.
func (a *Agent) opening(account identity.AccountID, o market.SealedOffer, l market.Lot) (auction.Open, []wire.Hash, error) {
	none := func(err error) (auction.Open, []wire.Hash, error) { return auction.Open{}, nil, err }
	var devices []wire.Hash
	for _, s := range l.Slots {
		devices = append(devices, s.Device)
	}
	if err := a.mayServe(account, devices, o.Terms.Use); err != nil {
		return none(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	lot, ok := a.conf.lot(devices[0])
	if !ok || lot.Reserve == 0 {
		return none(reason.Errorf(reason.AuctionUnknown, "the owner sells lot %d at its price, and by no auction", l.ID))
	}
	calls := a.auctions.calls[account]
	if calls == nil {
		calls = rate.NewLimiter(rate.Every(callEvery), callBurst)
		a.auctions.calls[account] = calls // an account that is served: no stranger makes it grow
	}
	if !calls.Allow() {
		return none(p2p.Errorf(p2p.KindBusy, "too many auctions were opened for account %s: one each %v", account.Short(), callEvery))
	}
	c := a.conf.Auction
	open := auction.Open{
		Offer: o.Hash, Lot: l.ID, K: uint32(len(devices)), MinTerm: l.MinTerm, MaxTerm: l.MaxTerm, Unit: o.Unit, Reserve: lot.Reserve, Mode: c.Mode,
		Commit: seconds(c.Commit, auction.DefaultCommit), Grace: auction.DefaultGrace, Reveal: seconds(c.Reveal, auction.DefaultReveal),
		Decline: min(auction.DefaultDecline, l.MinTerm), Rules: auction.RulesVersion,
	}
	if open.Mode == "" {
		open.Mode = auction.First
	}
	full, err := open.FullBond()
	if err != nil {
		return none(err)
	}
	open.Bond = full / 100 * money.Micro(c.Bond)
	if c.Bond == 100 {
		open.Bond = full
	}
	rand.Read(open.Nonce[:]) // never fails
	return open, devices, nil
}

func seconds(d time.Duration, otherwise uint32) uint32 {
	if d == 0 {
		return otherwise
	}
	return uint32(d / time.Second)
}

// holdAuction keeps the devices from others and opens the auction.
func (a *Agent) holdAuction(ctx context.Context, open auction.Open, o market.SealedOffer, devices []wire.Hash) (auction.ID, error) {
	held, err := a.occupy(open.Nonce, devices)
	if err != nil {
		held.free()
		return auction.ID{}, err
	}
	a.mu.Lock()
	a.auctions.coming = &comingAuction{auctionRecord{Offer: o.Raw, Devices: devices}, held}
	a.mu.Unlock()
	id, err := a.auctions.house.Open(ctx, open)
	a.mu.Lock()
	a.auctions.coming = nil
	a.mu.Unlock()
	if err != nil {
		held.free()
	}
	return id, err
}

// occupy keeps the devices of the auction with that nonce from others; what is held is to be freed in any case.
func (a *Agent) occupy(nonce wire.Hash, devices []wire.Hash) (heldLot, error) {
	h := heldLot{devices: devices}
	for _, d := range devices {
		f, err := a.capacity.Occupy(d, usedBy(nonce))
		if err != nil {
			return h, err
		}
		h.release = append(h.release, f)
	}
	return h, nil
}

func (h heldLot) free() {
	for _, f := range h.release {
		f()
	}
}

// releaseAuction ends an auction's hold on its devices: they are leased, or free.
func (a *Agent) releaseAuction(id auction.ID) {
	a.mu.Lock()
	h := a.auctions.held[id]
	delete(a.auctions.held, id)
	a.mu.Unlock()
	h.free()
}

// resumeAuctions keeps the devices of stored auctions from others, before anything is sold.
func (a *Agent) resumeAuctions(ctx context.Context) error {
	heads, err := a.auctionHeads(ctx)
	if err != nil {
		return fmt.Errorf("stored auctions: %w", err)
	}
	for _, h := range heads {
		if h.Head.Closed || h.Head.Sold || len(h.Head.Aborts) > 0 {
			continue
		}
		id := auction.IDOf(h.Head.Open)
		open, err := auction.ReadOpen(h.Head.Open)
		if err != nil {
			return fmt.Errorf("stored auction %s: %w", id.Short(), err)
		}
		for _, d := range h.Devices {
			a.capacity.Add(d)
		}
		held, err := a.occupy(open.Nonce, h.Devices)
		if err != nil { // a crash between its lease and its head: the sale is found again
			a.log.Info("a device of an auction is not free", "auction", id.Short(), "err", err)
		}
		a.mu.Lock()
		a.auctions.held[id] = held
		a.mu.Unlock()
	}
	return nil
}

// abortAuctions ends what is not awarded yet: the owner outranks everybody, and after a Seal owes the bond for it.
func (a *Agent) abortAuctions(ctx context.Context, why reason.Reason) {
	if a.auctions.house == nil {
		return
	}
	for _, h := range a.auctions.house.Auctions() {
		if h.Stage > negotiate.Revealing {
			continue
		}
		if err := a.auctions.house.Abort(ctx, h.ID, why); err != nil && !reason.Is(err, reason.AuctionUnknown) {
			a.log.Error("abort auction", "auction", h.ID.Short(), "err", err)
		}
	}
}
