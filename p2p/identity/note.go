package identity

import (
	"bytes"
	"errors"
	"fmt"
)

// NotePrefix opens every note that a device signs. Its domain is this prefix itself: notes are signed as they are (C2SP signed-note,
// Ed25519), while everything else that the key signs starts otherwise: envelopes with the length of a domain (never 103, the letter
// g), handshakes with "noise-libp2p-" or "libp2p-tls-".
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
