package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func free() error { return nil }

// ask gives the request of a new PC.
func ask(t *testing.T) (dir, text string, device PeerID) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "identity")
	text, device, err := Ask(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, text, device
}

func grant(t *testing.T, dir string, device PeerID, p Powers, limit uint64, now time.Time) string {
	t.Helper()
	raw, _, err := Grant(dir, device, p, limit, now)
	if err != nil {
		t.Fatal(err)
	}
	text, err := GrantText(raw)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestLink walks a new PC's way to an account whose key it never sees.
func TestLink(t *testing.T) {
	first, owner := create(t)
	second, text, device := ask(t)
	if again, same, err := Ask(second); err != nil || again != text || same != device {
		t.Errorf("asked again: %q %v %v", again, same, err)
	}
	asked, err := ParseRequest("  " + text[:40] + "\n" + strings.ToUpper(text[40:]) + " ")
	if err != nil || asked != device {
		t.Fatal(asked, err)
	}
	g := grant(t, first, asked, PowerTrade|PowerPay, 50_000_000, someday.Add(time.Hour))
	dev, err := Install(second, g, free)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(second)
	if err != nil || loaded.Account() != owner.Account() || loaded.Peer() != device || dev.Peer() != device {
		t.Fatal(loaded, err)
	}
	if _, err := os.Stat(waitingDir(second)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the waiting key is still there: %v", err)
	}
	if _, err := Install(second, g, free); err != nil {
		t.Errorf("the same grant again: %v", err)
	}
	for what, err := range map[string]error{
		"phrase": second1(Phrase(second)),
		"grant":  third(Grant(second, device, AllPowers, 1, someday)),
		"revoke": third(RevokeDevice(second, device, someday)),
	} {
		if !errors.Is(err, ErrNoAccountKey) {
			t.Errorf("%s on the linked PC: %v", what, err)
		}
	}
	all, err := Devices(first)
	if err != nil || len(all) != 2 || !all[0].This || all[1].Device != device || all[1].Delegation.Powers != PowerTrade|PowerPay {
		t.Errorf("devices %+v %v", all, err)
	}
	linked, err := Devices(second)
	if err != nil || len(linked) != 1 || !linked[0].This {
		t.Errorf("devices of the linked PC %+v %v", linked, err)
	}
}

func second1[A any](_ A, err error) error       { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

// TestLinkOverAnAccount is what becomes of an account that the second PC made at its first start.
func TestLinkOverAnAccount(t *testing.T) {
	first, owner := create(t)
	second, mine := create(t)
	_, device, err := Ask(second)
	if err != nil || device != mine.Peer() {
		t.Fatal(device, err)
	}
	g := grant(t, first, device, AllPowers, 1, someday)
	if _, err := Install(second, g, func() error { return errors.New("owes") }); !errors.Is(err, ErrAccountUsed) {
		t.Errorf("over an account in use: %v", err)
	}
	if dev, err := Load(second); err != nil || dev.Account() != mine.Account() {
		t.Fatalf("the refused grant changed something: %v %v", dev, err)
	}
	grant(t, second, owner.Peer(), AllPowers, 1, someday) // it has a device of its own
	if _, err := Install(second, g, free); !errors.Is(err, ErrAccountUsed) {
		t.Errorf("over an account with devices: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(second, devicesDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(second, g, free); err != nil {
		t.Fatal(err)
	}
	dev, err := Load(second)
	if err != nil || dev.Account() != owner.Account() || dev.Peer() != mine.Peer() {
		t.Errorf("after the grant: %v %v", dev, err)
	}
	kept, err := filepath.Glob(filepath.Join(second, "unused-*.key"))
	if err != nil || len(kept) != 1 {
		t.Errorf("the unused key was not kept: %v %v", kept, err)
	}
}

// A kill between the grant and the setting aside of the unused key leaves a linked device.
func TestLinkKilledHalfway(t *testing.T) {
	first, owner := create(t)
	second, mine := create(t)
	raw, _, err := Grant(first, mine.Peer(), AllPowers, 1, someday)
	if err != nil {
		t.Fatal(err)
	}
	if err := replacePEM(filepath.Join(second, delegationFile), pemGrant, raw); err != nil {
		t.Fatal(err)
	}
	dev, err := Load(second)
	if err != nil || dev.Account() != owner.Account() {
		t.Error(dev, err)
	}
	if _, err := Phrase(second); !errors.Is(err, ErrNoAccountKey) {
		t.Errorf("the phrase of the wrong account: %v", err)
	}
}

// A first start between request and grant takes the device key that was shown.
func TestStartWhileWaiting(t *testing.T) {
	first, owner := create(t)
	second, _, device := ask(t)
	dev, err := Create(second, someday)
	if err != nil || dev.Peer() != device {
		t.Fatal(dev, err)
	}
	dev, err = Install(second, grant(t, first, device, AllPowers, 1, someday), free)
	if err != nil || dev.Account() != owner.Account() || dev.Peer() != device {
		t.Error(dev, err)
	}
}

func TestGrantsOfOthers(t *testing.T) {
	first, _ := create(t)
	second, _, device := ask(t)
	_, _, other := ask(t)
	for what, text := range map[string]string{
		"another device's": grant(t, first, other, AllPowers, 1, someday), "": "", "garbage": "gfgrantabc", "long": strings.Repeat("a", 1<<20),
		"a request": func() string { text, _, _ := Ask(second); return text }(),
	} {
		if _, err := Install(second, text, free); !errors.Is(err, ErrLink) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Install(filepath.Join(t.TempDir(), "none"), "", free); !errors.Is(err, ErrNoIdentity) {
		t.Errorf("without a request: %v", err)
	}
	old := grant(t, first, device, AllPowers, 1, someday)
	if _, err := Install(second, grant(t, first, device, PowerPay, 1, someday), free); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(second, old, free); !errors.Is(err, ErrOldGrant) {
		t.Errorf("an older grant: %v", err)
	}
}

// One bit that is wrong in the signed parts is found even where the checksum was made to fit.
func TestGrantForged(t *testing.T) {
	first, _ := create(t)
	_, _, device := ask(t)
	text := grant(t, first, device, PowerPay, 1, someday)
	b, err := parseLinkText("grant", grantPrefix, grantLen, 0, text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		forged := bytes.Clone(b)
		forged[i] ^= 1
		if _, _, err := ParseGrant(linkText(grantPrefix, forged), device); !errors.Is(err, ErrLink) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
}

func TestRevokeDevice(t *testing.T) {
	first, _ := create(t)
	_, _, device := ask(t)
	_, d, err := Grant(first, device, AllPowers, 1, someday)
	if err != nil {
		t.Fatal(err)
	}
	_, r, err := RevokeDevice(first, device, someday.Add(-time.Hour)) // a clock that went back
	if err != nil || !r.Voids(d) {
		t.Fatal(r, err)
	}
	all, err := Devices(first)
	if err != nil || len(all) != 2 || !all[1].Revoked() || len(all[1].Sealed) == 0 {
		t.Errorf("%+v %v", all, err)
	}
	_, d, err = Grant(first, device, AllPowers, 1, someday.Add(-time.Hour))
	if err != nil || r.Voids(d) {
		t.Errorf("a later grant is void: %v %v", d, err)
	}
	if all, err = Devices(first); err != nil || all[1].Revoked() {
		t.Errorf("let in again: %+v %v", all, err)
	}
}

// An account lets in a bounded number of devices, and says so; those that it knows may still be granted and revoked.
func TestManyDevices(t *testing.T) {
	first, _ := create(t)
	for i := range MaxDevices - 1 {
		if _, _, err := RevokeDevice(first, PeerID{byte(i), 1}, someday); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, _, err := Grant(first, PeerID{0, 2}, AllPowers, 1, someday); !errors.Is(err, ErrTooManyDevices) {
		t.Errorf("one more: %v", err)
	}
	if _, _, err := Grant(first, PeerID{3, 1}, AllPowers, 1, someday); err != nil {
		t.Errorf("a known one: %v", err)
	}
	for i := range 5 * MaxDevices {
		if err := os.WriteFile(filepath.Join(first, devicesDir, strings.Repeat("x", i+1)), nil, 0o600); err != nil {
			break
		}
	}
	if _, err := Devices(first); !errors.Is(err, ErrIdentityFiles) {
		t.Errorf("a folder of many files: %v", err)
	}
}

// Damage of a device's file is an error, not a device less: a revocation must not be lost unseen.
func TestDeviceFileDamaged(t *testing.T) {
	first, _ := create(t)
	_, _, device := ask(t)
	raw, _, err := RevokeDevice(first, device, someday)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(first, devicesDir, device.String()+revokedFile)
	raw[len(raw)-1] ^= 1
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: pemRevocation, Bytes: raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Devices(first); !errors.Is(err, ErrIdentityFiles) {
		t.Error(err)
	}
}

func TestRevocationRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, account, _ := ed25519.GenerateKey(nil)
		device := PeerID(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "device"))
		serial, at := rapid.Uint64().Draw(t, "serial"), rapid.Int64().Draw(t, "time")
		raw, err := Revoke(account, device, serial, at)
		if err != nil {
			t.Fatal(err)
		}
		r, err := OpenRevocation(raw)
		if err != nil || r.Serial != serial || r.Time != at || r.Device != device || len(raw) > MaxRevocation {
			t.Fatal(r, err, len(raw))
		}
		d := Delegation{Header: r.Header, Serial: rapid.Uint64().Draw(t, "delegation")}
		if r.Voids(d) != (d.Serial <= serial) {
			t.Fatalf("revocation up to %d voids %d: %v", serial, d.Serial, r.Voids(d))
		}
		d.Device[0]++
		if r.Voids(d) {
			t.Fatal("voids another device")
		}
		raw[rapid.IntRange(0, len(raw)-1).Draw(t, "at")] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		if _, err := OpenRevocation(raw); err == nil {
			t.Fatal("a changed revocation opens")
		}
	})
}

// A revocation of another account's device is not that account's, and a delegation's bytes are no revocation.
func TestRevocationOfOthers(t *testing.T) {
	_, dev := create(t)
	if _, err := OpenRevocation(dev.Delegation()); !errors.Is(err, ErrSignature) {
		t.Errorf("a delegation: %v", err)
	}
	forged, err := seal(dev.key, DomainRevocation, Revocation{Header: dev.Header(1), Serial: 9})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRevocation(forged); !errors.Is(err, ErrSigner) {
		t.Errorf("signed by a device: %v", err)
	}
}

func FuzzLinkTexts(f *testing.F) {
	_, key, _ := ed25519.GenerateKey(nil)
	device := PeerID(key.Public().(ed25519.PublicKey))
	text, _ := RequestText(key)
	f.Add(text)
	f.Add(text[:60])
	raw, _ := Delegate(key, device, 1, AllPowers, 1)
	text, _ = GrantText(raw)
	f.Add(text)
	f.Fuzz(func(t *testing.T, s string) {
		if id, err := ParseRequest(s); err == nil && (id.IsZero() || !IsRequest(s) || IsGrant(s)) {
			t.Errorf("%q is a request of %s", s, id)
		}
		raw, d, err := ParseGrant(s, device)
		if err != nil {
			return
		}
		if again, err := GrantText(raw); err != nil || again != tidyText(s) || d.Device != device {
			t.Errorf("%q reads as %q (%v)", s, again, err)
		}
	})
}

func TestParsePowers(t *testing.T) {
	for s, want := range map[string]Powers{"trade": PowerTrade, "pay,provide": PowerPay | PowerProvide, "trade|pay|provide": AllPowers} {
		if got, err := ParsePowers(s); err != nil || got != want {
			t.Errorf("%s: %v %v", s, got, err)
		}
	}
	for _, s := range []string{"", ",", "root", "trade,root"} {
		if p, err := ParsePowers(s); err == nil {
			t.Errorf("%q gives %v", s, p)
		}
	}
}
