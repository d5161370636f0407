package history

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/gpufair/gpufair/p2p/identity"
)

// algCosignature is the type of an Ed25519 cosignature's key (C2SP tlog-cosignature).
const algCosignature = 4

const (
	stampSize = 8       // bytes before the signature: Unix time in seconds, big-endian
	maxStamp  = 1 << 40 // seconds: far beyond any clock, and within time.Time's arithmetic
)

// CosignFunc signs a note's text as a witness at a time; see identity.Device.SignCosignature.
type CosignFunc func(text []byte, now time.Time) ([]byte, error)

// WitnessName is the name under which a device cosigns the notes of others: gpufair/<peer id>, without an epoch, since what it says is not
// of its own log.
func WitnessName(p identity.PeerID) string { return identity.NotePrefix + p.String() }

// witness checks cosignatures of a device; it fulfils [note.Verifier].
type witness struct{ peer identity.PeerID }

func (w witness) Name() string { return WitnessName(w.peer) }

func (w witness) KeyHash() uint32 {
	sum := sha256.Sum256(append(append([]byte(w.Name()), '\n', algCosignature), w.peer[:]...))
	return binary.BigEndian.Uint32(sum[:])
}

func (w witness) Verify(text, sig []byte) bool {
	if len(sig) != stampSize+ed25519.SignatureSize {
		return false
	}
	stamp := binary.BigEndian.Uint64(sig)
	return stamp > 0 && stamp < maxStamp && ed25519.Verify(w.peer[:], identity.CosignatureText(text, stamp), sig[stampSize:])
}

// cosigner adds the time; it fulfils [note.Signer].
type cosigner struct {
	witness
	now  time.Time
	sign CosignFunc
}

func (c cosigner) Sign(text []byte) ([]byte, error) {
	sig, err := c.sign(text, c.now)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint64(nil, uint64(c.now.Unix())), sig...), nil
}

// Cosigned is a checkpoint with a witness's word that it saw the log grow to it and never shrink or change (C2SP tlog-cosignature).
type Cosigned struct {
	Checkpoint
	Time time.Time // by the witness's clock, in seconds
	Note []byte    // with the log's signature and this one, and no others
}

// Trim gives a note that peer signed with no other signature than the log's own, and its checkpoint: what others wrote below it is not
// worth keeping. Errors are those of [Open].
func Trim(msg []byte, peer identity.PeerID) ([]byte, Checkpoint, error) {
	cp, n, err := open(msg, peer)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	out, err := note.Sign(n)
	if err != nil {
		return nil, Checkpoint{}, fmt.Errorf("checkpoint note of %s: %w: %w", cp.Origin, ErrCheckpoint, err)
	}
	return out, cp, nil
}

// Read gives the checkpoint of a note whose signatures were checked before it was kept: it looks at none.
func Read(msg []byte) (Checkpoint, error) {
	text, _, ok := strings.Cut(string(msg), "\n\n")
	if !ok || len(msg) > maxNote {
		return Checkpoint{}, fmt.Errorf("kept note of %d bytes: %w", len(msg), ErrCheckpoint)
	}
	return ParseCheckpoint([]byte(text + "\n"))
}

// Cosign gives the signed note of a log with the cosignature of a witness below the log's own signature, and no others. Whether the log
// was checked is for the caller; a device is no witness of its own log.
func Cosign(msg []byte, log, by identity.PeerID, now time.Time, sign CosignFunc) ([]byte, error) {
	cp, n, err := open(msg, log)
	if err != nil {
		return nil, fmt.Errorf("cosign: %w", err)
	}
	out, err := note.Sign(n, cosigner{witness: witness{by}, now: now, sign: sign})
	if err != nil {
		return nil, fmt.Errorf("cosign checkpoint of %s at %d: %w", cp.Origin, cp.Size, err)
	}
	return out, nil
}

// OpenCosigned checks that msg is a checkpoint that log signed for a log of its own and that the witness cosigned.
func OpenCosigned(msg []byte, log, by identity.PeerID) (Cosigned, error) {
	v := witness{by}
	cp, n, err := open(msg, log, v)
	if err != nil {
		return Cosigned{}, err
	}
	for _, s := range n.Sigs {
		if s.Name != v.Name() || s.Hash != v.KeyHash() {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(s.Base64)
		if err != nil || len(raw) < 4+stampSize {
			break
		}
		bare, err := note.Sign(n)
		if err != nil {
			break
		}
		return Cosigned{Checkpoint: cp, Time: time.Unix(int64(binary.BigEndian.Uint64(raw[4:])), 0).UTC(), Note: bare}, nil
	}
	return Cosigned{}, fmt.Errorf("checkpoint note of %s: %w: witness %s did not cosign it", cp.Origin, identity.ErrSignature, by)
}

// open checks a note's own signature and gives the note with that and those of the others that are known and good.
func open(msg []byte, peer identity.PeerID, others ...note.Verifier) (Checkpoint, *note.Note, error) {
	if len(msg) > maxNote {
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note of %d bytes: %w (limit %d)", len(msg), ErrCheckpoint, maxNote)
	}
	line, _, _ := strings.Cut(string(msg), "\n")
	origin, err := ParseOrigin(line)
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note: %w", err)
	}
	if origin.Peer != peer {
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note of %s: %w: expected one of %s", origin, identity.ErrSigner, peer)
	}
	v, err := origin.verifier()
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note: %w", err)
	}
	n, err := note.Open(msg, note.VerifierList(append([]note.Verifier{v}, others...)...))
	var bad *note.InvalidSignatureError
	var none *note.UnverifiedNoteError
	switch {
	case errors.As(err, &bad) || errors.As(err, &none):
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note of %s: %w: %w", origin, identity.ErrSignature, err)
	case err != nil:
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note of %s: %w: %w", origin, ErrCheckpoint, err)
	}
	if !slices.ContainsFunc(n.Sigs, func(s note.Signature) bool { return s.Name == v.Name() && s.Hash == v.KeyHash() }) {
		return Checkpoint{}, nil, fmt.Errorf("checkpoint note of %s: %w: only others signed it", origin, identity.ErrSignature)
	}
	n.UnverifiedSigs = nil
	cp, err := ParseCheckpoint([]byte(n.Text))
	return cp, n, err
}

// Fork checks that two notes are of one log of peer, of one size and with two roots: peer signed two histories. That is proof by itself,
// for anybody, for ever. Otherwise the error wraps that of [Open] or ErrProof.
func Fork(a, b []byte, peer identity.PeerID) (Checkpoint, Checkpoint, error) {
	one, err := Open(a, peer)
	if err != nil {
		return Checkpoint{}, Checkpoint{}, err
	}
	two, err := Open(b, peer)
	if err != nil {
		return Checkpoint{}, Checkpoint{}, err
	}
	if !one.Forks(two) {
		return Checkpoint{}, Checkpoint{}, fmt.Errorf("two histories of %s: %w: %d entries of %s and %d of %s can be of one", peer, ErrProof,
			one.Size, one.Origin, two.Size, two.Origin)
	}
	return one, two, nil
}

// Forks reports whether no one log can have both checkpoints: the same origin and size, two roots.
func (c Checkpoint) Forks(o Checkpoint) bool {
	return c.Origin == o.Origin && c.Size == o.Size && c.Root != o.Root
}

// VerifierKey is the key of the origin's notes as text, for any program that checks signed notes: <origin>+<hash>+<key>.
func (o Origin) VerifierKey() (string, error) {
	key, err := note.NewEd25519VerifierKey(o.String(), o.Peer[:])
	if err != nil {
		return "", fmt.Errorf("key of %s: %w", o, err)
	}
	return key, nil
}
