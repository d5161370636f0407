package identity

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// finish finishes a rotation and checks that nothing is left to finish after.
func finish(t *testing.T, dir string) (r Rotated, ok bool) {
	t.Helper()
	r, ok, err := FinishRotation(dir, someday.Add(2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, again, err := FinishRotation(dir, someday.Add(3*time.Hour)); again || err != nil {
		t.Errorf("finished twice: %v %v", again, err)
	}
	return r, ok
}

// known gives what the account's PC knows of a device.
func known(t *testing.T, dir string, device PeerID) Known {
	t.Helper()
	_, dev, err := load(dir)
	if err != nil {
		t.Fatal(err)
	}
	all, err := devices(dir, dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if k.Device == device {
			return k
		}
	}
	t.Fatalf("device %s is not in the list %+v", device, all)
	return Known{}
}

// TestRotateDevice: a new key under a new delegation of the same account; the old one is let go and its key is gone.
func TestRotateDevice(t *testing.T) {
	dir, was := create(t)
	if _, ok, err := FinishRotation(dir, someday); ok || err != nil {
		t.Fatalf("nothing to finish: %v %v", ok, err)
	}
	r, err := Rotate(dir, "", someday.Add(time.Hour))
	if err != nil || r.Old != was.Peer() || r.New == was.Peer() {
		t.Fatalf("%+v %v", r, err)
	}
	done, ok := finish(t, dir)
	if !ok || !done.Revoked || done.Old != r.Old || done.New != r.New {
		t.Errorf("finished %+v %v", done, ok)
	}
	dev, err := Load(dir)
	if err != nil || dev.Account() != was.Account() || dev.Peer() != r.New {
		t.Fatal(dev, err)
	}
	d, err := OpenDelegation(dev.Delegation())
	if err != nil || d.Powers != r.Under.Powers || d.Cap != r.Under.Cap || d.Serial <= r.Under.Serial {
		t.Errorf("the new delegation is %+v %v, the old one was %+v", d, err, r.Under)
	}
	if k := known(t, dir, r.Old); !k.Revoked() || k.Delegation == nil || !k.Revocation.Voids(*k.Delegation) || k.This {
		t.Errorf("the old device is %+v", k)
	}
	if k := known(t, dir, r.New); k.Revoked() || !k.This {
		t.Errorf("the new device is %+v", k)
	}
	key, err := readKey(filepath.Join(dir, deviceFile))
	if err != nil || PeerID(key.Public().(ed25519.PublicKey)) != r.New {
		t.Errorf("the key that is here is not the new one: %v", err)
	}
	if has, err := HasAccountKey(dir); !has || err != nil {
		t.Error("the account's key went with the device", err)
	}
	again, err := Rotate(dir, "", someday.Add(4*time.Hour))
	if err != nil || again.Old != r.New || again.New == r.New || again.New == r.Old {
		t.Errorf("a second rotation: %+v %v", again, err)
	}
}

// TestRotationKilled: a kill after each step leaves the old device or the new one, whole, and the next run ends the same.
func TestRotationKilled(t *testing.T) {
	now := someday.Add(time.Hour)
	steps := []func(dir string, r Rotation) error{
		func(string, Rotation) error { return nil }, // the next key is durable
		func(dir string, r Rotation) error {
			_, _, err := Grant(dir, r.New, r.Under.Powers, r.Under.Cap, now)
			return err
		},
		func(dir string, _ Rotation) error { _, err := Rotate(dir, "", now); return err },
		func(dir string, r Rotation) error { _, _, err := RevokeDevice(dir, r.Old, now); return err },
	}
	const switched = 2 // from this step on, the new device is in use
	for killed := range steps {
		dir, was := create(t)
		r, err := NextDevice(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps[:killed+1] {
			if err := step(dir, r); err != nil {
				t.Fatal(err)
			}
		}
		want := r.Old
		if killed >= switched {
			want = r.New
		}
		dev, err := Load(dir)
		if err != nil || dev.Peer() != want || dev.Account() != was.Account() {
			t.Fatalf("killed after step %d: %v %v", killed, dev, err)
		}
		if _, ok := finish(t, dir); ok != (killed >= switched) {
			t.Errorf("killed after step %d: the start finished a rotation: %v", killed, ok)
		}
		if killed < switched {
			if again, err := Rotate(dir, "", now.Add(time.Hour)); err != nil || again.New != r.New || again.Old != r.Old {
				t.Errorf("killed after step %d: the next run: %+v %v", killed, again, err)
			}
			finish(t, dir)
		}
		if dev, err := Load(dir); err != nil || dev.Peer() != r.New {
			t.Errorf("killed after step %d: at the end %v %v", killed, dev, err)
		}
		if !known(t, dir, r.Old).Revoked() {
			t.Errorf("killed after step %d: the old device may still act", killed)
		}
		if _, err := os.Lstat(filepath.Join(dir, nextFile)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("killed after step %d: the next key is still there: %v", killed, err)
		}
	}
}

// TestRotateLinked: a PC without the account's key asks the one that has it.
func TestRotateLinked(t *testing.T) {
	first, owner := create(t)
	second, _, device := ask(t)
	if _, err := Install(second, grant(t, first, device, PowerTrade|PowerPay, 50, someday.Add(time.Minute)), free); err != nil {
		t.Fatal(err)
	}
	r, err := NextDevice(second)
	if err != nil || r.Old != device || r.Under.Cap != 50 {
		t.Fatalf("%+v %v", r, err)
	}
	if again, err := NextDevice(second); err != nil || again.New != r.New || again.Request != r.Request {
		t.Errorf("asked again: %+v %v", again, err)
	}
	asked, err := ParseRequest(r.Request)
	if err != nil || asked != r.New {
		t.Fatal(asked, err)
	}
	stranger, _ := create(t)
	later := someday.Add(time.Hour)
	for what, text := range map[string]string{
		"no grant":                "",
		"a grant for the old key": grant(t, first, r.Old, PowerTrade, 50, later),
		"another account's grant": grant(t, stranger, r.New, PowerTrade, 50, later),
	} {
		if _, err := Rotate(second, text, later); !errors.Is(err, ErrLink) {
			t.Errorf("%s: %v", what, err)
		}
	}
	key, _, err := load(first)
	if err != nil {
		t.Fatal(err)
	}
	old, err := Delegate(key, r.New, r.Under.Serial, AllPowers, 50)
	if err != nil {
		t.Fatal(err)
	}
	text, err := GrantText(old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(second, text, later); !errors.Is(err, ErrOldGrant) {
		t.Errorf("a grant that is no newer: %v", err)
	}
	if dev, err := Load(second); err != nil || dev.Peer() != device {
		t.Fatalf("something was changed: %v %v", dev, err)
	}
	if _, err := Rotate(second, grant(t, first, asked, r.Under.Powers, r.Under.Cap, later), later); err != nil {
		t.Fatal(err)
	}
	if done, ok := finish(t, second); !ok || done.Revoked || done.Old != device {
		t.Errorf("finished %+v %v: a linked PC can't let a device go", done, ok)
	}
	dev, err := Load(second)
	if err != nil || dev.Account() != owner.Account() || dev.Peer() != r.New {
		t.Fatal(dev, err)
	}
	if has, err := HasAccountKey(second); has || err != nil {
		t.Error("it looks as if the account's key were here", err)
	}
	if _, _, err := RevokeDevice(first, device, later); err != nil || !known(t, first, device).Revoked() || known(t, first, r.New).Revoked() {
		t.Errorf("the account's PC lets the old one go: %v", err)
	}
}
