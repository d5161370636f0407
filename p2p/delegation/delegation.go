// Package delegation knows which device acts for which account, and which does no longer: a bounded directory of verified delegations by
// hash, the highest revocation of each device, and the conversation that asks a peer for those that a record names. It has no disk of its
// own, and refuses to know what a record means.
package delegation

import (
	"context"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation and of what is remembered.
const (
	MaxHashes  = 16      // of one request: more than the devices of an account
	remembered = 1 << 14 // delegations: more than the live offers of a shard; 16 MiB at most
	maxMessage = MaxHashes*(identity.MaxDelegation+8) + MaxRevocations*(identity.MaxRevocation+8) + 256
)

// ErrUnknown says that nobody asked has a delegation of that hash.
var ErrUnknown = errors.New("unknown delegation")

// Ask is the request: delegations by the hash of their envelope. With no hashes it is an exchange of revocations.
type Ask struct {
	Hashes      []wire.Hash `cbor:"1,keyasint,omitempty"` // at most [MaxHashes]
	Revocations [][]byte    `cbor:"2,keyasint,omitempty"` // of the asker's account; at most [MaxRevocations]
}

// Answer lists the envelopes that the peer has, in no order; hashes it does not know are left out.
type Answer struct {
	Delegations [][]byte `cbor:"1,keyasint,omitempty"`
	Revocations [][]byte `cbor:"2,keyasint,omitempty"` // of the accounts that were asked about and the answerer's own; at most [MaxRevocations]
}

// entry is a verified delegation and its bytes.
type entry struct {
	d   identity.Delegation
	raw []byte
}

// Directory remembers verified delegations, the least recently used forgotten first; the device's own never. Safe for concurrent use.
type Directory struct {
	net      p2p.Network
	protocol p2p.Protocol
	own      entry
	ownHash  wire.Hash
	known    *lru.Cache[wire.Hash, entry]
	fetches  singleflight.Group
	revoked  *revocations
}

// New makes a directory that knows the device's own delegation and asks peers over protocol.
func New(n p2p.Network, protocol p2p.Protocol, own *identity.Device) (*Directory, error) {
	return newSized(n, protocol, own, remembered)
}

func newSized(n p2p.Network, protocol p2p.Protocol, own *identity.Device, size int) (*Directory, error) {
	d, err := identity.OpenDelegation(own.Delegation())
	if err != nil {
		return nil, fmt.Errorf("own delegation: %w", err)
	}
	known, err := lru.New[wire.Hash, entry](size)
	if err != nil {
		return nil, fmt.Errorf("delegations: %w", err)
	}
	revoked, err := newRevocations()
	if err != nil {
		return nil, err
	}
	return &Directory{
		net: n, protocol: protocol, own: entry{d: d, raw: own.Delegation()}, ownHash: own.DelegationHash(), known: known, revoked: revoked,
	}, nil
}

// Limits is what the protocol may cost.
func Limits() p2p.Limits { return p2p.Limits{Streams: 64, PeerStreams: 4, Idle: 30 * time.Second} }

// Handler answers other peers from what is remembered; it asks nobody on their behalf.
func (d *Directory) Handler() p2p.Handler {
	return p2p.Answer(maxMessage, func(ctx context.Context, from identity.PeerID, ask Ask) (Answer, error) {
		if len(ask.Hashes) > MaxHashes {
			return Answer{}, p2p.Errorf(p2p.KindBadRequest, "asked for %d delegations, want at most %d", len(ask.Hashes), MaxHashes)
		}
		if err := d.hear(ctx, from, ask.Revocations); err != nil {
			return Answer{}, err
		}
		var (
			a        Answer
			accounts []identity.AccountID
		)
		for _, h := range ask.Hashes {
			if e, ok := d.find(h); ok {
				a.Delegations, accounts = append(a.Delegations, e.raw), append(accounts, e.d.Account)
			}
		}
		a.Revocations = d.told(accounts...)
		return a, nil
	})
}

// Add checks a delegation that came beside a record and remembers it.
func (d *Directory) Add(envelope []byte) (identity.Delegation, wire.Hash, error) {
	if len(envelope) > identity.MaxDelegation {
		return identity.Delegation{}, wire.Hash{}, fmt.Errorf("delegation of %d bytes: %w (limit %d)", len(envelope), wire.ErrTooLarge, identity.MaxDelegation)
	}
	h := identity.Hash(envelope)
	if e, ok := d.find(h); ok {
		return e.d, h, nil
	}
	del, err := identity.OpenDelegation(envelope)
	if err != nil {
		return identity.Delegation{}, wire.Hash{}, err
	}
	d.known.Add(h, entry{d: del, raw: envelope})
	d.revoked.follow(del)
	return del, h, nil
}

func (d *Directory) find(h wire.Hash) (entry, bool) {
	if h == d.ownHash {
		return d.own, true
	}
	return d.known.Get(h)
}

// Lookup gives the delegation of that hash: remembered, or fetched from the peer from, who should have it since its record names it.
// The error is [ErrUnknown] when it has not.
func (d *Directory) Lookup(ctx context.Context, from identity.PeerID, h wire.Hash) (identity.Delegation, error) {
	if e, ok := d.find(h); ok {
		return e.d, nil
	}
	// Many records of one peer may come at once; one question is enough. Whoever asked first may give up, so others ask again.
	_, err, shared := d.fetches.Do(string(from[:])+string(h[:]), func() (any, error) { return nil, d.fetch(ctx, from, h) })
	if err != nil && shared && ctx.Err() == nil {
		err = d.fetch(ctx, from, h)
	}
	if err != nil {
		return identity.Delegation{}, fmt.Errorf("delegation %s of %s: %w", h.Short(), from.Short(), err)
	}
	e, ok := d.find(h)
	if !ok {
		return identity.Delegation{}, fmt.Errorf("delegation %s of %s: %w", h.Short(), from.Short(), ErrUnknown)
	}
	return e.d, nil
}

// fetch asks from for h and remembers it. Anything else that comes is a mistake of the peer.
func (d *Directory) fetch(ctx context.Context, from identity.PeerID, h wire.Hash) error {
	var a Answer
	if err := p2p.Call(ctx, d.net, from, d.protocol, Ask{Hashes: []wire.Hash{h}}, &a, maxMessage); err != nil {
		return err
	}
	if err := d.hear(ctx, from, a.Revocations); err != nil {
		return err
	}
	if len(a.Delegations) == 0 {
		return ErrUnknown
	}
	if len(a.Delegations) > 1 || identity.Hash(a.Delegations[0]) != h {
		return fmt.Errorf("%w: the peer sent another one than was asked for", ErrUnknown)
	}
	_, _, err := d.Add(a.Delegations[0])
	return err
}

// Envelope gives the signed bytes of a remembered delegation, to send beside a record. The caller must not change them.
func (d *Directory) Envelope(h wire.Hash) ([]byte, bool) {
	e, ok := d.find(h)
	return e.raw, ok
}

// Account is for whom a device acts, by a delegation that is remembered. It looks through all of them: for people, not for each record.
func (d *Directory) Account(device identity.PeerID) (identity.AccountID, bool) {
	for _, e := range d.known.Values() {
		if e.d.Device == device {
			return e.d.Account, true
		}
	}
	return identity.AccountID{}, false
}
