package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrNoNext says that no next key waits in an identity's folder.
var ErrNoNext = errors.New("no next key was made here")

// nextFile holds the key of this PC's next device, from when it is made until the rotation is finished. Which key is in use, the
// delegation alone says: replacing that one file is the rotation, and a kill at any time leaves the old device or the new one.
const nextFile = "next.key"

// Rotation is how far the change of this PC's device key has come (docs/adr/0011).
type Rotation struct {
	Old, New PeerID
	Request  string     // for `identity link` on the PC that has the account's key
	Under    Delegation // the old device's: the new one asks for the same powers and cap
}

// NextDevice makes the key of this PC's next device, or gives the one that waits already. The device in use stays as it is.
func NextDevice(dir string) (Rotation, error) {
	dev, err := Load(dir)
	if err != nil {
		return Rotation{}, err
	}
	under, err := OpenDelegation(dev.Delegation())
	if err != nil {
		return Rotation{}, err
	}
	next, err := nextKey(dir, nextFile)
	if errors.Is(err, ErrNoNext) {
		next, err = makeNext(dir, nextFile)
	}
	if err != nil {
		return Rotation{}, err
	}
	r := Rotation{Old: dev.Peer(), New: PeerID(next.Public().(ed25519.PublicKey)), Under: under}
	r.Request, err = RequestText(next)
	return r, err
}

// Rotate makes the device that waits this PC's own, for the same account. grant is what the PC with the account's key answered to the
// request; it is empty where the key is here. Nobody may use the identity meanwhile. [FinishRotation] comes after it.
func Rotate(dir, grant string, now time.Time) (Rotation, error) {
	r, err := NextDevice(dir)
	if err != nil {
		return r, err
	}
	has, err := HasAccountKey(dir)
	if err != nil {
		return r, err
	}
	kind := pemGrant
	var raw []byte
	if has && grant == "" {
		kind = pemDelegation
		raw, _, err = Grant(dir, r.New, r.Under.Powers, r.Under.Cap, now)
	} else {
		raw, err = r.parse(grant)
	}
	if err != nil {
		return r, err
	}
	if has { // the list of devices goes on naming the old one
		old, err := Load(dir)
		if err != nil {
			return r, err
		}
		kind = pemDelegation
		if err := keepDevice(dir, r.Old, grantFile, pemDelegation, old.Delegation()); err != nil {
			return r, err
		}
	}
	if err := replacePEM(filepath.Join(dir, delegationFile), kind, raw); err != nil {
		return r, fmt.Errorf("rotate device: %w", err)
	}
	return r, nil
}

// parse reads a grant for the next device: by the same account and no former key of it, and newer than what is here.
func (r Rotation) parse(grant string) ([]byte, error) {
	raw, d, err := ParseGrant(grant, r.New)
	switch {
	case err != nil:
		return nil, err
	case d.Account != r.Under.Account:
		return nil, fmt.Errorf("rotate device: %w: the grant is by account %s, this PC acts for %s", ErrLink, d.Account, r.Under.Account)
	case d.Serial == r.Under.Serial:
		return nil, fmt.Errorf("rotate device: %w, of the same serial %d", ErrOldGrant, d.Serial)
	}
	if err := d.replaces(r.Under); err != nil {
		return nil, fmt.Errorf("rotate device: %w", err)
	}
	return raw, nil
}

// Rotated is what [FinishRotation] did.
type Rotated struct {
	Old, New PeerID
	Revoked  bool // the old device was let go; else the PC that has the account's key must do it
}

// Unfinished says what [FinishRotation] would do, and changes nothing.
func Unfinished(dir string) (r Rotated, ok bool, err error) {
	next, err := nextKey(dir, nextFile)
	if errors.Is(err, ErrNoNext) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	account, dev, err := load(dir)
	if err != nil || dev.Peer() != PeerID(next.Public().(ed25519.PublicKey)) {
		return r, false, err // it waits
	}
	old, err := readKey(filepath.Join(dir, deviceFile))
	if err != nil {
		return r, false, err
	}
	return Rotated{Old: PeerID(old.Public().(ed25519.PublicKey)), New: dev.Peer(), Revoked: account != nil}, true, nil
}

// FinishRotation does what is left after [Rotate], or after a kill in it: it lets the old device go, where the account's key is here, and
// removes its private key. ok is false if there is nothing to finish; it costs no more than a look then. Call it at each start.
func FinishRotation(dir string, now time.Time) (r Rotated, ok bool, err error) {
	r, ok, err = Unfinished(dir)
	if err != nil || !ok {
		return r, false, err
	}
	if r.Revoked && r.Old != r.New {
		dev, err := Load(dir)
		if err != nil {
			return r, false, err
		}
		if err := letGo(dir, dev, r.Old, now); err != nil {
			return r, false, err
		}
	}
	if err := os.Rename(filepath.Join(dir, nextFile), filepath.Join(dir, deviceFile)); err != nil {
		return r, false, fmt.Errorf("rotate device: %w", err)
	}
	return r, true, syncDir(dir)
}

// letGo revokes a device unless that was done.
func letGo(dir string, dev *Device, device PeerID, now time.Time) error {
	all, err := devices(dir, dev)
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.Device == device && k.Revoked() {
			return nil
		}
	}
	_, _, err = RevokeDevice(dir, device, now)
	return err
}

// nextKey reads the key that waits, or gives ErrNoNext.
func nextKey(dir, name string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoNext
	}
	return readKey(path)
}

// makeNext makes a key durable under its name, whole or not at all; where another process was faster, it gives that one's.
func makeNext(dir, name string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("next key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("next key: %w", err)
	}
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return nil, fmt.Errorf("next key: %w", err)
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: pemKey, Bytes: der})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("next key: %w", err)
	}
	err = os.Link(f.Name(), filepath.Join(dir, name)) // unlike a rename, it never replaces one
	switch {
	case errors.Is(err, fs.ErrExist):
		return nextKey(dir, name)
	case err != nil:
		return nil, fmt.Errorf("next key: %w", err)
	}
	return key, syncDir(dir)
}

// keyInUse is the device key that a delegation names: this PC's, or the next one's while a rotation is not finished.
func keyInUse(dir string, delegation []byte) (ed25519.PrivateKey, error) {
	key, err := readKey(filepath.Join(dir, deviceFile))
	if err != nil {
		return nil, err
	}
	d, err := OpenDelegation(delegation)
	if err != nil || d.Device == PeerID(key.Public().(ed25519.PublicKey)) {
		return key, nil // what is wrong with the delegation, NewDevice says
	}
	if next, err := nextKey(dir, nextFile); err == nil && d.Device == PeerID(next.Public().(ed25519.PublicKey)) {
		return next, nil
	}
	return key, nil
}
