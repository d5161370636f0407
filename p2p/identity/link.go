package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/crypto"

	"github.com/gpufair/gpufair/p2p/wire"
)

// ErrLink says that a text is no link request and no grant, or one for another device.
var ErrLink = errors.New("not usable here")

// DomainLink is the domain of [LinkRequest].
const DomainLink Domain = "gpufair/link/1"

// LinkRequest is a device's word that it holds its key and wants to act for an account. It names none: whose account lets it in is for
// the person who carries it over. It travels as text only, see [RequestText].
type LinkRequest struct {
	Header // Account is zero
}

// The texts that a person carries from one PC to another: a prefix that says what it is, then base32 of the parts that the reader does
// not know, the signature, and a checksum. The reader makes the envelope again from them and checks its signature.
const (
	requestPrefix = "gflink"  // device 32, signature 64, checksum 3: 165 letters
	grantPrefix   = "gfgrant" // account 32, start of the device 4, serial 8, powers 1, cap 8, changes of the key, signature 64, checksum 3: from 199 letters
	keysPrefix    = "gfkeys"  // account 32, changes of the key, checksum 3
	deviceStart   = 4
	grantLen      = 32 + deviceStart + 8 + 1 + 8 + ed25519.SignatureSize
	successionLen = 32 + 2*ed25519.SignatureSize // next key and both signatures
	maxLinkText   = 2 << 10                      // letters of a text with spaces and line ends; the longest has 1,223
)

// IsRequest reports whether s looks like a [RequestText], [IsGrant] whether it looks like a [GrantText].
func IsRequest(s string) bool { return strings.HasPrefix(tidyText(s), requestPrefix) }

// IsGrant reports whether s looks like a [GrantText].
func IsGrant(s string) bool { return strings.HasPrefix(tidyText(s), grantPrefix) }

// RequestText is what a device that wants to be let in shows: its key, signed by itself, so that nobody asks for a device not his own
// and a mistyped letter is found.
func RequestText(device ed25519.PrivateKey) (string, error) {
	priv, err := crypto.UnmarshalEd25519PrivateKey(device)
	if err != nil {
		return "", fmt.Errorf("device key: %w", err)
	}
	id := PeerID(device.Public().(ed25519.PublicKey))
	raw, err := seal(priv, DomainLink, LinkRequest{Header{Version: 1, Device: id}})
	if err != nil {
		return "", err
	}
	sig, err := signature(raw)
	if err != nil {
		return "", err
	}
	return linkText(requestPrefix, append(id[:], sig...)), nil
}

// ParseRequest reads a [RequestText] and gives the device that asks.
func ParseRequest(s string) (PeerID, error) {
	b, err := parseLinkText("request", requestPrefix, ed25519.PublicKeySize+ed25519.SignatureSize, 0, s)
	if err != nil {
		return PeerID{}, err
	}
	id := PeerID(b[:ed25519.PublicKeySize])
	raw, err := rebuild(id, DomainLink, LinkRequest{Header{Version: 1, Device: id}}, b[ed25519.PublicKeySize:])
	if err != nil {
		return PeerID{}, err
	}
	if _, err := OpenMoney[LinkRequest](DomainLink, 1, raw); err != nil {
		return PeerID{}, fmt.Errorf("link request: %w: %w", ErrLink, err)
	}
	return id, nil
}

// GrantText is a delegation as a person carries it to the device.
func GrantText(delegation []byte) (string, error) {
	d, err := OpenDelegation(delegation)
	if err != nil {
		return "", err
	}
	sig, err := signature(delegation)
	if err != nil {
		return "", err
	}
	b := append(d.Account[:], d.Device[:deviceStart]...)
	b = binary.BigEndian.AppendUint64(b, d.Serial)
	b = append(b, byte(d.Powers))
	b = binary.BigEndian.AppendUint64(b, d.Cap)
	b = d.Chain.append(b)
	return linkText(grantPrefix, append(b, sig...)), nil
}

// ParseGrant reads a [GrantText] on the device that it is for, and gives the delegation as signed and as values.
func ParseGrant(s string, device PeerID) ([]byte, Delegation, error) {
	b, err := parseLinkText("grant", grantPrefix, grantLen, MaxSuccessions, s)
	if err != nil {
		return nil, Delegation{}, err
	}
	d := Delegation{Header: Header{Version: 1, Account: AccountID(b[:32]), Device: device}}
	b = b[32:]
	if !bytes.Equal(b[:deviceStart], device[:deviceStart]) {
		return nil, d, fmt.Errorf("grant: %w: it is for another device than this one, %s", ErrLink, device)
	}
	b = b[deviceStart:]
	d.Serial, d.Powers, d.Cap = binary.BigEndian.Uint64(b), Powers(b[8]), binary.BigEndian.Uint64(b[9:])
	b = b[17:]
	d.Chain, b = parseChain(b)
	if len(d.Chain) > 0 {
		d.Version = 2
	}
	signer, err := d.Chain.Key(d.Account)
	if err != nil {
		return nil, d, fmt.Errorf("grant: %w: %w", ErrLink, err)
	}
	raw, err := rebuild(PeerID(signer), DomainDelegation, d, b)
	if err != nil {
		return nil, d, err
	}
	if d, err = OpenDelegation(raw); err != nil {
		return nil, d, fmt.Errorf("grant: %w: %w", ErrLink, err)
	}
	return raw, d, nil
}

// KeysText is what the recovery phrase of an account whose key was changed must be imported with: the account's name and every change, no
// secret. It is empty where the key was never changed.
func KeysText(dir string) (string, error) {
	dev, err := Load(dir)
	if err != nil {
		return "", err
	}
	d, err := OpenDelegation(dev.Delegation())
	if err != nil || len(d.Chain) == 0 {
		return "", err
	}
	return linkText(keysPrefix, d.Chain.append(append([]byte(nil), d.Account[:]...))), nil
}

// parseKeys reads a [KeysText] for the key of a phrase.
func parseKeys(s string, key ed25519.PrivateKey) (Authority, error) {
	b, err := parseLinkText("keys", keysPrefix, ed25519.PublicKeySize, MaxSuccessions, s)
	if err != nil {
		return Authority{}, err
	}
	a := Authority{Account: AccountID(b[:ed25519.PublicKeySize]), Key: key}
	a.Chain, _ = parseChain(b[ed25519.PublicKeySize:])
	signer, err := a.Chain.Key(a.Account)
	if err == nil && !holds(key, signer) {
		err = errors.New("the phrase is of another key than the last one in it")
	}
	if err != nil {
		return Authority{}, fmt.Errorf("keys of the account: %w: %w", ErrLink, err)
	}
	return a, nil
}

// append adds the changes of a key to the bytes of a text.
func (c Chain) append(b []byte) []byte {
	for _, s := range c {
		b = append(append(append(b, s.Next[:]...), s.Old[:]...), s.New[:]...)
	}
	return b
}

// parseChain reads whole changes from the start of b and gives the rest.
func parseChain(b []byte) (c Chain, rest []byte) {
	for len(b) >= successionLen {
		c = append(c, Succession{
			Next: AccountID(b[:32]), Old: Signature(b[32 : 32+ed25519.SignatureSize]), New: Signature(b[32+ed25519.SignatureSize : successionLen]),
		})
		b = b[successionLen:]
	}
	return c, b
}

// ParsePowers reads a list of powers with commas or bars: "trade,pay".
func ParsePowers(s string) (Powers, error) {
	var p Powers
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == '|' || r == ' ' }) {
		switch word {
		case "trade":
			p |= PowerTrade
		case "pay":
			p |= PowerPay
		case "provide":
			p |= PowerProvide
		default:
			return 0, fmt.Errorf("power %.40q: want some of trade, pay, provide", word)
		}
	}
	if p == 0 {
		return 0, errors.New("no power: want some of trade, pay, provide")
	}
	return p, nil
}

// signature is the last field of an envelope that seal made.
func signature(raw []byte) ([]byte, error) {
	at := len(raw) - ed25519.SignatureSize
	if at < 2 || raw[at-2] != 0x2a || raw[at-1] != ed25519.SignatureSize {
		return nil, fmt.Errorf("%w: its envelope does not end with a signature", ErrSignature)
	}
	return raw[at:], nil
}

// rebuild makes the envelope of a body whose signature came without it: libp2p's record as protobuf, fields 1 key, 2 type, 3 payload, 5
// signature. It proves nothing: [open] does.
func rebuild(signer PeerID, d Domain, body any, sig []byte) ([]byte, error) {
	b, err := wire.Marshal(body)
	if err != nil {
		return nil, err
	}
	raw := append([]byte{0x0a, 36, 0x08, 0x01, 0x12, ed25519.PublicKeySize}, signer[:]...)
	raw = append(binary.AppendUvarint(append(raw, 0x12), uint64(len(d))), d...)
	raw = append(binary.AppendUvarint(append(raw, 0x1a), uint64(len(b))), b...)
	return append(append(raw, 0x2a, ed25519.SignatureSize), sig...), nil
}

func tidyText(s string) string {
	if len(s) > maxLinkText {
		return ""
	}
	return strings.ToLower(strings.Join(strings.Fields(s), ""))
}

func linkChecksum(prefix string, b []byte) []byte {
	sum := sha256.Sum256(append(append([]byte("gpufair/link-text/1"), prefix...), b...))
	return sum[:checksumLen]
}

var linkLetters = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func linkText(prefix string, b []byte) string {
	return prefix + linkLetters.EncodeToString(append(b[:len(b):len(b)], linkChecksum(prefix, b)...))
}

// parseLinkText reads a text of size bytes and of up to so many changes of an account's key more.
func parseLinkText(what, prefix string, size, changes int, s string) ([]byte, error) {
	text := tidyText(s)
	rest, ok := strings.CutPrefix(text, prefix)
	b, err := linkLetters.DecodeString(rest)
	more := len(b) - size - checksumLen
	if !ok || err != nil || more < 0 || more%successionLen != 0 || more/successionLen > changes {
		return nil, fmt.Errorf("link %s: %w: want %s and %d letters or digits, as `identity link` prints it", what, ErrLink, prefix,
			linkLetters.EncodedLen(size+checksumLen))
	}
	body := b[:size+more]
	if subtle.ConstantTimeCompare(linkChecksum(prefix, body), b[size+more:]) != 1 || linkText(prefix, body) != text {
		return nil, fmt.Errorf("link %s: %w: its checksum is wrong, so a letter was mistyped or lost; copy it again", what, ErrLink)
	}
	return body, nil
}
