package identity_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"testing"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// numbers is a record for the vector alone: one of each kind of value that records have.
type numbers struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Small      uint64    `cbor:"5,keyasint"`
	Large      uint64    `cbor:"6,keyasint"`
	Negative   int64     `cbor:"7,keyasint"`
	Text       string    `cbor:"8,keyasint"`
	Flag       bool      `cbor:"9,keyasint"`
	List       []uint32  `cbor:"10,keyasint"`
	Left       []byte    `cbor:"11,keyasint,omitempty"`
}

func TestVectors(t *testing.T) {
	var list []identitytest.Vector
	for _, p := range []struct {
		name  string
		party identitytest.Party
	}{{"delegation of the provider", identitytest.Provider(t)}, {"delegation of the renter", identitytest.Renter(t)}} {
		raw := p.party.Device.Delegation()
		d, err := identity.OpenDelegation(raw)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, identitytest.Of(t, p.name, identity.DomainDelegation, d, raw))
	}
	dev := identitytest.Provider(t).Device
	v, _ := identitytest.Signed(t, "one of each kind of value", dev, "gpufair/test-vector/1", numbers{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), Small: 23, Large: 1 << 40, Negative: -1, Text: "grün", Flag: true, List: []uint32{0, 24, 256},
	})
	identitytest.Check(t, "testdata/vectors.json", append(list, v, revocation(t), succeeded(t), formerKey(t)))
}

// changed is the provider's account after one change of its key, to the one of seed 05….
func changed(t *testing.T) identity.Authority {
	t.Helper()
	next, err := identity.FirstKey(identitytest.Provider(t).Account).Succeed(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{5}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// succeeded is a delegation of the provider's device by its account's second key.
func succeeded(t *testing.T) identitytest.Vector {
	t.Helper()
	raw, err := changed(t).Delegate(identitytest.Provider(t).Device.Peer(), 2, identity.AllPowers, identity.DefaultCap)
	if err != nil {
		t.Fatal(err)
	}
	d, err := identity.OpenDelegation(raw)
	if err != nil {
		t.Fatal(err)
	}
	return identitytest.Of(t, "delegation of the provider's device by the account's second key", identity.DomainDelegation, d, raw)
}

// formerKey is the news that the provider's account has replaced its first key.
func formerKey(t *testing.T) identitytest.Vector {
	t.Helper()
	p := identitytest.Provider(t)
	raw, err := changed(t).Revoke(identity.PeerID(p.Device.Account()), 1, 1764000000000)
	if err != nil {
		t.Fatal(err)
	}
	r, err := identity.OpenRevocation(raw)
	if err != nil {
		t.Fatal(err)
	}
	return identitytest.Of(t, "revocation of the provider's first key by its second", identity.DomainRevocation, r, raw)
}

// The vectors are read back from their bytes alone, as another program would.
func TestVectorOpens(t *testing.T) {
	dev := identitytest.Provider(t).Device
	v, raw := identitytest.Signed(t, "", dev, "gpufair/test-vector/1", numbers{Header: dev.Header(1), Large: 7})
	again, err := hex.DecodeString(v.Envelope)
	if err != nil || string(again) != string(raw) {
		t.Fatal(err)
	}
	got, err := identity.OpenMoney[numbers]("gpufair/test-vector/1", 1, again)
	if err != nil || got.Large != 7 {
		t.Fatal(got, err)
	}
}

// revocation is the provider's account letting go of the renter's device.
func revocation(t *testing.T) identitytest.Vector {
	t.Helper()
	raw, err := identity.Revoke(identitytest.Provider(t).Account, identitytest.Renter(t).Device.Peer(), 7, 1764000000000)
	if err != nil {
		t.Fatal(err)
	}
	r, err := identity.OpenRevocation(raw)
	if err != nil {
		t.Fatal(err)
	}
	return identitytest.Of(t, "revocation of the renter's device by the provider's account", identity.DomainRevocation, r, raw)
}

// The texts of linking are a part of the protocol, too.
func TestLinkTexts(t *testing.T) {
	request, err := identity.RequestText(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{4}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	grant, err := identity.GrantText(identitytest.Renter(t).Device.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := changed(t).Delegate(identitytest.Provider(t).Device.Peer(), 2, identity.AllPowers, identity.DefaultCap)
	if err != nil {
		t.Fatal(err)
	}
	second, err := identity.GrantText(raw)
	if err != nil {
		t.Fatal(err)
	}
	got := request + "\n" + grant + "\n" + second + "\n"
	want, err := os.ReadFile("testdata/link.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the texts are\n%swant\n%s", got, want)
	}
}
