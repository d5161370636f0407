package identity

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainSuccession is the domain of [Succession].
const DomainSuccession Domain = "gpufair/succession/1"

// MaxSuccessions is how often an account's key may be changed: each change travels with every later delegation.
const MaxSuccessions = 4

var (
	// ErrSuccession says that a change of an account's key does not follow from the key before, or not with both signatures.
	ErrSuccession = errors.New("not a change of the account's key")
	// ErrReplaced says that a delegation or revocation is signed by a key that the account has replaced; it wraps [ErrPower].
	ErrReplaced = fmt.Errorf("%w: signed by a key that the account has replaced", ErrPower)
	// ErrTwoKeys says that one key of an account named two keys to follow it: a thief has it, and nobody can tell which one is the
	// owner's. It wraps [ErrPower].
	ErrTwoKeys = fmt.Errorf("%w: two keys claim to be the account's next one, both signed by the one before", ErrPower)
)

// Signature is an Ed25519 signature.
type Signature [ed25519.SignatureSize]byte

// UnmarshalCBOR reads exactly 64 bytes.
func (s *Signature) UnmarshalCBOR(b []byte) error { return wire.Fixed(s[:], b) }

// Succession is one change of an account's key: the key before says which one follows it, and that one agrees. Both sign the same bytes:
// the domain, the account, the number of changes before (4 bytes, big-endian), the key before and the next one.
type Succession struct {
	Next AccountID `cbor:"1,keyasint"` // the key that signs for the account from now on; the account keeps its name
	Old  Signature `cbor:"2,keyasint"` // by the key before
	New  Signature `cbor:"3,keyasint"` // by Next
}

// Chain is every change of an account's key, the oldest first. An account's name is its first key, so an empty chain means that key.
type Chain []Succession

func successionText(account AccountID, number int, before, next AccountID) []byte {
	b := append([]byte(DomainSuccession), account[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(number))
	return append(append(b, before[:]...), next[:]...)
}

// Key is the key that signs for account, after a check of every change. Errors wrap ErrSuccession.
func (c Chain) Key(account AccountID) (AccountID, error) {
	if len(c) > MaxSuccessions {
		return AccountID{}, fmt.Errorf("%w: %d changes, at most %d", ErrSuccession, len(c), MaxSuccessions)
	}
	key := account
	for i, s := range c {
		text := successionText(account, i, key, s.Next)
		if s.Next == key || !ed25519.Verify(key[:], text, s.Old[:]) || !ed25519.Verify(s.Next[:], text, s.New[:]) {
			return AccountID{}, fmt.Errorf("%w: number %d of account %s", ErrSuccession, i+1, account.Short())
		}
		key = s.Next
	}
	return key, nil
}

// Relation is how one chain of an account stands to another of the same account.
type Relation uint8

// The relations.
const (
	SameKey  Relation = iota
	NewerKey          // it goes on where the other ends
	OlderKey          // the other goes on where it ends
	Forked            // one key named two to follow it
)

// Against compares c with another chain of the same account. Two signatures for one change are no difference.
func (c Chain) Against(other Chain) Relation {
	for i := range min(len(c), len(other)) {
		if c[i].Next != other[i].Next {
			return Forked
		}
	}
	switch {
	case len(c) > len(other):
		return NewerKey
	case len(c) < len(other):
		return OlderKey
	}
	return SameKey
}

// Authority is what signs for an account: its key, and how it came to be that.
type Authority struct {
	Account AccountID
	Chain   Chain
	Key     ed25519.PrivateKey
}

// FirstKey is the authority of an account whose key was never changed.
func FirstKey(key ed25519.PrivateKey) Authority {
	return Authority{Account: AccountID(key.Public().(ed25519.PublicKey)), Key: key}
}

// Succeed names next as the account's key from now on, with both signatures.
func (a Authority) Succeed(next ed25519.PrivateKey) (Authority, error) {
	before, err := a.Chain.Key(a.Account)
	if err != nil {
		return Authority{}, err
	}
	if len(a.Chain) >= MaxSuccessions {
		return Authority{}, fmt.Errorf("%w: the key was changed %d times, and that is the most", ErrSuccession, len(a.Chain))
	}
	if !holds(a.Key, before) {
		return Authority{}, fmt.Errorf("%w: the key that is here is not the account's", ErrSuccession)
	}
	s := Succession{Next: AccountID(next.Public().(ed25519.PublicKey))}
	text := successionText(a.Account, len(a.Chain), before, s.Next)
	s.Old, s.New = Signature(ed25519.Sign(a.Key, text)), Signature(ed25519.Sign(next, text))
	out := Authority{Account: a.Account, Chain: append(a.Chain[:len(a.Chain):len(a.Chain)], s), Key: next}
	_, err = out.Chain.Key(out.Account)
	return out, err
}

// version is of the records that an authority signs: only the second one has a chain.
func (a Authority) version() uint16 {
	if len(a.Chain) > 0 {
		return 2
	}
	return 1
}

func (a Authority) seal(domain Domain, body any) ([]byte, error) {
	priv, err := crypto.UnmarshalEd25519PrivateKey(a.Key)
	if err != nil {
		return nil, fmt.Errorf("account key: %w", err)
	}
	return seal(priv, domain, body)
}

// Delegate signs a delegation of device.
func (a Authority) Delegate(device PeerID, serial uint64, powers Powers, limit uint64) ([]byte, error) {
	return a.seal(DomainDelegation, Delegation{
		Header: Header{Version: a.version(), Account: a.Account, Device: device}, Serial: serial, Powers: powers, Cap: limit, Chain: a.Chain,
	})
}

// Revoke signs a revocation of device.
func (a Authority) Revoke(device PeerID, serial uint64, unixMilli int64) ([]byte, error) {
	return a.seal(DomainRevocation, Revocation{
		Header: Header{Version: a.version(), Account: a.Account, Device: device}, Serial: serial, Time: unixMilli, Chain: a.Chain,
	})
}

// checkSigner checks that the record of a header was signed by the key that a chain leads to.
func checkSigner(h Header, c Chain, signer [32]byte) error {
	if h.Version != 1 && h.Version != 2 || (h.Version == 2) != (len(c) > 0) {
		return fmt.Errorf("version %d: %w", h.Version, ErrVersion)
	}
	key, err := c.Key(h.Account)
	if err != nil {
		return err
	}
	if key != AccountID(signer) {
		return ErrSigner
	}
	return nil
}
