package history

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	fmtlog "github.com/transparency-dev/formats/log"
	"golang.org/x/mod/sumdb/note"

	"github.com/gpufair/gpufair/p2p/identity"
)

// Origin names one node's log: the device that signs its checkpoints, and the epoch, which rises when a ledger is restored from a
// backup. Its text is gpufair/<peer id>/<epoch>.
type Origin struct {
	Peer  identity.PeerID
	Epoch uint64
}

// String is the origin's text.
func (o Origin) String() string {
	return identity.NotePrefix + o.Peer.String() + "/" + strconv.FormatUint(o.Epoch, 10)
}

// ParseOrigin reads what [Origin.String] writes, and nothing else.
func ParseOrigin(s string) (Origin, error) {
	rest, ok := strings.CutPrefix(s, identity.NotePrefix)
	name, number, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return Origin{}, fmt.Errorf("origin %q: %w: want gpufair/<peer id>/<epoch>", s, ErrCheckpoint)
	}
	p, err := identity.ParsePeer(name)
	if err != nil {
		return Origin{}, fmt.Errorf("origin %q: %w: %w", s, ErrCheckpoint, err)
	}
	epoch, err := strconv.ParseUint(number, 10, 64)
	o := Origin{Peer: p, Epoch: epoch}
	if err != nil || o.String() != s {
		return Origin{}, fmt.Errorf("origin %q: %w: want gpufair/<peer id>/<epoch>", s, ErrCheckpoint)
	}
	return o, nil
}

// Checkpoint says what a log was: its first Size entries have the root Root. Comparable.
type Checkpoint struct {
	Origin Origin
	Size   uint64
	Root   Hash
}

// maxCheckpoint bounds the text: an origin of 80 bytes, a size of 15 and a hash of 44; with signatures, three lines of 200.
const (
	maxCheckpoint = 256
	maxNote       = 1024
)

// Empty is the checkpoint of a log without entries.
func Empty(o Origin) Checkpoint { return Checkpoint{Origin: o, Root: emptyRoot()} }

func emptyRoot() Hash { return sha256.Sum256(nil) }

// Text is the checkpoint as C2SP tlog-checkpoint writes it: origin, size and root on a line each. Records that are signed anyway
// (vouchers, receipts) carry it as it is.
func (c Checkpoint) Text() []byte {
	return fmtlog.Checkpoint{Origin: c.Origin.String(), Size: c.Size, Hash: c.Root[:]}.Marshal()
}

// ParseCheckpoint reads exactly what [Checkpoint.Text] writes: extension lines and other spellings of the same values are refused, so
// that one checkpoint has one text.
func ParseCheckpoint(text []byte) (Checkpoint, error) {
	if len(text) > maxCheckpoint {
		return Checkpoint{}, fmt.Errorf("checkpoint of %d bytes: %w (limit %d)", len(text), ErrCheckpoint, maxCheckpoint)
	}
	var raw fmtlog.Checkpoint
	if _, err := raw.Unmarshal(text); err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint %q: %w: %w", text, ErrCheckpoint, err)
	}
	origin, err := ParseOrigin(raw.Origin)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	if len(raw.Hash) != len(Hash{}) || raw.Size > MaxSize {
		return Checkpoint{}, fmt.Errorf("checkpoint %q: %w: hash of %d bytes, size %d", text, ErrCheckpoint, len(raw.Hash), raw.Size)
	}
	c := Checkpoint{Origin: origin, Size: raw.Size, Root: Hash(raw.Hash)}
	if string(c.Text()) != string(text) {
		return Checkpoint{}, fmt.Errorf("checkpoint %q: %w: it is not written as its own text", text, ErrCheckpoint)
	}
	return c, nil
}

// SignFunc signs a note's text with the key of the origin's peer; see identity.Device.SignNote.
type SignFunc func(text []byte) ([]byte, error)

// signer is a [note.Signer] over a function: the key stays in p2p/identity.
type signer struct {
	note.Verifier
	sign SignFunc
}

func (s signer) Sign(text []byte) ([]byte, error) { return s.sign(text) }

// verifier is the standard Ed25519 verifier (C2SP signed-note, type 1) under the origin's name.
func (o Origin) verifier() (note.Verifier, error) {
	key, err := o.VerifierKey()
	if err != nil {
		return nil, err
	}
	return note.NewVerifier(key)
}

// Sign makes the signed note of c: its text, an empty line and a signature line under the origin's name, which any implementation of
// C2SP signed-note can check with the peer's Ed25519 key.
func (c Checkpoint) Sign(sign SignFunc) ([]byte, error) {
	v, err := c.Origin.verifier()
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	msg, err := note.Sign(&note.Note{Text: string(c.Text())}, signer{Verifier: v, sign: sign})
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint of %s at %d: %w", c.Origin, c.Size, err)
	}
	return msg, nil
}

// Open checks that msg is a checkpoint that peer signed for a log of its own, and gives it. Further signatures (cosignatures) are
// allowed and not looked at: see [OpenCosigned].
func Open(msg []byte, peer identity.PeerID) (Checkpoint, error) {
	cp, _, err := open(msg, peer)
	return cp, err
}
