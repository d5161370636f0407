package auction_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// party makes the account number n with one device, the same in every run.
func party(tb testing.TB, n int, powers identity.Powers) *identity.Device {
	tb.Helper()
	seed := func(what byte) ed25519.PrivateKey {
		s := sha256.Sum256(binary.BigEndian.AppendUint64([]byte{what}, uint64(n)))
		return ed25519.NewKeyFromSeed(s[:])
	}
	account, device := seed(1), seed(2)
	raw, err := identity.Delegate(account, identity.PeerID(device.Public().(ed25519.PublicKey)), 1, powers, identity.DefaultCap)
	if err != nil {
		tb.Fatal(err)
	}
	dev, err := identity.NewDevice(device, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return dev
}

const sellerNumber = 1 << 20

// hall is an auction run by hand: what each side signs, in a transcript.
type hall struct {
	tb     testing.TB
	seller *identity.Device
	open   auction.Open
	id     auction.ID
	log    auction.Log
	t      auction.Transcript
	hidden []hidden // by leaf
}

// hidden is what a commit hides.
type hidden struct {
	dev   *identity.Device
	bid   []byte
	nonce wire.Hash
}

// anOpen is a valid Open for k GPUs, five minutes at least, a reserve of 0.2, full bond.
func anOpen(tb testing.TB, seller *identity.Device, mode auction.Mode, k uint32) auction.Open {
	tb.Helper()
	o := auction.Open{
		Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Offer: markettest.Hash("offer"), Lot: 1, K: k, MinTerm: 300,
		MaxTerm: 86400, Unit: money.Credit, Reserve: 200_000, Mode: mode, Commit: auction.DefaultCommit, Grace: auction.DefaultGrace,
		Reveal: auction.DefaultReveal, Decline: auction.DefaultDecline, Rules: auction.RulesVersion, Nonce: markettest.Hash("auction"),
	}
	var err error
	if o.Bond, err = o.FullBond(); err != nil {
		tb.Fatal(err)
	}
	return o
}

func newHall(tb testing.TB, mode auction.Mode, k uint32, change ...func(*auction.Open)) *hall {
	tb.Helper()
	h := &hall{tb: tb, seller: party(tb, sellerNumber, identity.AllPowers)}
	h.open = anOpen(tb, h.seller, mode, k)
	for _, f := range change {
		f(&h.open)
	}
	h.t.Open = markettest.Seal(tb, h.seller, auction.DomainOpen, h.open)
	h.id = auction.IDOf(h.t.Open)
	h.knows(h.seller)
	return h
}

// knows puts a device's delegation into the file.
func (h *hall) knows(dev *identity.Device) {
	for _, d := range h.t.Delegations {
		if identity.Hash(d) == dev.DelegationHash() {
			return
		}
	}
	h.t.Delegations = append(h.t.Delegations, dev.Delegation())
}

// aBid is a valid bid with these options.
func aBid(options ...auction.Option) auction.Bid {
	return auction.Bid{
		Options: options, Unit: money.Credit, Term: 3600, Needs: markettest.Hash("needs"), Use: markettest.Hash("use"), Voucher: markettest.Hash("voucher"),
	}
}

func opt(quantity uint32, rate money.Rate) auction.Option {
	return auction.Option{Quantity: quantity, Rate: rate}
}

// bids commits a bid of account n with just the hold that it needs, and gives its leaf.
func (h *hall) bids(n int, options ...auction.Option) uint32 {
	h.tb.Helper()
	return h.commits(party(h.tb, n, identity.AllPowers), aBid(options...), 1)
}

func (h *hall) commits(dev *identity.Device, b auction.Bid, seq uint64) uint32 {
	h.tb.Helper()
	need, err := b.Backing(h.open.MinTerm)
	if err != nil {
		h.tb.Fatal(err)
	}
	raw, err := b.Encode()
	if err != nil {
		h.tb.Fatal(err)
	}
	return h.commitsTo(dev, raw, need, seq)
}

func (h *hall) commitsTo(dev *identity.Device, bid []byte, hold money.Micro, seq uint64) uint32 {
	h.tb.Helper()
	nonce := wire.Sum("gpufair/test", hashBytes(dev.DelegationHash()), []byte{byte(seq)})
	return h.append(markettest.Seal(h.tb, dev, auction.DomainCommit, auction.Commit{
		Header: dev.Header(auction.Version), Delegation: dev.DelegationHash(), Auction: h.id,
		Sealed: auction.Seals(h.id, dev.Account(), bid, nonce), Hold: hold, Seq: seq,
	}), hidden{dev, bid, nonce})
}

func (h *hall) append(commit []byte, what hidden) uint32 {
	h.tb.Helper()
	i, err := h.log.Append(commit)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.t.Leaves, h.hidden = append(h.t.Leaves, commit), append(h.hidden, what)
	if what.dev != nil {
		h.knows(what.dev)
	}
	return i
}

// receipt is the seller's word for leaf i as the log is now.
func (h *hall) receipt(of auction.Of, i uint32) []byte {
	h.tb.Helper()
	size, root := h.log.Head()
	return markettest.Seal(h.tb, h.seller, auction.DomainReceipt, auction.Receipt{
		Header: h.seller.Header(auction.Version), Delegation: h.seller.DelegationHash(), Auction: h.id, Of: of,
		Commit: identity.Hash(h.t.Leaves[i]), Index: i, Size: size, Root: root,
	})
}

func (h *hall) seals() []byte {
	h.tb.Helper()
	size, root := h.log.Head()
	raw := markettest.Seal(h.tb, h.seller, auction.DomainSeal, auction.Seal{
		Header: h.seller.Header(auction.Version), Delegation: h.seller.DelegationHash(), Auction: h.id, Size: size, Root: root,
	})
	h.t.Seals = append(h.t.Seals, raw)
	return raw
}

// opens shows leaves; they must rise.
func (h *hall) opens(leaves ...uint32) {
	for _, i := range leaves {
		h.t.Shown = append(h.t.Shown, auction.Shown{Leaf: i, Bid: h.hidden[i].bid, Nonce: h.hidden[i].nonce})
	}
}

// opensAll seals and shows every leaf but those.
func (h *hall) opensAll(but ...uint32) {
	h.tb.Helper()
	h.seals()
	for i := range h.hidden {
		shown := h.hidden[i].dev != nil
		for _, b := range but {
			shown = shown && b != uint32(i)
		}
		if shown {
			h.opens(uint32(i))
		}
	}
}

// honest is the award that the openings in the transcript give.
func (h *hall) honest() auction.Award {
	h.tb.Helper()
	r, err := auction.Verify(h.t)
	if err != nil {
		h.tb.Fatal(err)
	}
	size, _ := h.log.Head()
	return auction.Award{
		Header: h.seller.Header(auction.Version), Delegation: h.seller.DelegationHash(), Auction: h.id, Seal: identity.Hash(h.t.Seals[0]),
		Opened: auction.OpenedBits(size, func(i uint32) bool { return r.Bids[i].Opened }), Wins: r.Outcome.Wins,
	}
}

func (h *hall) awards(a auction.Award) []byte {
	h.tb.Helper()
	raw := markettest.Seal(h.tb, h.seller, auction.DomainAward, a)
	h.t.Awards = append(h.t.Awards, raw)
	return raw
}

func (h *hall) verify() auction.Report {
	h.tb.Helper()
	r, err := auction.Verify(h.t)
	if err != nil {
		h.tb.Fatal(err)
	}
	return r
}

// finds wants one fault of that kind, whose proof a third peer accepts, with nothing but its bytes.
func (h *hall) finds(k auction.Kind) auction.Fault {
	h.tb.Helper()
	r := h.verify()
	for _, f := range r.Faults {
		if f.Kind != k {
			continue
		}
		raw, err := f.Proof.Encode()
		if err != nil {
			h.tb.Fatal(err)
		}
		found, err := auction.CheckFraud(raw)
		if err != nil {
			h.tb.Fatalf("%s: %v", k, err)
		}
		if found.Kind != k || found.Seller != h.seller.Account() || found.Words == "" || found.Hash != identity.Hash(raw) {
			h.tb.Fatalf("%s: found %+v", k, found)
		}
		return f
	}
	h.tb.Fatalf("no %s among %d faults; missing %q, notes %q", k, len(r.Faults), r.Missing, r.Notes)
	return auction.Fault{}
}

// kept wants a report without a fault and with nothing missing.
func (h *hall) kept() auction.Report {
	h.tb.Helper()
	r := h.verify()
	if r.Verdict() != auction.Kept {
		for _, f := range r.Faults {
			h.tb.Errorf("%s: %s", f.Kind, f.Words)
		}
		h.tb.Fatalf("%s, missing %q", r.Verdict(), r.Missing)
	}
	return r
}

func hashBytes(h wire.Hash) []byte { return h[:] }
