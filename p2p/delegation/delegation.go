// Package delegation knows which device acts for which account: a bounded directory of verified delegations by hash, and the
// conversation that asks a peer for those that a record names. It keeps nothing on disk, and refuses to know what a record means.
package delegation

import (
	"context"
	"errors"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation.
const (
	MaxHashes     = 16  // of one request: more than one page of offers from one peer ever names anew
	MaxDelegation = 512 // bytes of a sealed delegation; ours have under 300
	maxMessage    = MaxHashes*(MaxDelegation+8) + 256
)

// ErrUnknown says that nobody asked has a delegation of that hash.
var ErrUnknown = errors.New("unknown delegation")

// Ask is the request: delegations by the hash of their envelope.
type Ask struct {
	Hashes []wire.Hash `cbor:"1,keyasint"` // at most [MaxHashes]
}

// Answer lists the envelopes that the peer has, in no order; hashes it does not know are left out.
type Answer struct {
	Delegations [][]byte `cbor:"1,keyasint"`
}

// Directory remembers verified delegations, the least recently used forgotten first; own ones never. Safe for concurrent use.
type Directory struct{}

// New makes a directory that knows the device's own delegation and asks peers over protocol.
func New(n p2p.Network, protocol p2p.Protocol, own *identity.Device) (*Directory, error) {
	return nil, errors.New("not built yet")
}

// Limits is what the protocol may cost.
func Limits() p2p.Limits { return p2p.Limits{Streams: 64, PeerStreams: 4, Idle: 30 * time.Second} }

// Handler answers other peers.
func (d *Directory) Handler() p2p.Handler { return nil }

// Add checks a delegation that came beside a record and remembers it.
func (d *Directory) Add(envelope []byte) (identity.Delegation, wire.Hash, error) {
	return identity.Delegation{}, wire.Hash{}, errors.New("not built yet")
}

// Lookup gives the delegation of that hash: remembered, or fetched from the peer from, who should have it since its record names it.
// The error is [ErrUnknown] when it has not.
func (d *Directory) Lookup(ctx context.Context, from identity.PeerID, h wire.Hash) (identity.Delegation, error) {
	return identity.Delegation{}, errors.New("not built yet")
}

// Envelope gives the signed bytes of a remembered delegation, to send beside a record.
func (d *Directory) Envelope(h wire.Hash) ([]byte, bool) { return nil, false }
