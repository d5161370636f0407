package voucher_test

import (
	"bytes"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// TestSamePromiseTwice: a voucher whose very body is here under another signature is no second promise, and no fraud.
func TestSamePromiseTwice(t *testing.T) {
	renter, provider := newSide(t), newSide(t)
	v := sign(t, renter.dev, voucher.Voucher{
		Channel: ledger.Channel{Renter: renter.dev.Account(), Provider: provider.dev.Account(), Unit: money.Credit, Epoch: 1}, Lane: ledger.Lane{1},
		Seq: 1, Amount: 5, Prev: wire.Hash{1},
	})
	have := bytes.Clone(v.Raw)
	have[len(have)-1] ^= 1 // the signature is the last field; whoever has the key can make another that verifies
	rules := voucher.Lane{
		Channel: v.Channel, Lane: v.Lane, Device: v.Device, Powers: powersOf(t, renter.dev), Proof: renter.dev.DelegationHash(),
		Last: &voucher.Signed{Voucher: v.Voucher, Raw: have, Hash: identity.Hash(have)},
	}
	if verdict, err := rules.Next(v, nil); err != nil || verdict != voucher.Already {
		t.Errorf("%v, %v", verdict, err)
	}
}
