package identity_test

import (
	"crypto/ed25519"
	"errors"
	"testing"

	"github.com/gpufair/gpufair/p2p/identity"
)

func TestDeviceSignsNothingElse(t *testing.T) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	_, _, other, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	name := "gpufair/" + dev.Peer().String()
	for _, text := range []string{
		"", "\n", name, name + "\n", name + "/1", "x" + name + "/1\n", "gpufair//1\n", "gpufair/" + other.Peer().String() + "/1\n",
		"noise-libp2p-static-key:\n", "libp2p-tls-handshake:\n",
	} {
		if _, err := dev.SignNote([]byte(text)); !errors.Is(err, identity.ErrNote) {
			t.Errorf("%q was signed: %v", text, err)
		}
	}
	text := []byte(name + "/1\n")
	peer := dev.Peer()
	if sig, err := dev.SignNote(text); err != nil || !ed25519.Verify(peer[:], text, sig) {
		t.Errorf("signature of a note: %x, %v", sig, err)
	}
}
