package identity

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func succeed(t *testing.T, a Authority) Authority {
	t.Helper()
	next, err := a.Succeed(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// TestChain: each change needs both keys, and follows from the one before it; the account keeps its name.
func TestChain(t *testing.T) {
	first := FirstKey(newKey(t))
	second := succeed(t, first)
	third := succeed(t, second)
	device := PeerID(newKey(t).Public().(ed25519.PublicKey))
	for _, a := range []Authority{first, second, third} {
		raw, err := a.Delegate(device, 1, AllPowers, 5)
		if err != nil {
			t.Fatal(err)
		}
		d, err := OpenDelegation(raw)
		if err != nil || d.Account != first.Account || d.Chain.Against(a.Chain) != SameKey || len(raw) > MaxDelegation {
			t.Errorf("after %d changes: %+v %v, %d bytes", len(a.Chain), d, err, len(raw))
		}
		raw, err = a.Revoke(device, 1, 7)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := OpenRevocation(raw); err != nil || r.Account != first.Account || !r.Voids(d) {
			t.Errorf("after %d changes: %+v %v", len(a.Chain), r, err)
		}
	}
	other := succeed(t, FirstKey(newKey(t)))
	swap := func(f func(Chain)) Chain {
		c := append(Chain(nil), third.Chain...)
		f(c)
		return c
	}
	for what, c := range map[string]Chain{
		"without the old key's signature": swap(func(c Chain) { c[0].Old = other.Chain[0].Old }),
		"without the new key's signature": swap(func(c Chain) { c[1].New = c[1].Old }),
		"in another order":                {third.Chain[1], third.Chain[0]},
		"a link is missing":               third.Chain[1:],
		"of another account":              other.Chain,
		"to the same key":                 swap(func(c Chain) { c[1].Next = c[0].Next }),
	} {
		if _, err := c.Key(first.Account); !errors.Is(err, ErrSuccession) {
			t.Errorf("%s: %v", what, err)
		}
		raw, err := Authority{Account: first.Account, Chain: c, Key: third.Key}.Delegate(device, 1, AllPowers, 5)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDelegation(raw); !errors.Is(err, ErrSuccession) {
			t.Errorf("a delegation %s: %v", what, err)
		}
	}
	last := third
	for len(last.Chain) < MaxSuccessions {
		last = succeed(t, last)
	}
	if _, err := last.Succeed(newKey(t)); !errors.Is(err, ErrSuccession) {
		t.Errorf("one change too many: %v", err)
	}
	raw, err := last.Delegate(device, 1<<63, AllPowers, 1<<63)
	if err != nil || len(raw) > MaxDelegation {
		t.Errorf("the longest delegation has %d bytes: %v", len(raw), err)
	}
	t.Logf("a delegation after %d changes has %d bytes", len(last.Chain), len(raw))
}

// TestWrongSigner: no key but the chain's last signs for the account, and a record's version says whether it has a chain.
func TestWrongSigner(t *testing.T) {
	first := FirstKey(newKey(t))
	second := succeed(t, first)
	device := PeerID{3}
	h := Header{Version: 1, Account: first.Account, Device: device}
	for what, c := range map[string]struct {
		key  ed25519.PrivateKey
		body Delegation
		want error
	}{
		"the old key under the new chain": {first.Key, Delegation{Header: Header{2, first.Account, device}, Chain: second.Chain}, ErrSigner},
		"the new key without its chain":   {second.Key, Delegation{Header: h}, ErrSigner},
		"a chain in version 1":            {second.Key, Delegation{Header: h, Chain: second.Chain}, ErrVersion},
		"version 2 without a chain":       {first.Key, Delegation{Header: Header{2, first.Account, device}}, ErrVersion},
		"a later version":                 {first.Key, Delegation{Header: Header{3, first.Account, device}}, ErrVersion},
	} {
		raw, err := Authority{Key: c.key}.seal(DomainDelegation, c.body)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := OpenDelegation(raw); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

// TestAgainst compares chains as a peer does that knows one of them.
func TestAgainst(t *testing.T) {
	first := FirstKey(newKey(t))
	second := succeed(t, first)
	third, twin := succeed(t, second), succeed(t, second)
	again, err := first.Succeed(second.Key)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		a, b Chain
		want Relation
	}{
		"none": {nil, nil, SameKey}, "the same": {third.Chain, third.Chain, SameKey}, "signed again": {again.Chain, second.Chain, SameKey},
		"longer": {third.Chain, second.Chain, NewerKey}, "shorter": {second.Chain, third.Chain, OlderKey}, "first": {nil, third.Chain, OlderKey},
		"two heirs": {third.Chain, twin.Chain, Forked}, "two heirs, one with an heir": {succeed(t, third).Chain, twin.Chain, Forked},
	} {
		if got := c.a.Against(c.b); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

// TestRotateAccount: the account keeps its name, the device its key; what the old key revoked stays revoked under the new one.
func TestRotateAccount(t *testing.T) {
	dir, was := create(t)
	_, _, device := ask(t)
	grant(t, dir, device, AllPowers, 1, someday.Add(time.Minute))
	if _, _, err := RevokeDevice(dir, device, someday.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	old, _, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := RotateAccount(dir, someday.Add(time.Hour))
	if err != nil || dev.Account() != was.Account() || dev.Peer() != was.Peer() {
		t.Fatal(dev, err)
	}
	for i, want := range []bool{true, false} {
		if ok, err := FinishAccountRotation(dir, someday.Add(2*time.Hour)); ok != want || err != nil {
			t.Errorf("finish %d: %v %v", i, ok, err)
		}
	}
	now, _, err := load(dir)
	if err != nil || now.Equal(old) {
		t.Fatalf("the key is the old one: %v", err)
	}
	news := known(t, dir, PeerID(was.Account()))
	if !news.formerKey || news.Revocation == nil || len(news.Revocation.Chain) != 1 {
		t.Errorf("the news of it: %+v", news)
	}
	if k := known(t, dir, device); !k.Revoked() || len(k.Revocation.Chain) != 1 || k.formerKey {
		t.Errorf("a device that the old key revoked: %+v", k)
	}
	// A second change goes on from the first, also to the text that the phrase is imported with.
	if _, err := RotateAccount(dir, someday.Add(3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := FinishAccountRotation(dir, someday.Add(3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	phrase, err := Phrase(dir)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := KeysText(dir)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "identity")
	if _, err := ImportChanged(other, phrase, keys[:len(keys)-2]+"aa", someday); !errors.Is(err, ErrLink) {
		t.Errorf("a mistyped text: %v", err)
	}
	stranger, _ := create(t)
	foreign, err := Phrase(stranger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ImportChanged(other, foreign, keys, someday); !errors.Is(err, ErrLink) {
		t.Errorf("with another account's phrase: %v", err)
	}
	got, err := ImportChanged(other, phrase, keys, someday.Add(5*time.Hour))
	if err != nil || got.Account() != was.Account() {
		t.Fatal(got, err)
	}
	if again, err := Load(other); err != nil || again.Account() != was.Account() {
		t.Error(again, err)
	}
	if text, err := KeysText(stranger); text != "" || err != nil {
		t.Errorf("the text of a key that was never changed: %q %v", text, err)
	}
}

// TestAccountRotationKilled: a kill after each step leaves the old key or the new one in use, and the next run ends the same.
func TestAccountRotationKilled(t *testing.T) {
	now := someday.Add(time.Hour)
	for killed := range 3 {
		dir, was := create(t)
		key, err := makeNext(dir, nextAccountFile)
		if err != nil {
			t.Fatal(err)
		}
		if killed > 0 {
			if _, err := RotateAccount(dir, now); err != nil {
				t.Fatal(err)
			}
		}
		if killed > 1 { // the news is signed, the old key not removed
			if _, _, err := RevokeDevice(dir, PeerID(was.Account()), now); err != nil {
				t.Fatal(err)
			}
		}
		if dev, err := Load(dir); err != nil || dev.Account() != was.Account() || dev.Peer() != was.Peer() {
			t.Fatalf("killed after step %d: %v %v", killed, dev, err)
		}
		if ok, err := FinishAccountRotation(dir, now); ok != (killed > 0) || err != nil {
			t.Errorf("killed after step %d: the start finished a change: %v %v", killed, ok, err)
		}
		if killed == 0 {
			if _, err := RotateAccount(dir, now); err != nil {
				t.Fatal(err)
			}
			if ok, err := FinishAccountRotation(dir, now); !ok || err != nil {
				t.Errorf("the next run: %v %v", ok, err)
			}
		}
		if account, _, err := load(dir); err != nil || !account.Equal(key) {
			t.Errorf("killed after step %d: at the end the key is another: %v", killed, err)
		}
		if !known(t, dir, PeerID(was.Account())).formerKey {
			t.Errorf("killed after step %d: no news of it", killed)
		}
		if _, err := os.Lstat(filepath.Join(dir, nextAccountFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("killed after step %d: the next key is still there: %v", killed, err)
		}
	}
}

// TestLinkedAfterRotation: a PC that was linked is granted again by the new key, by the text of linking; the old key's grants are not taken then.
func TestLinkedAfterRotation(t *testing.T) {
	first, owner := create(t)
	second, _, device := ask(t)
	if _, err := Install(second, grant(t, first, device, AllPowers, 1, someday), free); err != nil {
		t.Fatal(err)
	}
	old, _, err := load(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RotateAccount(first, someday.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := FinishAccountRotation(first, someday.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	inUse := func() error { return errors.New("it has entries") }
	text := grant(t, first, device, PowerPay, 7, someday.Add(2*time.Hour))
	dev, err := Install(second, text, inUse)
	if err != nil || dev.Account() != owner.Account() {
		t.Fatal(dev, err)
	}
	raw, err := Delegate(old, device, 1<<60, AllPowers, 9) // by a thief who has the old key
	if err != nil {
		t.Fatal(err)
	}
	late, err := GrantText(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(second, late, inUse); !errors.Is(err, ErrReplaced) {
		t.Errorf("a grant by the old key: %v", err)
	}
	refuseOldKeys(t, second, old, device, inUse)
	if _, err := RotateAccount(second, someday); !errors.Is(err, ErrNoAccountKey) {
		t.Errorf("on the linked PC: %v", err)
	}
}

// refuseOldKeys: grants by an account's replaced key, and by another heir of it, are not taken on a linked PC, for its next device neither.
func refuseOldKeys(t *testing.T, second string, old ed25519.PrivateKey, device PeerID, inUse func() error) {
	t.Helper()
	next, err := NextDevice(second)
	if err != nil {
		t.Fatal(err)
	}
	rotate := func(auth Authority) error {
		raw, err := auth.Delegate(next.New, 1<<60, AllPowers, 9)
		if err != nil {
			t.Fatal(err)
		}
		text, err := GrantText(raw)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Rotate(second, text, someday)
		return err
	}
	thief, err := FirstKey(old).Succeed(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := rotate(FirstKey(old)); !errors.Is(err, ErrReplaced) || !errors.Is(err, ErrOldGrant) {
		t.Errorf("a grant by the old key for the next device: %v", err)
	}
	if err := rotate(thief); !errors.Is(err, ErrTwoKeys) {
		t.Errorf("a grant by another heir of the old key for the next device: %v", err)
	}
	raw, err := thief.Delegate(device, 1<<60, AllPowers, 9)
	if err != nil {
		t.Fatal(err)
	}
	late, err := GrantText(raw)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(second, late, inUse); !errors.Is(err, ErrTwoKeys) {
		t.Errorf("a grant by another heir of the old key: %v", err)
	}
}
