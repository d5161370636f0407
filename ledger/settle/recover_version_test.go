package settle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

const recoveringFirst = p2p.Protocol("/gpufair/test/recover-first/1.0.0")

// versions makes a side's recovery in both versions; only the first is served if old is set. final is what a record of every lane says.
func (s side) versions(t *testing.T, old bool, final *money.Micro, known side) *settle.Recovery {
	t.Helper()
	r, err := settle.NewRecovery(settle.RecoveryConfig{
		Network: s.net, Protocol: recovering, First: recoveringFirst, Books: s.books, Log: quiet,
		Peer: func(_ context.Context, a identity.AccountID) (identity.PeerID, error) {
			if known.dev.Account() == a {
				return known.dev.Peer(), nil
			}
			return identity.PeerID{}, errors.New("never met")
		},
		Records: func(context.Context, ledger.Lane) ([]proof.Attachment, error) { return nil, nil },
		Terms: func(ledger.Lane, ledger.Channel, []proof.Attachment) (*books.Terms, error) {
			return &books.Terms{Charge: final}, nil
		},
	})
	must(t, err)
	s.net.Handle(recoveringFirst, settle.RecoverLimits(), r.FirstHandler())
	if !old {
		s.net.Handle(recovering, settle.RecoverLimits(), r.Handler())
	}
	return r
}

// TestRecoverFromOlderPeer: a peer that speaks only the first version gives back what that knows, in the form that it had; an older side that
// lost its ledger is answered in it, too.
func TestRecoverFromOlderPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, always(settle.Accept))
		c := owe(t, renter, provider, 5, 1000)
		_, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 4000, Method: "manual"})
		must(t, err)
		provider.versions(t, true, nil, renter)
		renter = renter.lost(t, true)
		got, err := renter.versions(t, false, nil, provider).AskAll(t.Context())
		if err != nil || len(got) != 1 || got[0].Leases != 5 || got[0].Settlements != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		same(t, renter, provider, 1000, 4000)

		var place []byte
		for range 9 {
			var page settle.RecoverAnswer
			must(t, p2p.Call(t.Context(), provider.net, renter.dev.Peer(), recoveringFirst, settle.RecoverAsk{Delegation: provider.dev.Delegation(), Place: place}, &page, 1<<20))
			for _, l := range page.Lanes {
				if l.Opened != 0 || l.Ended != 0 || l.Records != nil || l.Dispute != nil {
					t.Errorf("a lane in the first version: %+v", l)
				}
			}
			if page.Cleared != nil || page.Trail != nil || books.PastSettlements(page.Place) {
				t.Errorf("a page in the first version: %+v", page)
			}
			if place = page.Place; len(place) == 0 {
				return
			}
		}
		t.Error("the pages have no end")
	})
}

// TestRecoverTrail: the vouchers between the first and the newest come back after the money, as far as they are what was signed.
func TestRecoverTrail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 2, 1000)
		for more := range money.Micro(3) {
			must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
			for lane := range byte(2) {
				renter.update(t, func(tx *books.Tx) error {
					_, err := tx.SignVoucher(ledger.Lane{1, 0, lane}, 2000+more, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(2000 + more)}})
					return err
				})
			}
		}
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		provider.versions(t, false, nil, renter)
		count := func(s side) (found int) {
			must(t, s.books.View(t.Context(), func(r *books.Reader) error {
				return r.EachLane(func(l books.Lane) error {
					page, _, err := r.Trail(l.Channel.Peer(s.books.Self()), l.Lane, nil)
					found += len(page.Paid)
					return err
				})
			}))
			return found
		}
		want := count(provider)
		renter = renter.lost(t, true)
		_, err := renter.versions(t, false, nil, provider).AskAll(t.Context())
		must(t, err)
		if got := count(renter); got != want || want != 8 {
			t.Errorf("%d vouchers came back, want %d", got, want)
		}
	})
}
