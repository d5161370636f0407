package identity_test

import (
	"bytes"
	"testing"

	"github.com/gpufair/gpufair/p2p/identity"
)

type sameRecord struct {
	identity.Header
	N int `cbor:"5,keyasint"`
}

// TestSameBody: one key signs one body to one envelope, and envelopes are told apart by what they say and not by how they are signed.
func TestSameBody(t *testing.T) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	seal := func(d identity.Domain, n int) []byte {
		t.Helper()
		raw, err := dev.Seal(d, sameRecord{dev.Header(1), n})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	one := seal("gpufair/voucher/1", 1)
	if !bytes.Equal(one, seal("gpufair/voucher/1", 1)) {
		t.Error("Ed25519 gave two signatures for one body")
	}
	resigned := bytes.Clone(one)
	resigned[len(resigned)-1] ^= 1 // the signature is the last field
	for name, c := range map[string]struct {
		other []byte
		want  bool
	}{
		"itself": {one, true}, "another signature": {resigned, true}, "another body": {seal("gpufair/voucher/1", 2), false},
		"another domain": {seal("gpufair/receipt/1", 1), false}, "no envelope": {[]byte{1}, false},
	} {
		if identity.SameBody(one, c.other) != c.want || identity.SameBody(c.other, one) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
}
