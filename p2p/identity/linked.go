package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

var (
	// ErrAccountUsed says that the account that is here has dealt with others, so that another can't take its place.
	ErrAccountUsed = errors.New("the account that is on this PC is in use")
	// ErrOldGrant says that a grant is older than the delegation that is here.
	ErrOldGrant = errors.New("a newer delegation is here")
)

// pemGrant marks the delegation of a linked device: the account's key is on another PC, and that it is missing here is no damage.
const pemGrant = "GPUFAIR LINKED DELEGATION"

// waitingDir is where the key of a device waits that has asked to be let in and is nobody's yet: beside the identity's own folder.
func waitingDir(dir string) string { return filepath.Clean(dir) + "-waiting" }

// Ask gives the text with which the device of dir asks an account to let it in. Where there is no identity yet, it makes a device key,
// which waits for the grant; the identity that is made or granted later has it. Asking again gives the same device.
func Ask(dir string) (text string, device PeerID, err error) {
	key, err := deviceKey(dir)
	if errors.Is(err, ErrNoIdentity) {
		key, err = makeWaiting(dir)
	}
	if err != nil {
		return "", device, err
	}
	text, err = RequestText(key)
	return text, PeerID(key.Public().(ed25519.PublicKey)), err
}

// deviceKey is the key of dir's device, in use or waiting.
func deviceKey(dir string) (ed25519.PrivateKey, error) {
	err := checkPresent(dir)
	if err == nil {
		raw, _, err := readDelegation(filepath.Join(dir, delegationFile))
		if err != nil {
			return nil, err
		}
		return keyInUse(dir, raw)
	}
	if !errors.Is(err, ErrNoIdentity) {
		return nil, err
	}
	path := filepath.Join(waitingDir(dir), deviceFile)
	if _, missing := os.Lstat(path); errors.Is(missing, fs.ErrNotExist) {
		return nil, err
	}
	return readKey(path)
}

func makeWaiting(dir string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("device key: %w", err)
	}
	into := waitingDir(dir)
	if err := os.MkdirAll(into, 0o700); err != nil {
		return nil, fmt.Errorf("keep device key: %w", err)
	}
	if err := replacePEM(filepath.Join(into, deviceFile), pemKey, der); err != nil {
		return nil, fmt.Errorf("keep device key: %w", err)
	}
	return key, syncDir(filepath.Dir(into))
}

// Install puts a grant into dir: this device acts for the account that signed it from now on. unused is asked when another account is
// here: it says nil if that account has never dealt with anybody, and why not else. That account's key is kept under another name. The
// same grant again changes nothing.
func Install(dir, grant string, unused func() error) (*Device, error) {
	dir = filepath.Clean(dir)
	key, err := deviceKey(dir)
	if err != nil {
		return nil, err
	}
	raw, d, err := ParseGrant(grant, PeerID(key.Public().(ed25519.PublicKey)))
	if err != nil {
		return nil, err
	}
	account, old, err := load(dir)
	switch {
	case errors.Is(err, ErrNoIdentity):
		return installNew(dir, key, raw)
	case err != nil:
		return nil, err
	}
	was, err := OpenDelegation(old.Delegation())
	switch {
	case err != nil:
		return nil, err
	case was.Account == d.Account:
		if err := d.replaces(was); err != nil {
			return nil, fmt.Errorf("install grant: %w", err)
		}
	default:
		if err := errors.Join(noDevices(dir, old), unused()); err != nil {
			return nil, fmt.Errorf("install grant: %w: %w", ErrAccountUsed, err)
		}
	}
	signer, err := d.Chain.Key(d.Account)
	if err != nil {
		return nil, err
	}
	kind := pemGrant
	if holds(account, signer) {
		kind = pemDelegation
	}
	if err := replacePEM(filepath.Join(dir, delegationFile), kind, raw); err != nil {
		return nil, fmt.Errorf("install grant: %w", err)
	}
	if account != nil && !holds(account, signer) { // it is not read any more; never removed, since it may be somebody's only copy
		if err := os.Rename(filepath.Join(dir, accountFile), filepath.Join(dir, "unused-"+was.Account.Short()+".key")); err != nil {
			return nil, fmt.Errorf("install grant: %w", err)
		}
	}
	return NewDevice(key, raw)
}

// replaces says why a grant may not take the place of a delegation of the same account.
func (d Delegation) replaces(was Delegation) error {
	switch d.Chain.Against(was.Chain) {
	case Forked:
		return ErrTwoKeys
	case OlderKey:
		return fmt.Errorf("%w: %w", ErrOldGrant, ErrReplaced)
	}
	if d.Serial < was.Serial {
		return fmt.Errorf("%w, of serial %d; this grant has %d", ErrOldGrant, was.Serial, d.Serial)
	}
	return nil
}

// noDevices says whether the account that is here has let other devices in, which would lose it.
func noDevices(dir string, dev *Device) error {
	all, err := devices(dir, dev)
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("account %s has %d other devices", dev.Account().Short(), len(all)-1)
	}
	return err
}

// installNew makes an identity of a device key that has waited and its grant.
func installNew(dir string, key ed25519.PrivateKey, delegation []byte) (*Device, error) {
	dev, err := NewDevice(key, delegation)
	if err != nil {
		return nil, err
	}
	return dev, place(dir, func(tmp string) error { return writeFiles(tmp, nil, key, delegation) })
}
