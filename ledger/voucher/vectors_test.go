package voucher_test

import (
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The exact bytes of one record of each kind, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	provider, renter := identitytest.Provider(t).Device, identitytest.Renter(t).Device
	hash := func(s string) wire.Hash { return wire.Sum("gpufair/test", []byte(s)) }
	ch := ledger.Channel{Renter: renter.Account(), Provider: provider.Account(), Unit: money.Credit, Epoch: 1}
	lane := ledger.Lane(hash("lane"))
	open := voucher.Voucher{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Channel: ch, Lane: lane, Resource: "device-second",
		Segments: hash("no segments"), Checkpoint: []byte("a signed note\n"),
	}
	opening, openingRaw := identitytest.Signed(t, "opening voucher", renter, voucher.DomainVoucher, open)
	next := open
	next.Seq, next.Amount, next.Quantity, next.Segments, next.Prev = 1, 1_166, 84_000, hash("segments"), identity.Hash(openingRaw)
	second, secondRaw := identitytest.Signed(t, "voucher", renter, voucher.DomainVoucher, next)
	receipt, receiptRaw := identitytest.Signed(t, "receipt", provider, voucher.DomainReceipt, voucher.Receipt{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Voucher: identity.Hash(secondRaw), Checkpoint: []byte("another note\n"),
		Evidence: hash("evidence"),
	})
	terms := voucher.Settlement{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Channel: ch.AllEpochs(), Nonce: hash("nonce"), Amount: 1_166, Method: "manual",
		Reference: "invoice 7", Lanes: []voucher.LaneAmount{{Lane: lane, Amount: 1_166}}, Time: 1_796_029_200_000,
	}
	proposal, proposalRaw := identitytest.Signed(t, "settlement, proposed by the renter", renter, voucher.DomainSettlement, terms)
	terms.Header, terms.Delegation, terms.Proposal = provider.Header(1), provider.DelegationHash(), identity.Hash(proposalRaw)
	counter, counterRaw := identitytest.Signed(t, "settlement, countersigned by the provider", provider, voucher.DomainSettlement, terms)

	allowance, allowanceRaw := identitytest.Signed(t, "allowance", renter, voucher.DomainAllowance, voucher.Allowance{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Channel: ch, Lane: lane, Amount: 500_000, Until: 1_796_050_800_000,
	})
	if _, err := voucher.OpenAllowance(allowanceRaw); err != nil {
		t.Error(err)
	}
	dispute, disputeRaw := identitytest.Signed(t, "dispute", renter, voucher.DomainDispute, voucher.Dispute{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Lane: lane, Channel: ch, Voucher: identity.Hash(secondRaw), Amount: 1_166,
		Receipt: identity.Hash(receiptRaw), Reason: "the card was throttled", Time: 1_796_029_200_000, Until: 1_797_238_800_000, Checkpoint: []byte("a signed note\n"),
	})
	less := voucher.CreditNote{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Lane: lane, Channel: ch, Amount: 583, Time: 1_796_115_600_000,
	}
	note, noteRaw := identitytest.Signed(t, "credit note, proposed by the provider", provider, voucher.DomainCreditNote, less)
	less.Header, less.Delegation, less.Proposal = renter.Header(1), renter.DelegationHash(), identity.Hash(noteRaw)
	agreed, agreedRaw := identitytest.Signed(t, "credit note, countersigned by the renter", renter, voucher.DomainCreditNote, less)
	if _, err := voucher.OpenDispute(disputeRaw); err != nil {
		t.Error(err)
	}
	for _, raw := range [][]byte{noteRaw, agreedRaw} {
		if _, err := voucher.OpenCreditNote(raw); err != nil {
			t.Error(err)
		}
	}
	for _, raw := range [][]byte{openingRaw, secondRaw} {
		if _, err := voucher.Open(raw); err != nil {
			t.Error(err)
		}
	}
	if _, err := voucher.OpenReceipt(receiptRaw); err != nil {
		t.Error(err)
	}
	for _, raw := range [][]byte{proposalRaw, counterRaw} {
		if _, err := voucher.OpenSettlement(raw); err != nil {
			t.Error(err)
		}
	}
	identitytest.Check(t, "testdata/vectors.json", []identitytest.Vector{opening, second, receipt, proposal, counter, allowance, dispute, note, agreed})
}
