// Package identity owns who speaks: the account and device keys, the delegations between them, their names as text, and the
// domain-separated envelopes that every signed record travels in. It knows no record but its own delegation, and no network.
//
// A record names an account and is signed by one of the account's devices (the libp2p host's key) under a [Delegation] that the
// account signed. So the owner's card earns what the owner's laptop spends, and a key copied to a second PC never looks like
// equivocation (spec: ledger, Who signs).
package identity

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/gpufair/gpufair/p2p/wire"
)

// ErrName says that a text is not an account or a peer id.
var ErrName = errors.New("not an identity")

// AccountID is an account's Ed25519 public key. Its text form starts with "gf" and carries a checksum, since people copy it by hand
// into lists of whom to serve.
type AccountID [ed25519.PublicKeySize]byte

const (
	accountPrefix = "gf"
	checksumLen   = 3
)

var accountText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (a AccountID) checksum() []byte {
	sum := sha256.Sum256(append([]byte("gpufair/account-text/1"), a[:]...))
	return sum[:checksumLen]
}

// String is "gf" and the base32 of the key and a 3-byte checksum.
func (a AccountID) String() string {
	return accountPrefix + accountText.EncodeToString(append(a[:], a.checksum()...))
}

// Short is the start of the text form: enough for people, never for programs.
func (a AccountID) Short() string { return a.String()[:10] }

// IsZero reports whether a was never set.
func (a AccountID) IsZero() bool { return a == AccountID{} }

// ParseAccount reads the text form of an account.
func ParseAccount(s string) (AccountID, error) {
	var a AccountID
	rest, ok := strings.CutPrefix(s, accountPrefix)
	b, err := accountText.DecodeString(rest)
	if !ok || err != nil || len(b) != len(a)+checksumLen {
		return a, fmt.Errorf("account %q: %w: want gf and 56 letters or digits, as `identity show` prints it", s, ErrName)
	}
	copy(a[:], b)
	if subtle.ConstantTimeCompare(a.checksum(), b[len(a):]) != 1 {
		return AccountID{}, fmt.Errorf("account %q: %w: its checksum is wrong, so a letter was mistyped; copy it again", s, ErrName)
	}
	if a.String() != s { // base32 skips line ends and a stray last letter
		return AccountID{}, fmt.Errorf("account %q: %w: want exactly what `identity show` prints", s, ErrName)
	}
	return a, nil
}

// MarshalText gives [AccountID.String].
func (a AccountID) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what [ParseAccount] reads.
func (a *AccountID) UnmarshalText(b []byte) (err error) {
	*a, err = ParseAccount(string(b))
	return err
}

// UnmarshalCBOR reads exactly 32 bytes.
func (a *AccountID) UnmarshalCBOR(b []byte) error { return wire.Fixed(a[:], b) }

// PeerID is a device: the Ed25519 public key of its libp2p host. Its text form is libp2p's peer id (12D3KooW…). Devices with other
// kinds of keys are not of our network.
type PeerID [ed25519.PublicKeySize]byte

// String is libp2p's text form.
func (p PeerID) String() string { return p.libp2p().String() }

// Short is the last 8 characters of the text form, as libp2p's own logs show a peer.
func (p PeerID) Short() string {
	s := p.String()
	return s[len(s)-8:]
}

// IsZero reports whether p was never set.
func (p PeerID) IsZero() bool { return p == PeerID{} }

// Libp2p is p in the bytes of libp2p's peer id (an identity multihash).
func (p PeerID) Libp2p() string { return string(p.libp2p()) }

func (p PeerID) libp2p() peer.ID {
	pub, err := crypto.UnmarshalEd25519PublicKey(p[:])
	if err != nil {
		return ""
	}
	id, err := peer.IDFromPublicKey(pub)
	if err != nil {
		return ""
	}
	return id
}

// PeerFromLibp2p reads the bytes of libp2p's peer id.
func PeerFromLibp2p(id string) (PeerID, error) {
	var p PeerID
	pub, err := peer.ID(id).ExtractPublicKey()
	if err != nil {
		return p, fmt.Errorf("peer %q: %w: its id holds no Ed25519 key", peer.ID(id), ErrName)
	}
	raw, err := pub.Raw()
	if err != nil || pub.Type() != crypto.Ed25519 || len(raw) != len(p) {
		return p, fmt.Errorf("peer %q: %w: its key is not Ed25519", peer.ID(id), ErrName)
	}
	copy(p[:], raw)
	return p, nil
}

// ParsePeer reads libp2p's text form of a peer id.
func ParsePeer(s string) (PeerID, error) {
	id, err := peer.Decode(s)
	if err != nil {
		return PeerID{}, fmt.Errorf("peer %q: %w: want 12D3KooW…, as `peers` prints it", s, ErrName)
	}
	return PeerFromLibp2p(string(id))
}

// MarshalText gives [PeerID.String].
func (p PeerID) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what [ParsePeer] reads.
func (p *PeerID) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePeer(string(b))
	return err
}

// UnmarshalCBOR reads exactly 32 bytes.
func (p *PeerID) UnmarshalCBOR(b []byte) error { return wire.Fixed(p[:], b) }
