package identity

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// NotePrefix opens every note that a device signs. Its domain is this prefix itself: notes are signed as they are (C2SP signed-note,
// Ed25519), while everything else that the key signs starts otherwise: cosignatures with [cosignPrefix], envelopes with the length of a
// domain (never 103 or 99, the letters g and c), handshakes with "noise-libp2p-" or "libp2p-tls-".
const NotePrefix = "gpufair/"

// ErrNote says that a text is not one that a device signs as a note.
var ErrNote = errors.New("not a note of this device")

// SignNote gives the plain Ed25519 signature over text, so that any implementation of C2SP signed-note can check it. The text must
// start with "gpufair/<this device's peer id>/" and end with a newline: nothing else is ever signed this way.
func (d *Device) SignNote(text []byte) ([]byte, error) {
	if !bytes.HasPrefix(text, []byte(NotePrefix+d.id.String()+"/")) || !bytes.HasSuffix(text, []byte("\n")) {
		return nil, fmt.Errorf("sign note as %s: %w: it must start with %s<peer id>/ and end with a newline", d.id, ErrNote, NotePrefix)
	}
	sig, err := d.key.Sign(text)
	if err != nil {
		return nil, fmt.Errorf("sign note as %s: %w", d.id, err)
	}
	return sig, nil
}

// cosignPrefix opens what a witness signs (C2SP tlog-cosignature).
const cosignPrefix = "cosignature/v1\ntime "

// CosignatureText is what the Ed25519 signature of a cosignature is over: a line with its version, one with the Unix time in seconds, and
// the text of the note that is cosigned (C2SP tlog-cosignature).
func CosignatureText(text []byte, unix uint64) []byte {
	return append(fmt.Appendf(nil, "%s%d\n", cosignPrefix, unix), text...)
}

// SignCosignature gives the plain Ed25519 signature of this device as the witness of another device's note, so that any implementation
// of C2SP tlog-cosignature can check it. now counts in seconds. A device is no witness of its own notes.
func (d *Device) SignCosignature(text []byte, now time.Time) ([]byte, error) {
	own := bytes.HasPrefix(text, []byte(NotePrefix+d.id.String()+"/"))
	if own || !bytes.HasPrefix(text, []byte(NotePrefix)) || !bytes.HasSuffix(text, []byte("\n")) || now.Unix() <= 0 {
		return nil, fmt.Errorf("cosign as %s: %w: it must be another device's, and the time after 1970", d.id, ErrNote)
	}
	sig, err := d.key.Sign(CosignatureText(text, uint64(now.Unix())))
	if err != nil {
		return nil, fmt.Errorf("cosign as %s: %w", d.id, err)
	}
	return sig, nil
}
