package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"testing"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/record"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/p2p/wire"
)

const domainProbe Domain = "gpufair/test-probe/1"

type probe struct {
	Header
	X uint64 `cbor:"5,keyasint"`
}

type wideProbe struct {
	Header
	X uint64 `cbor:"5,keyasint"`
	Y uint64 `cbor:"6,keyasint"`
}

func generate(t testing.TB) (account ed25519.PrivateKey, dev *Device) {
	t.Helper()
	account, _, dev, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	return account, dev
}

func mustSeal(t testing.TB, dev *Device, d Domain, b Body) []byte {
	t.Helper()
	raw, err := dev.Seal(d, b)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestSealOpen(t *testing.T) {
	_, dev := generate(t)
	raw := mustSeal(t, dev, domainProbe, probe{Header: dev.Header(1), X: 7})
	got, err := OpenMoney[probe](domainProbe, 1, raw)
	if err != nil || got.X != 7 || got.Account != dev.Account() || got.Device != dev.Peer() {
		t.Fatal(got, err)
	}
	if advert, err := OpenAdvert[probe](domainProbe, 1, raw); err != nil || advert != got {
		t.Fatal(advert, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	_, dev := generate(t)
	_, other := generate(t)
	raw := mustSeal(t, dev, domainProbe, probe{Header: dev.Header(1), X: 7})
	forged := dev.Header(1)
	forged.Device = other.Peer()
	foreign, err := seal(dev.key, domainProbe, probe{Header: forged})
	if err != nil {
		t.Fatal(err)
	}
	priv, _, err := crypto.GenerateECDSAKeyPair(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	notEd, err := seal(priv, domainProbe, probe{Header: dev.Header(1)})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		domain Domain
		raw    []byte
		want   error
	}{
		"other domain":        {"gpufair/test-probe/2", raw, ErrSignature},
		"other device":        {domainProbe, foreign, ErrSigner},
		"key of another kind": {domainProbe, notEd, ErrSignature},
		"later version":       {domainProbe, mustSeal(t, dev, domainProbe, probe{Header: dev.Header(2)}), ErrVersion},
		"version 0":           {domainProbe, mustSeal(t, dev, domainProbe, probe{Header: dev.Header(0)}), ErrVersion},
		"unknown key":         {domainProbe, mustSeal(t, dev, domainProbe, wideProbe{Header: dev.Header(1), Y: 1}), wire.ErrFormat},
		"field added":         {domainProbe, protowire.AppendVarint(protowire.AppendTag(bytes.Clone(raw), 15, protowire.VarintType), 1), ErrSignature},
		"too large":           {domainProbe, make([]byte, MaxEnvelope+1), wire.ErrTooLarge},
		"empty":               {domainProbe, nil, ErrSignature},
	} {
		if got, err := OpenMoney[probe](c.domain, 1, c.raw); !errors.Is(err, c.want) {
			t.Errorf("%s: opened as %v: %v, want %v", name, got, err, c.want)
		}
	}
}

// The same domain string as type, but signed over another domain's bytes: only the signature's own domain may count.
func TestSignatureCoversTheDomain(t *testing.T) {
	_, dev := generate(t)
	raw := mustSeal(t, dev, "gpufair/aaaa-probe/1", probe{Header: dev.Header(1), X: 7})
	relabelled := bytes.ReplaceAll(raw, []byte("aaaa"), []byte("test"))
	if _, err := OpenMoney[probe](domainProbe, 1, relabelled); !errors.Is(err, ErrSignature) {
		t.Fatal(err)
	}
}

// typed is a payload whose type is not its domain, which libp2p would sign.
type typed struct{ payload }

func (*typed) Codec() []byte { return []byte("gpufair/another/1") }

func TestTypeMustBeTheDomain(t *testing.T) {
	_, dev := generate(t)
	body, err := wire.Marshal(probe{Header: dev.Header(1)})
	if err != nil {
		t.Fatal(err)
	}
	env, err := record.Seal(&typed{payload{domain: domainProbe, body: body}}, dev.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := env.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMoney[probe](domainProbe, 1, raw); !errors.Is(err, ErrSignature) {
		t.Fatal(err)
	}
}

func TestAdvertsMayGrow(t *testing.T) {
	_, dev := generate(t)
	raw := mustSeal(t, dev, domainProbe, wideProbe{Header: dev.Header(2), X: 7, Y: 8})
	got, err := OpenAdvert[probe](domainProbe, 1, raw)
	if err != nil || got.X != 7 {
		t.Fatal(got, err)
	}
	if _, err := OpenAdvert[wideProbe](domainProbe, 3, raw); !errors.Is(err, ErrVersion) {
		t.Fatal("an older version than the reader's first was read: ", err)
	}
}

func TestSealRefusesAnothersHeader(t *testing.T) {
	_, dev := generate(t)
	_, other := generate(t)
	if _, err := dev.Seal(domainProbe, probe{Header: other.Header(1)}); !errors.Is(err, ErrSigner) {
		t.Fatal(err)
	}
}

type blobProbe struct {
	Header
	Data []byte `cbor:"5,keyasint"`
}

func TestSealRefusesWhatNobodyWouldOpen(t *testing.T) {
	_, dev := generate(t)
	if _, err := dev.Seal(domainProbe, blobProbe{Header: dev.Header(1), Data: make([]byte, MaxEnvelope)}); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatal(err)
	}
}

// Any changed byte anywhere makes an envelope worthless: nothing in it is outside the signature or has a second form.
func TestEveryByteCounts(t *testing.T) {
	_, dev := generate(t)
	raw := mustSeal(t, dev, domainProbe, probe{Header: dev.Header(1), X: 7})
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(raw)
		i := rapid.IntRange(0, len(bad)-1).Draw(t, "place")
		bad[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
		if _, err := OpenMoney[probe](domainProbe, 1, bad); err == nil {
			t.Fatalf("byte %d changed and nobody noticed", i)
		}
	})
}

func TestDelegation(t *testing.T) {
	key, dev := generate(t)
	_, stranger := generate(t)
	d, err := OpenDelegation(dev.Delegation())
	if err != nil || d.Powers != AllPowers || d.Cap != DefaultCap || dev.DelegationHash() != Hash(dev.Delegation()) {
		t.Fatal(d, err)
	}
	payOnly, err := Delegate(key, dev.Peer(), 2, PowerPay, 5)
	if err != nil {
		t.Fatal(err)
	}
	pay, err := OpenDelegation(payOnly)
	if err != nil || pay.Serial != 2 || pay.Cap != 5 {
		t.Fatal(pay, err)
	}
	for name, c := range map[string]struct {
		d     Delegation
		h     Header
		power Powers
		ok    bool
	}{
		"all powers":        {d, dev.Header(1), PowerTrade | PowerProvide, true},
		"its one power":     {pay, dev.Header(1), PowerPay, true},
		"beyond its powers": {pay, dev.Header(1), PowerTrade, false},
		"one of two":        {pay, dev.Header(1), PowerTrade | PowerPay, false},
		"other device":      {d, Header{Account: dev.Account(), Device: stranger.Peer()}, PowerPay, false},
		"other account":     {d, Header{Account: stranger.Account(), Device: dev.Peer()}, PowerPay, false},
	} {
		if err := c.d.Allows(c.h, c.power); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPower) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := AllPowers.String(); got != "trade|pay|provide" {
		t.Error(got)
	}
}

func TestOpenDelegationRefuses(t *testing.T) {
	key, dev := generate(t)
	otherKey, other := generate(t)
	priv, err := crypto.UnmarshalEd25519PrivateKey(otherKey)
	if err != nil {
		t.Fatal(err)
	}
	body := Delegation{Header: dev.Header(1), Serial: 1, Powers: AllPowers}
	bySelf, err := seal(dev.key, DomainDelegation, body)
	if err != nil {
		t.Fatal(err)
	}
	byOther, err := seal(priv, DomainDelegation, body)
	if err != nil {
		t.Fatal(err)
	}
	later, err := seal(priv, DomainDelegation, Delegation{Header: other.Header(2), Powers: AllPowers})
	if err != nil {
		t.Fatal(err)
	}
	wide, err := Delegate(key, dev.Peer(), 1, AllPowers|1<<6, 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		raw  []byte
		want error
	}{
		"signed by the device itself": {bySelf, ErrSigner},
		"signed by another account":   {byOther, ErrSigner},
		"later version":               {later, ErrVersion},
		"unknown powers":              {wide, ErrVersion},
		"another record":              {mustSeal(t, dev, domainProbe, probe{Header: dev.Header(1)}), ErrSignature},
	} {
		if _, err := OpenDelegation(c.raw); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	_, devKey, _, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewDevice(devKey, dev.Delegation()); !errors.Is(err, ErrPower) {
		t.Error("a device took another's delegation: ", err)
	}
}

func FuzzOpen(f *testing.F) {
	_, dev := generate(f)
	f.Add(mustSeal(f, dev, domainProbe, probe{Header: dev.Header(1), X: 7}))
	f.Add(dev.Delegation())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if _, err := OpenAdvert[probe](domainProbe, 1, raw); err == nil {
			if again, err := OpenMoney[wideProbe](domainProbe, 1, raw); err == nil && again.Device.IsZero() {
				t.Fatal("opened without a signer")
			}
		}
		if d, err := OpenDelegation(raw); err == nil && d.Account.IsZero() {
			t.Fatal("a delegation of nobody")
		}
	})
}
