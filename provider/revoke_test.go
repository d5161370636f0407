package provider

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
)

// own gives the rig a renter whose account's key is at hand.
func (r *rig) own() (account ed25519.PrivateKey) {
	r.t.Helper()
	account, _, dev, err := identity.Generate()
	must(r.t, err)
	must(r.t, r.theirs.Close())
	r.renter = dev
	r.theirs = openBooks(r.t, dev, &kv.Memory{}, r.t.(interface{ TempDir() string }).TempDir())
	r.conf.Accounts = append(r.conf.Accounts, dev.Account())
	r.a.conf.Accounts = r.conf.Accounts
	return account
}

// A device that its account has let go buys nothing, not even where it was never met before.
func TestRevokedDeviceBuysNothing(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		account := r.own()
		raw, err := identity.Revoke(account, r.renter.Peer(), 1, 0)
		must(t, err)
		if _, err := r.a.delegations.Learn(context.Background(), raw); err != nil {
			t.Fatal(err)
		}
		s := r.sale()
		s.Delegation, err = identity.OpenDelegation(s.DelegationRaw) // as negotiate does
		must(t, err)
		if _, err := r.a.Sell(context.Background(), s); !isCode(err, reason.DelegationPowers) {
			t.Errorf("sold: %v", err)
		}
	})
}

// The job of a device that is let go while it runs is paid no further, and ends as one whose vouchers stopped; what was paid stays.
func TestRevokedWhileTheJobRuns(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		account := r.own()
		r.paying.Store(true)
		k := r.run()
		time.Sleep(35 * time.Second)
		raw, err := identity.Revoke(account, r.renter.Peer(), 1, 0)
		must(t, err)
		if kept, err := r.a.books.KeepRevocation(context.Background(), raw); err != nil || !kept {
			t.Fatal(kept, err)
		}
		paid := r.stored(k.id).Vouchered
		rec := r.over(k.id, string(reason.RenterGone))
		if paid == 0 || rec.Vouchered > paid+10_000 {
			t.Errorf("paid %v before, %v in the end", paid, rec.Vouchered)
		}
	})
}
