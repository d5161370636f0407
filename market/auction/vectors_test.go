package auction_test

import (
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

func vectorHash(name string) wire.Hash { return wire.Sum("gpufair/test", []byte(name)) }

// scribe signs records and keeps their vectors.
type scribe struct {
	t                *testing.T
	provider, renter *identity.Device
	list             []identitytest.Vector
}

func (s *scribe) sign(name string, dev *identity.Device, d identity.Domain, body identity.Body) []byte {
	s.t.Helper()
	v, raw := identitytest.Signed(s.t, name, dev, d, body)
	s.list = append(s.list, v)
	return raw
}

// hash is a vector of what is hashed and not signed.
func (s *scribe) hash(name string, h wire.Hash) {
	s.list = append(s.list, identitytest.Vector{Name: name, Hash: h.String()})
}

func (s *scribe) reads(name string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("%s: %v", name, err)
	}
}

// The exact bytes of one record of each kind, for other programs and for our own later ones; written out apart from the helpers of other
// tests: they must never change.
func TestVectors(t *testing.T) {
	s := &scribe{t: t, provider: identitytest.Provider(t).Device, renter: identitytest.Renter(t).Device}
	s.sealedAuction()
	s.spotNotice()
	identitytest.Check(t, "testdata/vectors.json", s.list)
}

func (s *scribe) sealedAuction() {
	provider, renter, sign := s.provider, s.renter, s.sign
	open := sign("open", provider, auction.DomainOpen, auction.Open{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Offer: vectorHash("offer"), Lot: 1, K: 4, MinTerm: 300, MaxTerm: 86400,
		Unit: money.Credit, Reserve: 200_000, Mode: auction.First, Bond: 66_666, Commit: 20, Grace: 3, Reveal: 10, Decline: 60, Rules: 1,
		Nonce: vectorHash("nonce"),
	})
	id := auction.IDOf(open)
	bid, err := auction.Bid{
		Options: []auction.Option{{Quantity: 1, Rate: 300_000}, {Quantity: 2, Rate: 280_000}}, Unit: money.Credit, Term: 3600,
		Needs: vectorHash("needs"), Use: vectorHash("use terms"), Voucher: vectorHash("voucher"), Group: vectorHash("group"),
	}.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	commit := sign("commit", renter, auction.DomainCommit, auction.Commit{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Auction: id,
		Sealed: auction.Seals(id, renter.Account(), bid, vectorHash("bid nonce")), Hold: 65_536, Seq: 1,
	})
	var log auction.Log
	if _, err := log.Append(commit); err != nil {
		s.t.Fatal(err)
	}
	size, root := log.Head()
	sign("receipt", provider, auction.DomainReceipt, auction.Receipt{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Auction: id, Of: auction.OfCommit, Commit: identity.Hash(commit),
		Index: 0, Size: size, Root: root,
	})
	seal := sign("seal", provider, auction.DomainSeal, auction.Seal{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Auction: id, Size: size, Root: root,
	})
	award := sign("award", provider, auction.DomainAward, auction.Award{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Auction: id, Seal: identity.Hash(seal), Opened: []byte{1},
		Wins: []auction.Win{{Leaf: 0, Quantity: 2, Pay: 560_000}},
	})
	decline := sign("decline", renter, auction.DomainDecline, auction.Decline{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Auction: id, Award: identity.Hash(award), Leaf: 0,
	})
	abort := sign("abort", provider, auction.DomainAbort, auction.Abort{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Auction: id, Reason: reason.New(reason.OwnerUsing, "a game"),
	})
	witness := sign("witness", renter, auction.DomainWitness, auction.Witness{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Auction: id, Event: auction.SawSeal, Subject: identity.Hash(seal), After: 20_999,
	})
	opening, err := auction.Opening{Commit: commit, Bid: bid, Nonce: vectorHash("bid nonce")}.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	for name, err := range map[string]error{
		"open": second(auction.ReadOpen(open)), "seal": second(auction.ReadSeal(seal)), "award": second(auction.ReadAward(award)),
		"decline": second(auction.ReadDecline(decline)), "abort": second(auction.ReadAbort(abort)), "witness": second(auction.ReadWitness(witness)),
	} {
		s.reads(name, err)
	}
	_, _, err = auction.DecodeOpening(opening)
	s.reads("opening", err)
	s.hash("SHA-256 of the bid's bytes", identity.Hash(bid))
	s.hash("SHA-256 of the opening's bytes", identity.Hash(opening))
	s.hash("rank of the commit", auction.Rank(root, identity.Hash(commit)))
	s.hash("lease id of the opening", wire.Hash(auction.Opening{Nonce: vectorHash("bid nonce")}.Lease(id, renter.Account())))
}

func (s *scribe) spotNotice() {
	provider, renter, sign := s.provider, s.renter, s.sign
	spot := auction.SpotBid{
		Header: renter.Header(1), Delegation: renter.DelegationHash(), Offer: vectorHash("offer"), Provider: provider.Account(), Lot: 1, Quantity: 2,
		Rate: 150_000, Unit: money.Credit, MinRun: 300, Nonce: vectorHash("spot nonce"), Seq: 2, Needs: vectorHash("needs"),
		Use: vectorHash("use terms"), Voucher: vectorHash("voucher"),
	}
	outbid := sign("outbid", provider, auction.DomainOutbid, auction.Outbid{
		Header: provider.Header(1), Delegation: provider.DelegationHash(), Lease: spot.ID(),
		Challenger: sign("spot bid", renter, auction.DomainSpotBid, spot), Notice: 60,
	})
	_, _, err := auction.ReadOutbid(outbid)
	s.reads("outbid", err)
}

func second[T any](_ T, err error) error { return err }
