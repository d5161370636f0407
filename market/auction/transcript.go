package auction

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of a transcript.
const (
	MaxTranscript  = 16 << 20 // bytes: a commit, its delegation and its opening have about 850 together
	maxReceipts    = 64
	maxWitnesses   = 256
	maxLeases      = 64
	maxSellers     = 8 // records of the seller of one kind: two are the evidence of a fraud
	maxDelegations = MaxLeaves + maxReceipts + maxWitnesses
)

// Transcript is all that somebody needs to clear an auction again: what a bidder holds at its end, or a seller or auditor on request.
// Nothing in it is believed for its own sake.
type Transcript struct {
	Version     uint16   `cbor:"1,keyasint"`
	Open        []byte   `cbor:"2,keyasint"`            // envelope, as all that follow but Shown
	Seals       [][]byte `cbor:"3,keyasint,omitempty"`  // one; two if the seller signed two
	Leaves      [][]byte `cbor:"4,keyasint,omitempty"`  // commits in the order of the seller's log
	Shown       []Shown  `cbor:"5,keyasint,omitempty"`  // openings by leaf
	Awards      [][]byte `cbor:"6,keyasint,omitempty"`  // the first, and the second if winners declined
	Aborts      [][]byte `cbor:"7,keyasint,omitempty"`  // instead of an award
	Receipts    [][]byte `cbor:"8,keyasint,omitempty"`  // that whoever made the file holds
	Declines    [][]byte `cbor:"9,keyasint,omitempty"`  // on which the second award stands
	Witnesses   [][]byte `cbor:"10,keyasint,omitempty"` // of peers
	Leases      [][]byte `cbor:"11,keyasint,omitempty"` // that followed
	Delegations [][]byte `cbor:"12,keyasint,omitempty"` // of every device that signed
}

// Shown is an opening in a transcript; its commit is the leaf.
type Shown struct {
	Leaf  uint32    `cbor:"1,keyasint"`
	Bid   []byte    `cbor:"2,keyasint"`
	Nonce wire.Hash `cbor:"3,keyasint"`
}

// ErrTranscript says that bytes are not a transcript, or a damaged one.
var ErrTranscript = errors.New("not a whole transcript")

// magic begins every transcript file; the number is the format's version.
const magic = "gpufair-auction/1 "

// sumDomain is of the sum over the body, which tells a damaged file from a false one.
const sumDomain = "gpufair/transcript/1"

// Encode gives the file's bytes: a line of text with the format's name and the sum over the rest, then deterministic CBOR.
func (t Transcript) Encode() ([]byte, error) {
	t.Version = Version
	if err := t.limits(); err != nil {
		return nil, fmt.Errorf("write transcript of auction %s: %w", IDOf(t.Open).Short(), err)
	}
	body, err := wire.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("write transcript of auction %s: %w", IDOf(t.Open).Short(), err)
	}
	out := append([]byte(magic+wire.Sum(sumDomain, body).String()+"\n"), body...)
	if len(out) > MaxTranscript {
		return nil, fmt.Errorf("write transcript of auction %s, %d bytes: %w (limit %d)", IDOf(t.Open).Short(), len(out), wire.ErrTooLarge, MaxTranscript)
	}
	return out, nil
}

// DecodeTranscript reads what [Transcript.Encode] gave, and nothing else. It checks the form only: see [Verify]. Errors wrap
// ErrTranscript.
func DecodeTranscript(raw []byte) (Transcript, error) {
	if len(raw) > MaxTranscript {
		return Transcript{}, fmt.Errorf("read %d bytes: %w: the limit is %d", len(raw), ErrTranscript, MaxTranscript)
	}
	head, body, whole := bytes.Cut(raw, []byte("\n"))
	sum, ours := strings.CutPrefix(string(head), magic)
	switch {
	case !whole || !ours:
		return Transcript{}, fmt.Errorf("read the first line: %w: it does not begin with %q; another release may have made it", ErrTranscript, magic)
	case sum != wire.Sum(sumDomain, body).String():
		return Transcript{}, fmt.Errorf("compare the sum: %w: bytes were changed or are missing; ask for the file again", ErrTranscript)
	}
	var t Transcript
	if err := wire.UnmarshalStrict(body, &t); err != nil {
		return Transcript{}, fmt.Errorf("%w: %w", ErrTranscript, err)
	}
	if t.Version != Version {
		return Transcript{}, fmt.Errorf("%w: version %d: %w", ErrTranscript, t.Version, identity.ErrVersion)
	}
	if err := t.limits(); err != nil {
		return Transcript{}, fmt.Errorf("%w: %w", ErrTranscript, err)
	}
	if again, err := wire.Marshal(t); err != nil || !bytes.Equal(again, body) {
		return Transcript{}, fmt.Errorf("%w: it is not in its one form", ErrTranscript)
	}
	return t, nil
}

// limits checks how much of everything there is.
func (t Transcript) limits() error {
	for _, l := range []struct {
		what       string
		list       [][]byte
		most, size int
	}{
		{"opens", [][]byte{t.Open}, 1, MaxOpen},
		{"seals", t.Seals, maxSellers, MaxSeal},
		{"leaves", t.Leaves, MaxLeaves, MaxCommit},
		{"awards", t.Awards, maxSellers, MaxAward},
		{"aborts", t.Aborts, maxSellers, MaxAbort},
		{"receipts", t.Receipts, maxReceipts, MaxReceipt},
		{"declines", t.Declines, MaxK, MaxDecline},
		{"witnesses", t.Witnesses, maxWitnesses, MaxWitness},
		{"leases", t.Leases, maxLeases, market.MaxLease},
		{"delegations", t.Delegations, maxDelegations, market.MaxDelegation},
	} {
		if len(l.list) > l.most {
			return fmt.Errorf("%d %s, at most %d", len(l.list), l.what, l.most)
		}
		for _, raw := range l.list {
			if len(raw) > l.size {
				return fmt.Errorf("%s of %d bytes, at most %d", l.what, len(raw), l.size)
			}
		}
	}
	for i, s := range t.Shown {
		switch {
		case int(s.Leaf) >= len(t.Leaves) || (i > 0 && s.Leaf <= t.Shown[i-1].Leaf):
			return fmt.Errorf("openings are not in the order of their leaves")
		case len(s.Bid) > MaxBid:
			return fmt.Errorf("bid of %d bytes, at most %d", len(s.Bid), MaxBid)
		}
	}
	return nil
}

// Opening is the opening of s as it travelled.
func (t Transcript) Opening(s Shown) Opening {
	return Opening{Commit: t.Leaves[s.Leaf], Bid: s.Bid, Nonce: s.Nonce}
}
