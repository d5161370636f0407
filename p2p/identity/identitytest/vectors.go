// Package identitytest holds signed records to test vectors: files with the exact bytes of bodies and envelopes, made with keys that
// anyone can make again. It knows no record: each package brings its own. docs/protocol.md says how to read the files.
package identitytest

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Party is an account with one device whose keys are Ed25519 seeds of 32 equal bytes: of the account n, of the device n+1.
type Party struct {
	Account ed25519.PrivateKey
	Device  *identity.Device
}

// NewParty makes the party of n. Its delegation has serial 1, all powers and the default cap.
func NewParty(tb testing.TB, n byte) Party {
	tb.Helper()
	account := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
	device := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n + 1}, ed25519.SeedSize))
	raw, err := identity.Delegate(account, identity.PeerID(device.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
	if err != nil {
		tb.Fatal(err)
	}
	dev, err := identity.NewDevice(device, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return Party{Account: account, Device: dev}
}

// Provider is the party of vectors that sells: keys 01… and 02….
func Provider(tb testing.TB) Party {
	tb.Helper()
	return NewParty(tb, 1)
}

// Renter is the party of vectors that buys: keys 03… and 04….
func Renter(tb testing.TB) Party {
	tb.Helper()
	return NewParty(tb, 3)
}

// Vector is one signed record in bytes.
type Vector struct {
	Name     string `json:"name"`
	Domain   string `json:"domain"`
	Account  string `json:"account"`  // text form
	Device   string `json:"device"`   // text form
	Body     string `json:"body"`     // hex of the signed CBOR
	Envelope string `json:"envelope"` // hex of what travels
	Hash     string `json:"hash"`     // hex of SHA-256 of the envelope: the record's name
}

// Signed makes the vector of a body that dev signs, and gives the envelope.
func Signed(tb testing.TB, name string, dev *identity.Device, d identity.Domain, body identity.Body) (Vector, []byte) {
	tb.Helper()
	raw, err := dev.Seal(d, body)
	if err != nil {
		tb.Fatal(err)
	}
	return Of(tb, name, d, body, raw), raw
}

// Of makes the vector of a body and its envelope.
func Of(tb testing.TB, name string, d identity.Domain, body identity.Body, envelope []byte) Vector {
	tb.Helper()
	b, err := wire.Marshal(body)
	if err != nil {
		tb.Fatal(err)
	}
	if !bytes.Contains(envelope, b) {
		tb.Fatalf("%s: the envelope does not hold the body", name)
	}
	h := body.Head()
	return Vector{
		Name: name, Domain: string(d), Account: h.Account.String(), Device: h.Device.String(),
		Body: hex.EncodeToString(b), Envelope: hex.EncodeToString(envelope), Hash: identity.Hash(envelope).String(),
	}
}

// Check holds the vectors against the file path. A file that is missing is written, and the test fails so that someone looks at it:
// bytes that peers already speak never change, so a file that is there is never written over.
func Check(tb testing.TB, path string, got []Vector) {
	tb.Helper()
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		write(tb, path, got)
		return
	}
	if err != nil {
		tb.Fatal(err)
	}
	var want []Vector
	if err := json.Unmarshal(text, &want); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	if len(got) != len(want) {
		tb.Errorf("%s holds %d vectors, the test makes %d", path, len(want), len(got))
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			tb.Errorf("%s: %s is spoken differently now: a record's bytes may change only with its version\n got %+v\nwant %+v",
				path, want[i].Name, got[i], want[i])
		}
	}
}

func write(tb testing.TB, path string, list []Vector) {
	tb.Helper()
	text, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		tb.Fatal(err)
	}
	tb.Errorf("%s was missing and has been written: look at it and run the test again", path)
}
