// Package wire is how gpufair's records look as bytes: deterministic CBOR with integer keys, size-capped frames and versions.
// It knows no network and no record: who sends what, and what it means, is for the packages above.
package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// Limits of the decoder. A record is a small, flat thing; whoever sends more wants to make us work.
const (
	maxNesting  = 16      // an offer nests 5 deep
	maxElements = 1 << 16 // of one array: a snapshot page holds 64 offers, a blob manifest 65,536 chunks at most
	maxPairs    = 256     // of one map: the widest record has under 40 keys
)

// ErrFormat says that bytes are not a record of ours: not CBOR, a type that no record uses, or (strict) a key that the record does not have.
var ErrFormat = errors.New("malformed record")

var (
	encMode     = must(encOptions().EncMode())
	strictMode  = must(decOptions(cbor.ExtraDecErrorUnknownField).DecMode())
	lenientMode = must(decOptions(cbor.ExtraDecErrorNone).DecMode())
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // options are constants: a wrong one is found by the first test
	}
	return v
}

func encOptions() cbor.EncOptions {
	o := cbor.CoreDetEncOptions() // RFC 8949, 4.2.1
	o.NilContainers = cbor.NilContainerAsEmpty
	return o
}

func decOptions(unknown cbor.ExtraDecErrorCond) cbor.DecOptions {
	return cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		ExtraReturnErrors: unknown,
		MaxNestedLevels:   maxNesting,
		MaxArrayElements:  maxElements,
		MaxMapPairs:       maxPairs,
		NaN:               cbor.NaNDecodeForbidden,
		Inf:               cbor.InfDecodeForbidden,
		UTF8:              cbor.UTF8RejectInvalid,
	}
}

// Marshal encodes v as core deterministic CBOR (RFC 8949, 4.2.1): the same value always gives the same bytes.
func Marshal(v any) ([]byte, error) {
	b, err := encMode.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return b, nil
}

// UnmarshalStrict decodes a money record: a key that v does not have is an error, because whoever signs money must mean all of it.
func UnmarshalStrict(b []byte, v any) error { return unmarshal(strictMode, b, v) }

// Unmarshal decodes an advert: keys that v does not have are ignored, so that newer peers can say more.
func Unmarshal(b []byte, v any) error { return unmarshal(lenientMode, b, v) }

func unmarshal(m cbor.DecMode, b []byte, v any) error {
	if err := m.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: decode %T: %w", ErrFormat, v, err)
	}
	return nil
}

// Hash is a SHA-256 digest.
type Hash [sha256.Size]byte

// Sum is SHA-256 over the concatenation of domain and parts. Every part must be of a fixed length (a hash, a key, a nonce) or the
// last one, so that no two different lists of parts give the same bytes.
func Sum(domain string, parts ...[]byte) Hash {
	h := sha256.New()
	h.Write([]byte(domain))
	for _, p := range parts {
		h.Write(p)
	}
	return Hash(h.Sum(nil))
}

// IsZero reports whether h was never set.
func (h Hash) IsZero() bool { return h == Hash{} }

// String is h in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Short is the first 12 hex digits: enough for people, never for programs.
func (h Hash) Short() string { return hex.EncodeToString(h[:6]) }

// MarshalText gives h in hex, for JSON and config files.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads h from hex.
func (h *Hash) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(h) {
		return fmt.Errorf("hash %q: want 64 hex digits", text)
	}
	copy(h[:], b)
	return nil
}

// ParseHash reads a hash from hex.
func ParseHash(s string) (Hash, error) {
	var h Hash
	err := h.UnmarshalText([]byte(s))
	return h, err
}

// UnmarshalCBOR reads a byte string of exactly 32 bytes. (The decoder itself would pad a short one with zeros.)
func (h *Hash) UnmarshalCBOR(b []byte) error { return Fixed(h[:], b) }

// Fixed decodes the CBOR byte string b into dst and refuses any other length: the keys and hashes of records are never padded or cut.
func Fixed(dst, b []byte) error {
	const byteString = 2 // major type of RFC 8949; the decoder would take an array of small numbers too
	if len(b) == 0 || b[0]>>5 != byteString {
		return fmt.Errorf("%w: not a byte string", ErrFormat)
	}
	var got []byte
	if err := strictMode.Unmarshal(b, &got); err != nil {
		return err
	}
	if len(got) != len(dst) {
		return fmt.Errorf("%w: %d bytes where %d belong", ErrFormat, len(got), len(dst))
	}
	copy(dst, got)
	return nil
}
