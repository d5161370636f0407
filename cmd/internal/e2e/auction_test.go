package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	hash "github.com/gpufair/gpufair/p2p/wire"
)

// bidder is a renter that bids: its ledger and its floor, on real sockets.
type bidder struct {
	*party
	floor *negotiate.Floor
	got   negotiate.Followed
	lease market.Lease
	err   error
}

func (m *fair) bidder(name string) *bidder {
	m.t.Helper()
	b := &bidder{party: m.party(name, ledger.AsRenter)}
	b.open()
	var err error
	if b.floor, err = negotiate.NewFloor(b.base.Network, b.base.Device, "e2e", b.base.Log); err != nil {
		m.t.Fatal(err)
	}
	b.run(wire.Part{Name: "floor", Run: b.floor.Run})
	return b
}

// bid calls for the auction of the only lot, and follows a bid to its lease.
func (b *bidder) bid(ctx context.Context, o market.SealedOffer, rate money.Rate) error {
	called, err := b.floor.Call(ctx, o, 1)
	if err != nil {
		return err
	}
	needs := work.Needs{Kind: market.KindCPU, Devices: 1}
	named, err := needs.Hash()
	if err != nil {
		return err
	}
	nonce := hash.Sum("gpufair/test", []byte(b.name))
	lane := negotiate.Sealed{Open: called.Raw, Nonce: nonce}.Lease(b.account())
	var voucher []byte
	err = b.base.Books.Update(ctx, func(tx *books.Tx) (err error) {
		voucher, err = tx.Promise(books.Opening{Channel: b.base.Books.Channel(o.Account, o.Unit), Lane: ledger.Lane(lane), Rate: rate, Devices: 1})
		return err
	})
	if err != nil {
		return err
	}
	sealed, err := negotiate.PrepareBid(b.base.Device, called.Raw, auction.Bid{
		Options: []auction.Option{{Quantity: 1, Rate: rate}}, Unit: o.Unit, Term: 60, Needs: named, Use: o.Terms.Use, Voucher: identity.Hash(voucher),
	}, nonce, 1, 100_000)
	if err != nil {
		return err
	}
	seller := p2p.PeerAddr{Peer: o.Device, Addrs: o.Addrs}
	b.got, err = b.floor.Follow(ctx, negotiate.Bidding{Sealed: sealed, Began: called.Since, Seller: seller, Voucher: voucher, Needs: needs})
	if err != nil {
		return err
	}
	lot, _ := o.Lot(1)
	for _, w := range b.got.Report.Price {
		if w.Account == b.account() {
			_, b.lease, err = b.floor.FetchLease(ctx, seller, sealed, w.Win, lot)
		}
	}
	return err
}

// TestSealedAuction: three renters bid for one lot over real sockets. The dearest has a lease of the provider's, at its price; all three
// clear the same transcript.
func TestSealedAuction(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	bidders := []*bidder{m.bidder("a"), m.bidder("b"), m.bidder("c")}
	o := m.owner("owner", bidders[0].account(), bidders[1].account(), bidders[2].account())
	o.conf.Lots = slices.Clone(o.conf.Lots) // the agent reads those that it has
	o.conf.Lots[0].Reserve, o.conf.Auction.Bond = price/2, 100
	o.conf.Auction.Commit, o.conf.Auction.Reveal = 20*time.Second, 20*time.Second // a busy machine is seconds late
	if err := o.agent.Reload(o.conf); err != nil {
		t.Fatal(err)
	}
	for i, b := range bidders {
		b.meet(o.party)
		for _, other := range bidders[:i] {
			b.meet(other.party)
		}
	}
	var entry book.Entry
	for _, b := range bidders {
		until(t, "the offer", patience, func() (ok bool) {
			entry, ok = b.base.Board.Book().Get(o.base.Device.Peer(), time.Now())
			return ok
		})
	}
	var all sync.WaitGroup
	for i, b := range bidders {
		all.Go(func() { b.err = b.bid(t.Context(), entry.SealedOffer, price/2+money.Rate(i)*price/10) })
	}
	all.Wait()
	for i, b := range bidders {
		wins := b.got.Report.Outcome.Wins
		if b.err != nil || b.got.Report.Verdict() != auction.Kept || !slices.Equal(wins, bidders[0].got.Report.Outcome.Wins) {
			t.Fatalf("bidder %d: %v, %s", i, b.err, b.got.Report.Verdict())
		}
	}
	best := bidders[2]
	if best.lease.ID == (market.LeaseID{}) || best.got.Report.Price[0].Pay != money.Micro(price/2+2*price/10) {
		t.Error("the dearest bid has no lease at its price:", best.got.Report.Text(best.account()))
	}
	leases, err := o.agent.Leases(t.Context(), false)
	if err != nil || len(leases) != 1 || leases[0].ID != best.lease.ID.String() {
		t.Error("the owner has other leases", leases, err)
	}
}
