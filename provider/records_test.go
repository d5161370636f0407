package provider

import (
	"context"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// What both sides signed about a lease goes into its proof, with the rate.
func TestRecords(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.paying.Store(true)
		k := r.run()
		time.Sleep(time.Minute)
		release := market.Release{
			Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Lease: k.id, Reason: k.rec.Reason,
		}
		release.Reason.Code = "stopped_renter"
		_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActRelease, Signed: r.sign(market.DomainRelease, release)})
		must(t, err)
		r.over(k.id, "stopped_renter")
		list, err := r.a.Records(context.Background(), ledger.Lane(k.id))
		must(t, err)
		var names []string
		for _, a := range list {
			names = append(names, a.Name)
		}
		want := []string{"gpufair/accept/1", "gpufair/lease/1", "gpufair/ready/1", "gpufair/release/1", "gpufair/end/1"} // the rig's sale has no offer
		if len(names) != len(want) {
			t.Fatalf("%v, want %v", names, want)
		}
		var raw []byte
		must(t, r.a.books.View(context.Background(), func(b *books.Reader) error {
			f, err := b.Prove(ledger.Lane(k.id), list)
			if err == nil {
				raw, err = f.Encode()
			}
			return err
		}))
		v := proof.Check(raw)
		if v.Result != proof.OK || len(v.Attachments) != len(want) || len(v.Rates) != 1 || v.Rates[0].Rate != rigRate.String() {
			t.Fatalf("%+v", v)
		}
		if none, err := r.a.Records(context.Background(), ledger.Lane(wire.Sum("", []byte("another")))); err != nil || len(none) != 0 {
			t.Fatalf("of a lane that is no lease: %v, %v", none, err)
		}
	})
}
