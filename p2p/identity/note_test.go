package identity_test

import (
	"crypto/ed25519"
	"errors"
	"testing"
	"time"

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

func TestCosignature(t *testing.T) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	_, _, other, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	own, others := "gpufair/"+dev.Peer().String()+"/1\n", "gpufair/"+other.Peer().String()+"/1\n"
	for _, text := range []string{"", "\n", own, "x" + others, others[:len(others)-1], "cosignature/v1\n", "noise-libp2p-static-key:\n"} {
		if _, err := dev.SignCosignature([]byte(text), now); !errors.Is(err, identity.ErrNote) {
			t.Errorf("%q was cosigned: %v", text, err)
		}
	}
	if _, err := dev.SignCosignature([]byte(others), time.Unix(0, 0)); !errors.Is(err, identity.ErrNote) {
		t.Errorf("cosigned at no time: %v", err)
	}
	peer := dev.Peer()
	sig, err := dev.SignCosignature([]byte(others), now)
	if err != nil || !ed25519.Verify(peer[:], []byte("cosignature/v1\ntime 1800000000\n"+others), sig) {
		t.Errorf("cosignature: %x, %v", sig, err)
	}
}
