package identity

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func account(t *rapid.T) AccountID {
	return AccountID(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key"))
}

func TestAccountTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := account(t)
		got, err := ParseAccount(a.String())
		if err != nil || got != a {
			t.Fatalf("%s came back as %s: %v", a, got, err)
		}
		if !strings.HasPrefix(a.String(), a.Short()) || len(a.String()) != 58 {
			t.Fatalf("text %q", a)
		}
	})
}

// Every single mistyped letter must be found: people copy accounts by hand into lists of whom to serve.
func TestAccountTextFindsEachMistypedLetter(t *testing.T) {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	rapid.Check(t, func(t *rapid.T) {
		good := account(t).String()
		i := rapid.IntRange(0, len(good)-1).Draw(t, "place")
		for _, l := range letters + "A01 -" {
			bad := good[:i] + string(l) + good[i+1:]
			if bad == good {
				continue
			}
			if a, err := ParseAccount(bad); err == nil {
				t.Fatalf("%s typed as %s was read as %s", good, bad, a)
			}
		}
	})
}

func TestParseAccountRefuses(t *testing.T) {
	var a AccountID
	good := a.String()
	for _, bad := range []string{"", "gf", good[2:], good[:57], good + "a", strings.ToUpper(good), " " + good, good + "\n", good + "="} {
		if _, err := ParseAccount(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestPeerText(t *testing.T) {
	_, _, dev, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParsePeer(dev.Peer().String())
	if err != nil || p != dev.Peer() {
		t.Fatal(p, err)
	}
	q, err := PeerFromLibp2p(p.Libp2p())
	if err != nil || q != p {
		t.Fatal(q, err)
	}
	if !strings.HasSuffix(p.String(), p.Short()) || p.IsZero() {
		t.Fatal(p.Short())
	}
	// An RSA peer id (a hash, no key inside), another multihash, and no id at all.
	for _, bad := range []string{"", "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "12D3KooW", "gfaaaa"} {
		if _, err := ParsePeer(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
