package history_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	fmtlog "github.com/transparency-dev/formats/log"
	"golang.org/x/mod/sumdb/note"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/identity"
)

func fixedPeer() identity.PeerID {
	return identity.PeerID(ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey))
}

const goldenText = "gpufair/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/7\n" +
	"42\n" +
	"AQIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"

func TestCheckpointText(t *testing.T) {
	c := history.Checkpoint{Origin: history.Origin{Peer: fixedPeer(), Epoch: 7}, Size: 42, Root: history.Hash{1, 2}}
	if got := string(c.Text()); got != goldenText {
		t.Errorf("got\n%swant\n%s", got, goldenText)
	}
	got, err := history.ParseCheckpoint([]byte(goldenText))
	if err != nil || got != c {
		t.Errorf("parsed %+v, %v, want %+v", got, err, c)
	}
}

func TestParseRefusals(t *testing.T) {
	for name, change := range map[string][2]string{
		"other application": {"gpufair/", "akash/"},
		"no epoch":          {"/7\n", "\n"},
		"epoch with zeros":  {"/7\n", "/07\n"},
		"negative epoch":    {"/7\n", "/-7\n"},
		"more of an origin": {"/7\n", "/7/8\n"},
		"not a peer":        {"12D3", "12D4"},
		"size with zeros":   {"\n42\n", "\n042\n"},
		"signed size":       {"\n42\n", "\n+42\n"},
		"absurd size":       {"\n42\n", "\n9223372036854775808\n"},
		"short hash":        {"AQIA", ""},
		"loose base64":      {"AAA=\n", "AAB=\n"},
		"no last newline":   {"A=\n", "A="},
		"extension line":    {"A=\n", "A=\nextension\n"},
		"carriage return":   {"\n42\n", "\r\n42\n"},
		"everything":        {goldenText, ""},
		"long":              {"A=\n", "A=\n" + strings.Repeat("x", 1000) + "\n"},
	} {
		text := strings.Replace(goldenText, change[0], change[1], 1)
		if text == goldenText {
			t.Fatalf("%s: nothing was changed", name)
		}
		if c, err := history.ParseCheckpoint([]byte(text)); !errors.Is(err, history.ErrCheckpoint) {
			t.Errorf("%s: parsed as %+v, %v", name, c, err)
		}
	}
}

// TestSignAndOpen checks a device's note with our own reader, with transparency-dev's, and with bare Ed25519.
func TestSignAndOpen(t *testing.T) {
	dev := device(t)
	g := grow(t, entries(5)...)
	c := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 3}, Size: 5, Root: g.roots[5]}
	msg, err := c.Sign(dev.SignNote)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := history.Open(msg, dev.Peer()); err != nil || got != c {
		t.Fatalf("opened %+v, %v, want %+v", got, err, c)
	}
	key, err := note.NewEd25519VerifierKey(c.Origin.String(), bytesOf(dev.Peer()))
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	other, rest, _, err := fmtlog.ParseCheckpoint(msg, c.Origin.String(), v)
	if err != nil || len(rest) != 0 || other.Size != 5 || history.Hash(other.Hash) != c.Root {
		t.Errorf("transparency-dev reads %+v, %q, %v", other, rest, err)
	}
	text, line, _ := strings.Cut(string(msg), "\n\n")
	sig, err := base64.StdEncoding.DecodeString(line[strings.LastIndex(line, " ")+1 : len(line)-1])
	if err != nil || !ed25519.Verify(bytesOf(dev.Peer()), []byte(text+"\n"), sig[4:]) {
		t.Errorf("bare Ed25519 refuses the signature: %v", err)
	}
}

func bytesOf(p identity.PeerID) ed25519.PublicKey { return p[:] }

func TestOpenRefusals(t *testing.T) {
	dev, stranger := device(t), device(t)
	c := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: 3}, Size: 5}
	msg, err := c.Sign(dev.SignNote)
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(what string, msg []byte, peer identity.PeerID, want error) {
		t.Helper()
		if got, err := history.Open(msg, peer); !errors.Is(err, want) {
			t.Errorf("%s: opened as %+v, %v, want %v", what, got, err, want)
		}
	}
	refuse("another peer's", msg, stranger.Peer(), identity.ErrSigner)
	refuse("changed size", bytes.Replace(msg, []byte("\n5\n"), []byte("\n6\n"), 1), dev.Peer(), identity.ErrSignature)
	refuse("changed epoch", bytes.ReplaceAll(msg, []byte("/3\n"), []byte("/4\n")), dev.Peer(), identity.ErrSignature)
	refuse("unsigned", append(c.Text(), '\n'), dev.Peer(), history.ErrCheckpoint)
	refuse("cut", msg[:len(msg)-2], dev.Peer(), history.ErrCheckpoint)
	refuse("long", append(msg, make([]byte, 1000)...), dev.Peer(), history.ErrCheckpoint)
	refuse("nothing", nil, dev.Peer(), history.ErrCheckpoint)

	// A stranger can't sign for dev's log, neither with its own device nor with its bare key under dev's name.
	if _, err := c.Sign(stranger.SignNote); !errors.Is(err, identity.ErrNote) {
		t.Errorf("a stranger's device signed: %v", err)
	}
	bare := ed25519.NewKeyFromSeed(make([]byte, 32))
	forged, err := c.Sign(func(text []byte) ([]byte, error) { return ed25519.Sign(bare, text), nil })
	if err != nil {
		t.Fatal(err)
	}
	refuse("another key under its name", forged, dev.Peer(), identity.ErrSignature)
}

// TestOpenAllowsCosignatures: a further signature that we can't check does not spoil the log's own.
func TestOpenAllowsCosignatures(t *testing.T) {
	dev := device(t)
	c := history.Empty(history.Origin{Peer: dev.Peer()})
	msg, err := c.Sign(dev.SignNote)
	if err != nil {
		t.Fatal(err)
	}
	msg = append(msg, "— witness "+base64.StdEncoding.EncodeToString(make([]byte, 76))+"\n"...)
	if got, err := history.Open(msg, dev.Peer()); err != nil || got != c {
		t.Errorf("opened %+v, %v, want %+v", got, err, c)
	}
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add([]byte(goldenText))
	f.Add([]byte("gpufair/x/1\n1\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := history.ParseCheckpoint(b)
		if err == nil && !bytes.Equal(c.Text(), b) {
			t.Errorf("%q has another text: %q", b, c.Text())
		}
		if err != nil && !errors.Is(err, history.ErrCheckpoint) {
			t.Errorf("untyped error: %v", err)
		}
	})
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte(goldenText + "\n— gpufair/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/7 AAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := history.Open(b, fixedPeer()); err == nil {
			t.Errorf("%q opened as %+v", b, c)
		}
	})
}
