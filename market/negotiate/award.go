package negotiate

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Opening takes an opening that came at now and gives the seller's receipt for it. One that counts already gets its receipt again. The
// error is a [reason.Error]; a late opening is kept all the same until a minute after the Award, since its hold may come back.
func (a *Auctioneer) Opening(raw []byte, now time.Time) ([]byte, error) {
	o, c, err := auction.DecodeOpening(raw)
	if err != nil {
		return nil, reason.Errorf(reason.BidVoid, "%v", err)
	}
	commit := identity.Hash(o.Commit)
	i, ok := a.leaves[commit]
	switch {
	case !ok || c.Auction != a.id:
		return nil, reason.Errorf(reason.AuctionUnknown, "its commit is not in the log")
	case a.stage == Committing:
		return nil, reason.Errorf(reason.BidVoid, "nothing is opened before the seal")
	case a.newest[c.Account].leaf != i:
		return nil, reason.Errorf(reason.BidReplaced, "leaf %d counts instead", a.newest[c.Account].leaf)
	}
	s := auction.Shown{Leaf: i, Bid: o.Bid, Nonce: o.Nonce}
	if a.shown[i] && a.counts(i) {
		return a.receipt(auction.OfOpening, commit)
	}
	if a.stage != Revealing {
		if now.Sub(a.times.Awarded) < auction.LateWithin {
			a.show(s)
		}
		return nil, reason.Errorf(reason.RevealOver, "the award is signed")
	}
	if err := a.open.TakesOpening(now.Sub(a.times.Sealed)); err != nil {
		return nil, err
	}
	a.show(s)
	return a.receipt(auction.OfOpening, commit)
}

// counts reports whether the opening of leaf i counts: it came before the Award, and so it is in it.
func (a *Auctioneer) counts(i uint32) bool {
	if len(a.t.Awards) == 0 {
		return true
	}
	w, err := auction.ReadAward(a.t.Awards[0])
	return err == nil && w.Counts(i)
}

// show keeps an opening, by leaf.
func (a *Auctioneer) show(s auction.Shown) {
	at, found := slices.BinarySearchFunc(a.t.Shown, s.Leaf, func(x auction.Shown, leaf uint32) int { return int(x.Leaf) - int(leaf) })
	if !found {
		a.t.Shown = slices.Insert(a.t.Shown, at, s)
		a.shown[s.Leaf] = true
	}
}

// Due is when the next [Auctioneer.Tick] has something to do; zero: never.
func (a *Auctioneer) Due() time.Time {
	switch a.stage {
	case Committing:
		return a.times.Opened.Add(a.open.SealAfter())
	case Revealing:
		return a.times.Sealed.Add(a.open.RevealFor())
	case Declining:
		return a.times.Awarded.Add(auction.DeclineWithin)
	}
	return time.Time{}
}

// Tick does what is due at now: it seals, awards, and awards again after winners declined. It gives the record that was signed, nil if
// there is none. An auction whose every bidder has opened is awarded at once, and one that no winner may decline is over with its Award.
func (a *Auctioneer) Tick(now time.Time) ([]byte, error) {
	due := !now.Before(a.Due())
	switch a.stage {
	case Committing:
		if due {
			return a.seal(now)
		}
	case Revealing:
		if due || len(a.t.Shown) == len(a.newest) {
			return a.award(now)
		}
	case Declining:
		if due || !a.mayDecline() {
			return a.awardAgain()
		}
	}
	return nil, nil
}

// mayDecline reports whether some winner's bid is of a group.
func (a *Auctioneer) mayDecline() bool {
	w, err := auction.ReadAward(a.t.Awards[0])
	if err != nil {
		return true // cannot happen: this machine signed it
	}
	for _, win := range w.Wins {
		at, found := slices.BinarySearchFunc(a.t.Shown, win.Leaf, func(x auction.Shown, leaf uint32) int { return int(x.Leaf) - int(leaf) })
		if !found {
			return true
		}
		if b, err := auction.DecodeBid(a.t.Shown[at].Bid); err != nil || !b.Group.IsZero() {
			return true
		}
	}
	return false
}

func (a *Auctioneer) seal(now time.Time) ([]byte, error) {
	size, root := a.log.Head()
	raw, err := a.dev.Seal(auction.DomainSeal, auction.Seal{
		Header: a.dev.Header(auction.Version), Delegation: a.dev.DelegationHash(), Auction: a.id, Size: size, Root: root,
	})
	if err != nil {
		return nil, fmt.Errorf("seal auction %s: %w", a.id.Short(), err)
	}
	a.t.Seals, a.times.Sealed = [][]byte{raw}, now
	a.step(Revealing)
	return raw, nil
}

// award clears and signs.
func (a *Auctioneer) award(now time.Time) ([]byte, error) {
	r, err := auction.Verify(a.t)
	if err != nil {
		return nil, fmt.Errorf("clear auction %s: %w", a.id.Short(), err)
	}
	raw, err := a.sign(auction.Award{
		Opened: auction.OpenedBits(uint32(len(a.t.Leaves)), func(i uint32) bool { return r.Bids[i].Opened }), Wins: r.Outcome.Wins,
	})
	if err != nil {
		return nil, err
	}
	a.t.Awards, a.times.Awarded = [][]byte{raw}, now
	a.step(Declining)
	return raw, nil
}

func (a *Auctioneer) sign(w auction.Award) ([]byte, error) {
	w.Header, w.Delegation, w.Auction = a.dev.Header(auction.Version), a.dev.DelegationHash(), a.id
	w.Seal = identity.Hash(a.t.Seals[0])
	raw, err := a.dev.Seal(auction.DomainAward, w)
	if err != nil {
		return nil, fmt.Errorf("award auction %s: %w", a.id.Short(), err)
	}
	return raw, nil
}

// Decline takes a winner's withdrawal that came at now. The error is a [reason.Error].
func (a *Auctioneer) Decline(raw, delegation []byte, now time.Time) error {
	d, err := auction.ReadDecline(raw)
	switch {
	case err != nil:
		return reason.Errorf(reason.BidVoid, "%v", err)
	case a.stage != Declining || !now.Before(a.Due()):
		return reason.Errorf(reason.RevealOver, "winners decline within %v of the award", auction.DeclineWithin)
	case d.Auction != a.id || d.Award != identity.Hash(a.t.Awards[0]):
		return reason.Errorf(reason.AuctionUnknown, "it is about another award")
	}
	if _, err := market.OpenDelegation(delegation, d.Delegation, d.Header, identity.PowerTrade); err != nil {
		return reason.Errorf(reason.DelegationPowers, "%v", err)
	}
	w, err := auction.ReadAward(a.t.Awards[0])
	if err != nil {
		return fmt.Errorf("decline in auction %s: %w", a.id.Short(), err)
	}
	won := slices.ContainsFunc(w.Wins, func(w auction.Win) bool { return w.Leaf == d.Leaf })
	if own, bid := a.newest[d.Account]; !won || !bid || own.leaf != d.Leaf {
		return reason.Errorf(reason.BidVoid, "leaf %d is not a win of the account", d.Leaf)
	}
	at, _ := slices.BinarySearchFunc(a.t.Shown, d.Leaf, func(x auction.Shown, leaf uint32) int { return int(x.Leaf) - int(leaf) })
	if b, err := auction.DecodeBid(a.t.Shown[at].Bid); err != nil || b.Group.IsZero() {
		return reason.Errorf(reason.BidVoid, "the bid is of no group")
	}
	again := func(have []byte) bool { // by another device too: one for each winner is all that a transcript takes
		h, err := auction.ReadDecline(have)
		return err == nil && h.Leaf == d.Leaf
	}
	if !slices.ContainsFunc(a.t.Declines, again) {
		a.learn(delegation)
		a.t.Declines = append(a.t.Declines, raw)
	}
	return nil
}

// awardAgain clears without those that declined, once; with none the first Award stands.
func (a *Auctioneer) awardAgain() ([]byte, error) {
	if len(a.t.Declines) == 0 {
		a.step(Over)
		return nil, nil
	}
	first, err := auction.ReadAward(a.t.Awards[0])
	if err != nil {
		return nil, fmt.Errorf("award auction %s again: %w", a.id.Short(), err)
	}
	var gone []uint32
	for _, raw := range a.t.Declines {
		if d, err := auction.ReadDecline(raw); err == nil && !slices.Contains(gone, d.Leaf) {
			gone = append(gone, d.Leaf)
		}
	}
	slices.Sort(gone)
	without := a.t
	without.Awards, without.Shown = nil, slices.DeleteFunc(slices.Clone(a.t.Shown), func(s auction.Shown) bool {
		return slices.Contains(gone, s.Leaf) || !first.Counts(s.Leaf)
	})
	r, err := auction.Verify(without)
	if err != nil {
		return nil, fmt.Errorf("clear auction %s again: %w", a.id.Short(), err)
	}
	raw, err := a.sign(auction.Award{Opened: first.Opened, Wins: r.Outcome.Wins, Declined: gone, Before: identity.Hash(a.t.Awards[0])})
	if err != nil {
		return nil, err
	}
	a.t.Awards = append(a.t.Awards, raw)
	a.step(Over)
	return raw, nil
}

// Abort ends the auction without an award. Before the Seal nobody is owed anything; after it each that would have won is owed the bond.
func (a *Auctioneer) Abort(why reason.Reason) ([]byte, error) {
	if a.stage == Declining || a.stage == Over {
		return nil, reason.Errorf(reason.AuctionUnknown, "it is awarded")
	}
	raw, err := a.dev.Seal(auction.DomainAbort, auction.Abort{
		Header: a.dev.Header(auction.Version), Delegation: a.dev.DelegationHash(), Auction: a.id, Reason: why.Clean(),
	})
	if err != nil {
		return nil, fmt.Errorf("abort auction %s: %w", a.id.Short(), err)
	}
	a.t.Aborts = [][]byte{raw}
	a.step(Over)
	return raw, nil
}
