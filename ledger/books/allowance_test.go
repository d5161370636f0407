package books

import (
	"errors"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// allows signs an allowance on the renter's side and takes it on the provider's.
func (p pairOf) allows(lane ledger.Lane, amount money.Micro, until int64) error {
	p.renter.tb.Helper()
	var raw []byte
	p.renter.update(func(t *Tx) (err error) { raw, err = t.SignAllowance(lane, amount, until); return err })
	return p.provider.Update(p.renter.tb.Context(), func(t *Tx) error { _, err := t.Allow(raw); return err })
}

// TestAllowance: what a renter lets be metered in its absence is open on both sides until it is vouchered, lapses or the lane ends.
func TestAllowance(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 100)
	open := func(want money.Micro) {
		t.Helper()
		mine, theirs := p.renter.account(ledger.AsRenter, p.provider).Open, p.provider.account(ledger.AsProvider, p.renter).Open
		if mine != want || theirs != want {
			t.Fatalf("%v is open with the renter, %v with the provider, want %v", mine, theirs, want)
		}
		p.equal()
	}
	open(100)
	must(t, p.allows(lane, 1000, 5000))
	open(1000)
	must(t, p.allows(lane, 1000, 5000))
	p.pay(lane, 300)
	open(700)
	must(t, p.allows(lane, 1200, 5000))
	open(900)
	for _, c := range []struct {
		amount money.Micro
		until  int64
	}{{1100, 9000}, {2000, 4000}} {
		err := p.renter.Update(t.Context(), func(t *Tx) error { _, err := t.SignAllowance(lane, c.amount, c.until); return err })
		if !errors.Is(err, voucher.ErrAllowance) {
			t.Errorf("%v until %d after 1200 until 5000: %v", c.amount, c.until, err)
		}
	}
	for _, side := range []*party{p.renter, p.provider} {
		side.update(func(t *Tx) error { return t.LapseAllowance(lane) })
		side.update(func(t *Tx) error { return t.LapseAllowance(lane) })
	}
	open(0)
	must(t, p.allows(lane, 1300, 6000)) // a later one stands again
	open(1000)
	p.close(lane, 300)
	open(0)
	if err := p.renter.Update(t.Context(), func(t *Tx) error { _, err := t.SignAllowance(lane, 1400, 7000); return err }); !errors.Is(err, ErrConflict) {
		t.Errorf("allowance for a lane that ended: %v", err)
	}
}

// TestAllowanceNeedsCredit: an allowance is taken only as far as the renter's credit goes, over all its lanes.
func TestAllowanceNeedsCredit(t *testing.T) {
	p := newPair(t)
	lane, other := p.sell(1, 0), p.sell(2, 0)
	must(t, p.allows(other, 600_000, 5000))
	var refused *ledger.CreditError
	if err := p.allows(lane, 400_001, 5000); !errors.As(err, &refused) || refused.Room != 400_000 {
		t.Fatalf("over the limit of 1: %v", err)
	}
	must(t, p.allows(other, 600_000, 5000))
	p.provider.view(func(r *Reader) error {
		if room, _, err := r.LaneRoom(other); err != nil || room != 1_000_000 {
			t.Errorf("the lane with the allowance has room for %v: %v", room, err)
		}
		if room, _, err := r.LaneRoom(lane); err != nil || room != 400_000 {
			t.Errorf("the other has room for %v: %v", room, err)
		}
		return nil
	})
}

// TestAllowanceIsTheLanes: only the device that bought a lane allows anything on it, and a stored allowance that was changed is found.
func TestAllowanceIsTheLanes(t *testing.T) {
	p, stranger := newPair(t), newParty(t)
	lane := p.sell(1, 0)
	c := p.provider.lane(lane).Channel
	mine := voucher.Allowance{Delegation: p.renter.dev.DelegationHash(), Channel: c, Lane: lane, Amount: 5, Until: 5}
	theirs := mine
	theirs.Delegation, theirs.Channel.Renter = stranger.dev.DelegationHash(), stranger.Self()
	other := mine
	other.Channel.Epoch++
	for name, a := range map[string]struct {
		by   *party
		body voucher.Allowance
		want error
	}{
		"a stranger's":    {stranger, theirs, voucher.ErrLane},
		"another epoch's": {p.renter, other, voucher.ErrLane},
	} {
		raw, err := voucher.SignAllowance(a.by.dev, a.body)
		must(t, err)
		if err := p.provider.Update(t.Context(), func(t *Tx) error { _, err := t.Allow(raw); return err }); !errors.Is(err, a.want) {
			t.Errorf("%s: %v, want %v", name, err, a.want)
		}
	}
	if _, err := voucher.SignAllowance(stranger.dev, mine); !errors.Is(err, voucher.ErrSigner) {
		t.Errorf("signed for another account: %v", err)
	}
	must(t, p.allows(lane, 10, 10))
	p.provider.verified(ResultOK)
	must(t, p.provider.store.Update(t.Context(), func(tx *kv.Txn) error {
		l := p.provider.lane(lane)
		l.Allowed++
		return save(tx.Of(kv.Books), laneKey(lane), l)
	}))
	p.provider.verified(ResultCorrupt)
}
