package renter

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// The windows of an auction that an agent bids in, those that an owner may set (docs: auctions): in a shorter one it may not get to show its
// bid, in a longer one its hold is bound at a stranger's will.
const (
	leastReveal = 5 * time.Second
	mostWindow  = time.Hour
)

// bid is a job's bid in a sealed auction, stored with its holds before anything of it is sent: after a crash the agent goes on with the same
// bytes, so it neither loses the nonce nor bids twice.
type bid struct {
	Open     []byte      `cbor:"1,keyasint"` // sealed
	Commit   []byte      `cbor:"2,keyasint"` // sealed
	Bid      []byte      `cbor:"3,keyasint"`
	Nonce    wire.Hash   `cbor:"4,keyasint"`
	Began    int64       `cbor:"5,keyasint"`           // when the auction was opened; Unix milliseconds
	Pay      money.Micro `cbor:"6,keyasint"`           // an hour, for all devices
	Hidden   money.Micro `cbor:"7,keyasint,omitempty"` // that the commit holds beyond the lane's own hold
	Won      bool        `cbor:"8,keyasint,omitempty"`
	Discount money.Micro `cbor:"9,keyasint,omitempty"`  // off the charge: a winner's part of the bond for bids that stayed sealed
	Posted   money.Micro `cbor:"10,keyasint,omitempty"` // of the hold: the bid stayed sealed
	File     string      `cbor:"11,keyasint,omitempty"` // path of the transcript
}

func (b *bid) sealed() negotiate.Sealed {
	return negotiate.Sealed{Open: b.Open, Commit: b.Commit, Bid: b.Bid, Nonce: b.Nonce}
}

// order is what a job's lease is for: the Accept, or what a winning bid comes to.
func (r *record) order() (market.Accept, error) {
	if r.Bid == nil {
		return market.OpenAccept(r.Accept)
	}
	o, err := auction.ReadOpen(r.Bid.Open)
	if err != nil {
		return market.Accept{}, err
	}
	return auction.AcceptOf(o, auction.Opening{Commit: r.Bid.Commit, Bid: r.Bid.Bid, Nonce: r.Bid.Nonce}, r.Bid.Pay)
}

// due is what a charge comes to less the discount of a bid that won.
func (r *record) due(charge money.Micro) money.Micro {
	if r.Bid == nil {
		return charge
	}
	return auction.Discounted(charge, r.Bid.Discount)
}

// bidFor asks the provider for the auction of an offer and stores a bid in it, with its holds, in one durable transaction, before anything
// of it is sent. One at a time: a later bid of the account in the same auction would replace the earlier one.
func (a *Agent) bidFor(ctx context.Context, p *planned, f book.Found) (*job, error) {
	called, err := a.floor.Call(ctx, f.Entry.SealedOffer, f.Lot.ID)
	if err != nil {
		return nil, err
	}
	o := called.Open
	switch {
	case o.Mode != auction.First:
		return nil, refuse("the auction's rule is %s: gpufair bids where a winner pays its own bid (%s)", o.Mode, auction.First)
	case p.bid < o.Reserve:
		return nil, reason.Errorf(reason.BidBelowReserve, "the bid is %v, the reserve %v", p.bid, o.Reserve)
	case o.MinTerm > f.Lot.MinTerm || o.MaxTerm < f.Lot.MinTerm:
		return nil, reason.Errorf(reason.TermsChanged, "the auction sells %d to %d s, and the offer %d s or more: another hold than was shown",
			o.MinTerm, o.MaxTerm, f.Lot.MinTerm)
	case o.RevealFor() < leastReveal || o.RevealFor() > mostWindow || o.SealAfter() > mostWindow+time.Minute:
		return nil, refuse("the auction takes bids for %v and shows them for %v: a bid in it may lose its hold; the least is %v to show it in, the most %v",
			o.SealAfter(), o.RevealFor(), leastReveal, mostWindow)
	}
	a.bidding.Lock()
	defer a.bidding.Unlock()
	if err := a.bidsAlready(ctx, called.ID); err != nil {
		return nil, err
	}
	if f.Lot.MinTerm, f.Lot.MaxTerm, f.Lot.Price = o.MinTerm, o.MaxTerm, p.bid; ctx.Err() != nil {
		return nil, ctx.Err() // nothing is held yet
	}
	rec, err := a.storeBid(context.WithoutCancel(ctx), p, f, called)
	if errors.Is(err, books.ErrDisputed) {
		return nil, reason.Errorf(reason.Disputed, "%v", err)
	}
	if err != nil {
		return nil, err
	}
	return a.newJob(rec, p.files.share())
}

// bidsAlready refuses a second bid in an auction.
func (a *Agent) bidsAlready(ctx context.Context, id auction.ID) error {
	records, err := a.records(ctx)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if rec.Bid != nil && !rec.Final && auction.IDOf(rec.Bid.Open) == id {
			return &refusal{
				why:  fmt.Errorf("job %s bids in this auction already: an account has one bid in it", rec.ID.Short()),
				next: "wait for its result, and bid in the next auction",
			}
		}
	}
	return nil
}

// storeBid signs a bid for a lot as the auction sells it, at the price of the bid.
func (a *Agent) storeBid(ctx context.Context, p *planned, f book.Found, called negotiate.Called) (record, error) {
	offer, n := f.Entry.SealedOffer, p.needs.Devices
	term, err := p.term(f.Lot)
	if err != nil {
		return record{}, err
	}
	if err := p.needs.Fit(f.Lot, n); err != nil {
		return record{}, err
	}
	needs, err := p.needs.Hash()
	if err != nil {
		return record{}, err
	}
	credit, err := a.creditWith(ctx, offer)
	if err != nil {
		return record{}, err
	}
	pay, err := money.Charge(f.Lot.Price, n, uint64(time.Hour/time.Millisecond))
	if err != nil {
		return record{}, err
	}
	rec := a.newRecord(p, f)
	rec.Bid = &bid{Open: called.Raw, Began: called.Since.UnixMilli(), Pay: pay}
	if _, err := rand.Read(rec.Bid.Nonce[:]); err != nil {
		return record{}, fmt.Errorf("nonce: %w", err)
	}
	rec.ID = rec.Bid.sealed().Lease(a.Device.Account())
	b := auction.Bid{Options: []auction.Option{{Quantity: n, Rate: f.Lot.Price}}, Unit: offer.Unit, Term: term, Needs: needs, Use: offer.Terms.Use}
	err = a.Books.Update(ctx, func(tx *books.Tx) error { return a.bidTx(tx, &rec, b, called.Open, offer, credit) })
	return rec, err
}

// bidTx writes a bid: the lane that it opens if it wins, with the hold that the lease will have; what the commit holds besides; the job.
func (a *Agent) bidTx(tx *books.Tx, rec *record, b auction.Bid, o auction.Open, offer market.SealedOffer, credit money.Micro) error {
	rate, bundles := auction.Win{Pay: rec.Bid.Pay}.MeterRate()
	hold, err := auction.Win{Pay: rec.Bid.Pay}.Hold(o.MinTerm)
	if err != nil {
		return err
	}
	channel := a.Books.Channel(offer.Account, offer.Unit)
	rec.Voucher, err = tx.Promise(books.Opening{
		Channel: channel, Lane: ledger.Lane(rec.ID), Rate: rate, Devices: bundles, Hold: hold, DueDays: offer.Terms.DueDays,
	})
	if err != nil {
		return err
	}
	b.Voucher = identity.Hash(rec.Voucher)
	sealed, err := negotiate.PrepareBid(a.Device, rec.Bid.Open, b, rec.Bid.Nonce, uint64(rec.Agreed), credit)
	if err != nil {
		return err
	}
	rec.Bid.Commit, rec.Bid.Bid = sealed.Commit, sealed.Bid
	c, err := auction.ReadCommit(sealed.Commit)
	if err != nil {
		return err
	}
	if c.Hold > hold {
		rec.Bid.Hidden = c.Hold - hold
		if err := tx.Hold(identity.Hash(sealed.Commit), channel, rec.Bid.Hidden); err != nil {
			return err
		}
	}
	return errors.Join(kv.Save(tx.Of(kv.Renter), jobKey(rec.ID), rec), kv.Save(tx.Of(kv.Renter), peerKey(rec.Provider), rec.Peer))
}

// free ends what a bid holds besides its lane: nothing more of it is at stake, or it stayed sealed and the hold is owed.
func (b *bid) free(tx *books.Tx, c ledger.Channel) error {
	if b == nil {
		return nil
	}
	if b.Hidden > 0 {
		if err := tx.VoidHold(identity.Hash(b.Commit)); err != nil {
			return err
		}
	}
	if b.Posted == 0 {
		return nil
	}
	return tx.Forfeit(wire.Hash(auction.IDOf(b.Open)), c, b.Posted) // names the hold as a whole
}

// bidWords say how far a bid has come.
var bidWords = map[negotiate.BidStage]string{
	negotiate.BidSent: "the sealed bid is on its way", negotiate.BidTaken: "the seller has the sealed bid", negotiate.BidSealed: "the auction is sealed, with the bid in it",
	negotiate.BidShown: "the bid is being opened", negotiate.BidCounted: "the bid is open; the result is awaited", negotiate.BidResulted: "the result is here",
}

// win takes the stored bid to the end of its auction, and gets the lease if it won. It goes on although the job is given up meanwhile: a
// bid that is never shown loses its hold. The error says why there is no lease.
func (j *job) win(ctx context.Context) error {
	rec := j.record()
	seller := p2p.PeerAddr{Peer: j.offer.Device, Addrs: j.offer.Addrs}
	var last negotiate.BidStage
	got, err := j.a.floor.Follow(ctx, negotiate.Bidding{
		Sealed: rec.Bid.sealed(), Began: time.UnixMilli(rec.Bid.Began), Seller: seller, Voucher: rec.Voucher, Needs: rec.Needs,
		Progress: func(s negotiate.BidStage) {
			if s != last {
				last = s
				j.tell(api.RunEvent{Step: api.StepBid, Detail: bidWords[s]})
			}
		},
	})
	if errors.Is(err, negotiate.ErrSellerGone) {
		return reason.Errorf(reason.ProviderGone, "no result of the auction could be had from it")
	}
	if err != nil {
		return err
	}
	at, err := standing(got, rec.Bid.Commit)
	if err != nil {
		return err
	}
	if err := j.keepResult(ctx, got, at); err != nil {
		return err
	}
	switch {
	case got.Report.Aborted:
		return reason.Errorf(reason.AuctionAborted, "nothing was sold%s", faultOf(got.Report))
	case at == nil:
		return reason.Errorf(reason.AuctionClosed, "the bid is not in the seller's log%s", faultOf(got.Report))
	case !at.Won:
		return reason.Errorf(at.Reason.Code, "%s%s", at.Reason.Detail, faultOf(got.Report))
	case j.ending():
		return nil // the release says so
	}
	return j.fetchWon(ctx, seller, got.Report)
}

// standing is what became of a commit; nil: it is not in the log.
func standing(got negotiate.Followed, commit []byte) (*auction.Standing, error) {
	t, err := auction.DecodeTranscript(got.File)
	if err != nil {
		return nil, err
	}
	leaf := slices.IndexFunc(t.Leaves, func(raw []byte) bool { return bytes.Equal(raw, commit) })
	if leaf < 0 || leaf >= len(got.Report.Bids) {
		return nil, nil
	}
	return &got.Report.Bids[leaf], nil
}

// faultOf is the first rule that the seller broke, for people.
func faultOf(r auction.Report) string {
	if len(r.Faults) == 0 {
		return ""
	}
	return "; the seller broke a rule: " + r.Faults[0].Words
}

// keepResult stores what a checked transcript says of the bid, and the file itself.
func (j *job) keepResult(ctx context.Context, got negotiate.Followed, at *auction.Standing) error {
	path, err := j.a.keepTranscript(j.id, got.File)
	if err != nil {
		j.log.Warn("transcript of the auction not kept", "err", err)
	}
	j.log.Info("auction over", "auction", got.Report.Auction.Short(), "commits", got.Report.Counts.Leaves, "winners", len(got.Report.Price), "faults", len(got.Report.Faults))
	return j.update(ctx, func(r *record) {
		b := *r.Bid
		b.File = path
		if at != nil {
			b.Won = at.Won && !got.Report.Aborted
			b.Discount, b.Posted = dueTo(got.Report.Dues.Discounts, at.Leaf), dueTo(got.Report.Dues.Posted, at.Leaf)
		}
		if excused(got, at, b.Commit) {
			b.Posted = 0
		}
		r.Bid = &b
	}, nil)
}

// excused reports whether the seller's own signatures show why the bid counts as one that stayed sealed: it had the opening and dropped it,
// moved the commit in its log, or made a second Seal, under which no bidder opens. Such a hold is not owed.
func excused(got negotiate.Followed, at *auction.Standing, commit []byte) bool {
	if at == nil || got.Report.Has(auction.TwoSeals) {
		return true
	}
	t, err := auction.DecodeTranscript(got.File)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(t.Receipts, func(raw []byte) bool {
		switch r, err := auction.ReadReceipt(raw); {
		case err != nil || r.Commit != identity.Hash(commit):
			return false
		case r.Of == auction.OfOpening:
			return got.Report.Has(auction.IgnoredOpening)
		default:
			return got.Report.Has(auction.MissingLeaf) && r.Index != at.Leaf
		}
	})
}

func dueTo(list []auction.Due, leaf uint32) money.Micro {
	for _, d := range list {
		if d.Leaf == leaf {
			return d.Amount
		}
	}
	return 0
}

// fetchWon gets the lease of a bid that won and stores it, as a lease that was bought is stored.
func (j *job) fetchWon(ctx context.Context, seller p2p.PeerAddr, r auction.Report) error {
	lot, _ := j.offer.Lot(j.accept.Lot)
	for _, w := range r.Price {
		if w.Lease != j.id {
			continue
		}
		sold, _, err := j.a.floor.FetchLease(ctx, seller, j.record().Bid.sealed(), w.Win, lot)
		if errors.Is(err, negotiate.ErrSellerGone) {
			return reason.Errorf(reason.ProviderGone, "the bid won, and the seller made no lease of it")
		}
		if err != nil {
			return err
		}
		return j.keepLease(ctx, sold)
	}
	return reason.Errorf(reason.LeaseInvalid, "the award has no win of lease %s", j.id.Short())
}

// transcriptName is the file of an auction in its job's folder.
const transcriptName = "auction.transcript"

// keepTranscript writes the file of an auction, whole or not at all, and gives its path.
func (a *Agent) keepTranscript(id market.LeaseID, raw []byte) (string, error) {
	dir := a.jobDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("transcript: %w", err)
	}
	path := filepath.Join(dir, transcriptName)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return "", fmt.Errorf("transcript: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("transcript: %w", err)
	}
	return path, nil
}
