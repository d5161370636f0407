package negotiate

import (
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation about auctions.
const (
	maxAsk      = work.MaxMessage // bytes of a question and of an answer
	partSize    = 96 << 10        // bytes of a transcript in one answer
	maxNews     = 4 << 10         // bytes of a message on the topic
	floorIdle   = 30 * time.Second
	floorStream = 128
	peerStream  = 8
	askRate     = 50 // questions a second that one peer gets answered
	askBurst    = 200
	newsRate    = 200 // messages a second of one forwarding peer: a commit each of 4,000 bidders in one window
	newsBurst   = 1000
	openRate    = 4 // new auctions a second of one seller that are remembered
	openBurst   = 512
)

// AuctionsTopic is the gossip topic on which a network's auctions are announced.
func AuctionsTopic(network string) string { return fmt.Sprintf("/gpufair/%s/auctions/1", network) }

// newsKind is what a message on the topic carries. Kinds are never renumbered.
type newsKind uint8

const (
	newsOpen   newsKind = 1
	newsCommit newsKind = 2
	newsSeal   newsKind = 3
	newsAward  newsKind = 4
	newsAbort  newsKind = 5
	newsFraud  newsKind = 6
)

// news is a message on the topic.
type news struct {
	Kind       newsKind `cbor:"1,keyasint"`
	Envelope   []byte   `cbor:"2,keyasint"`
	Delegation []byte   `cbor:"3,keyasint,omitempty"` // of the signer of an Open or a Commit
}

// want is what a question about an auction asks for. They are never renumbered.
type want uint8

const (
	wantOpen       want = 1 // the auction of a lot that runs now, or that the seller opens for whoever asks
	wantCommit     want = 2 // take this commit
	wantSeal       want = 3 // the Seal, and of the seller the proof of a commit under it
	wantOpening    want = 4 // take this opening
	wantDecline    want = 5 // take this decline
	wantTranscript want = 6 // a part of the file
	wantLease      want = 7 // the lease that a win made
)

// floorAsk is a question on work.ProtoAuction.
type floorAsk struct {
	Want       want        `cbor:"1,keyasint"`
	Auction    auction.ID  `cbor:"2,keyasint"`           // zero of wantOpen
	Record     []byte      `cbor:"3,keyasint,omitempty"` // what is to be taken
	Delegation []byte      `cbor:"4,keyasint,omitempty"` // of the signer of a commit or decline
	Voucher    []byte      `cbor:"5,keyasint,omitempty"` // beside an opening: the opening voucher that its bid names
	Needs      *work.Needs `cbor:"6,keyasint,omitempty"` // beside an opening: those that its bid names
	Hash       wire.Hash   `cbor:"7,keyasint"`           // of a commit (wantSeal), an offer (wantOpen), a lease's id (wantLease)
	Lot        uint8       `cbor:"8,keyasint,omitempty"` // of wantOpen
	From       uint32      `cbor:"9,keyasint,omitempty"` // wantTranscript: bytes that the asker has
}

// floorAnswer is what is known.
type floorAnswer struct {
	Record     []byte      `cbor:"1,keyasint,omitempty"` // receipt, Seal, Open or lease
	Delegation []byte      `cbor:"2,keyasint,omitempty"` // of an Open's or a lease's signer
	Leaf       uint32      `cbor:"3,keyasint,omitempty"` // of the commit under the Seal
	Path       []wire.Hash `cbor:"4,keyasint,omitempty"` // its inclusion proof
	Proven     bool        `cbor:"5,keyasint,omitempty"` // leaf and path are there
	Part       []byte      `cbor:"6,keyasint,omitempty"` // of the transcript
	Size       uint32      `cbor:"7,keyasint,omitempty"` // of the whole transcript
	Elapsed    uint64      `cbor:"8,keyasint,omitempty"` // milliseconds since the Open, by the seller's clock
}

// KeptLeaf is a commit in a seller's log.
type KeptLeaf struct{ Commit, Delegation []byte }

// KeptShown is an opening that came, with what a lease of it needs.
type KeptShown struct {
	auction.Shown
	Voucher []byte      // empty for a bid that is none
	Needs   *work.Needs // nil for a bid that is none
}

// AuctionHead is the part of an auction that changes with its stage. Times are Unix milliseconds; 0: not yet.
type AuctionHead struct {
	Open        []byte            `cbor:"1,keyasint"`
	Seals       [][]byte          `cbor:"2,keyasint,omitempty"`
	Awards      [][]byte          `cbor:"3,keyasint,omitempty"`
	Aborts      [][]byte          `cbor:"4,keyasint,omitempty"`
	Declines    [][]byte          `cbor:"5,keyasint,omitempty"`
	Delegations [][]byte          `cbor:"6,keyasint,omitempty"` // the seller's, and those of winners that declined
	Opened      int64             `cbor:"7,keyasint"`
	Sealed      int64             `cbor:"8,keyasint"`
	Awarded     int64             `cbor:"9,keyasint"`
	Sold        bool              `cbor:"10,keyasint"`           // every winner has its lease, or the reason why not
	Closed      bool              `cbor:"11,keyasint"`           // every hold is posted or void: nothing changes any more
	Unsold      map[uint32]string `cbor:"12,keyasint,omitempty"` // winning leaf: the code of why it got no lease
}

// KeptAuction is an auction as a seller stores it.
type KeptAuction struct {
	Head   AuctionHead
	Leaves []KeptLeaf  // in the order of the log
	Shown  []KeptShown // by leaf
}

// Transcript puts the stored parts together; what is shared with k is never changed.
func (k KeptAuction) Transcript() auction.Transcript {
	h := k.Head
	t := auction.Transcript{Open: h.Open, Seals: h.Seals, Awards: h.Awards, Aborts: h.Aborts, Declines: h.Declines, Delegations: h.Delegations}
	known := map[wire.Hash]bool{}
	for _, d := range h.Delegations {
		known[identity.Hash(d)] = true
	}
	t.Delegations = t.Delegations[:len(t.Delegations):len(t.Delegations)]
	for _, l := range k.Leaves {
		t.Leaves = append(t.Leaves, l.Commit)
		if d := identity.Hash(l.Delegation); !known[d] {
			known[d] = true
			t.Delegations = append(t.Delegations, l.Delegation)
		}
	}
	for _, s := range k.Shown {
		t.Shown = append(t.Shown, s.Shown)
	}
	return t
}

// times are the head's times as the machine has them.
func (h AuctionHead) times() Times {
	at := func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms)
	}
	return Times{Opened: at(h.Opened), Sealed: at(h.Sealed), Awarded: at(h.Awarded)}
}

// Posted is an amount of a commit's hold that becomes a debt.
type Posted struct {
	Commit wire.Hash // the commit's envelope, by which its hold is named
	Amount money.Micro
}

// auctionLimits is what the conversation may cost.
func auctionLimits() p2p.Limits {
	return p2p.Limits{Streams: floorStream, PeerStreams: peerStream, Idle: floorIdle}
}
