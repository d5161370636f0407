package identity

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/record"

	"github.com/gpufair/gpufair/p2p/wire"
)

// Domain separates what a signature means: a signature made for one kind of record never verifies as another. One string per kind,
// listed with its record in docs/protocol.md and never used again for anything else.
type Domain string

// MaxEnvelope is the largest envelope that [Open] reads. The largest record is an offer of 2 KiB; a settlement of 256 lanes has 24 KiB.
const MaxEnvelope = 32 << 10

var (
	// ErrSignature says that an envelope was not signed by the key it names, or for another domain.
	ErrSignature = errors.New("bad signature")
	// ErrSigner says that an envelope is signed, but by another device than its body names.
	ErrSigner = errors.New("signed by another key than the record names")
	// ErrVersion says that a record is of a version that this program does not know.
	ErrVersion = errors.New("unknown record version")
)

// Header opens the body of every signed record: keys 1 to 3. Key 4 is kept in every kind for the hash of the signer's delegation.
type Header struct {
	Version uint16    `cbor:"1,keyasint"` // of this kind of record, from 1
	Account AccountID `cbor:"2,keyasint"`
	Device  PeerID    `cbor:"3,keyasint"` // must be the envelope's signer
}

// Head gives the header itself, so that every record that embeds one is a [Body].
func (h Header) Head() Header { return h }

// Body is a record that can be signed: a struct that embeds [Header].
type Body interface{ Head() Header }

// payload is what libp2p's record package needs to seal and open bytes of ours.
type payload struct {
	domain Domain
	body   []byte
}

func (p *payload) Domain() string                 { return string(p.domain) }
func (p *payload) Codec() []byte                  { return []byte(p.domain) }
func (p *payload) MarshalRecord() ([]byte, error) { return p.body, nil }
func (p *payload) UnmarshalRecord(b []byte) error { p.body = b; return nil }

func seal(key crypto.PrivKey, d Domain, body any) ([]byte, error) {
	b, err := wire.Marshal(body)
	if err != nil {
		return nil, err
	}
	env, err := record.Seal(&payload{domain: d, body: b}, key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", d, err)
	}
	raw, err := env.Marshal()
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", d, err)
	}
	if len(raw) > MaxEnvelope {
		return nil, fmt.Errorf("sign %s: %d bytes: %w (limit %d)", d, len(raw), wire.ErrTooLarge, MaxEnvelope)
	}
	return raw, nil
}

// open checks an envelope's signature for domain d and gives the signed bytes and the raw Ed25519 key that signed them.
func open(d Domain, raw []byte) (body []byte, signer [32]byte, err error) {
	if len(raw) > MaxEnvelope {
		return nil, signer, fmt.Errorf("open %s: %d bytes: %w (limit %d)", d, len(raw), wire.ErrTooLarge, MaxEnvelope)
	}
	p := &payload{domain: d}
	env, err := record.ConsumeTypedEnvelope(raw, p)
	if err != nil {
		return nil, signer, fmt.Errorf("open %s: %w: %w", d, ErrSignature, err)
	}
	if string(env.PayloadType) != string(d) {
		return nil, signer, fmt.Errorf("open %s: %w: it is a %q", d, ErrSignature, env.PayloadType)
	}
	// The hash of an envelope names it, so one signature must not have two envelopes: protobuf would let anybody add fields.
	if again, err := env.Marshal(); err != nil || !bytes.Equal(again, raw) {
		return nil, signer, fmt.Errorf("open %s: %w: the envelope is not in its one form", d, ErrSignature)
	}
	key, err := env.PublicKey.Raw()
	if err != nil || env.PublicKey.Type() != crypto.Ed25519 || len(key) != len(signer) {
		return nil, signer, fmt.Errorf("open %s: %w: its key is not Ed25519", d, ErrSignature)
	}
	return p.body, [32]byte(key), nil
}

// OpenMoney checks and decodes a money record (accept, lease, voucher, receipt, end, settlement …) of the given version: unknown
// keys are an error. T embeds [Header]; the envelope's signer must be the device that the header names. Whether the account let
// that device do so is for [Delegation.Allows].
func OpenMoney[T Body](d Domain, version uint16, raw []byte) (T, error) {
	return openBody[T](d, raw, wire.UnmarshalStrict, func(v uint16) bool { return v == version })
}

// OpenAdvert checks and decodes an advert (offer, heartbeat, demand): unknown keys are ignored, and so are later versions, which
// may only add keys.
func OpenAdvert[T Body](d Domain, version uint16, raw []byte) (T, error) {
	return openBody[T](d, raw, wire.Unmarshal, func(v uint16) bool { return v >= version })
}

func openBody[T Body](d Domain, raw []byte, decode func([]byte, any) error, known func(uint16) bool) (T, error) {
	var zero, v T
	body, signer, err := open(d, raw)
	if err != nil {
		return zero, err
	}
	if err := decode(body, &v); err != nil {
		return zero, fmt.Errorf("open %s: %w", d, err)
	}
	h := v.Head()
	switch {
	case !known(h.Version):
		return zero, fmt.Errorf("open %s: version %d: %w: the peer runs another release", d, h.Version, ErrVersion)
	case h.Device != PeerID(signer):
		return zero, fmt.Errorf("open %s: %w", d, ErrSigner)
	}
	return v, nil
}

// Hash names a signed record by the exact bytes that travelled.
func Hash(envelope []byte) wire.Hash { return wire.Sum("", envelope) }
