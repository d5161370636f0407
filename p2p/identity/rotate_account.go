package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// nextAccountFile holds the account's next key, from when it is made until the change is finished. As with a device's, the delegation alone
// says which one is in use (docs/adr/0012).
const nextAccountFile = "next-account.key"

// authority is what signs for the account of dev: its key, and the chain that dev's own delegation has.
func authority(account ed25519.PrivateKey, dev *Device) (Authority, error) {
	d, err := OpenDelegation(dev.Delegation())
	return Authority{Account: dev.Account(), Chain: d.Chain, Key: account}, err
}

// accountKey is the key that signed dev's delegation: the account's, or its next one while a change is not finished; nil if neither did.
func accountKey(dir string, dev *Device) (ed25519.PrivateKey, error) {
	d, err := OpenDelegation(dev.Delegation())
	if err != nil {
		return nil, err
	}
	want, err := d.Chain.Key(d.Account)
	if err != nil {
		return nil, err
	}
	key, err := readKey(filepath.Join(dir, accountFile))
	if err != nil {
		return nil, err
	}
	if holds(key, want) {
		return key, nil
	}
	if next, err := nextKey(dir, nextAccountFile); err == nil && holds(next, want) {
		return next, nil
	}
	return nil, nil
}

// isFormer reports whether a name is that of a key which d's account has replaced.
func (d Delegation) isFormer(name PeerID) bool {
	key := d.Account
	for _, s := range d.Chain {
		if PeerID(key) == name {
			return true
		}
		key = s.Next
	}
	return false
}

// KeyChanges is how often the key of the account of dir was changed, as far as this PC knows.
func KeyChanges(dir string) (int, error) {
	dev, err := Load(dir)
	if err != nil {
		return 0, err
	}
	d, err := OpenDelegation(dev.Delegation())
	return len(d.Chain), err
}

// RotateAccount changes the account's key, on the PC that has it: a new key signs for the same account from now on, and this device's
// delegation. Nobody may use the identity meanwhile. [FinishAccountRotation] comes after it. Devices that were linked must be granted again.
func RotateAccount(dir string, now time.Time) (*Device, error) {
	account, dev, err := load(dir)
	if err != nil {
		return nil, err
	}
	if account == nil {
		return nil, fmt.Errorf("rotate account: %w", ErrNoAccountKey)
	}
	was, err := OpenDelegation(dev.Delegation())
	if err != nil {
		return nil, err
	}
	old, err := authority(account, dev)
	if err != nil {
		return nil, err
	}
	next, err := nextKey(dir, nextAccountFile)
	if errors.Is(err, ErrNoNext) {
		next, err = makeNext(dir, nextAccountFile)
	}
	if err != nil {
		return nil, err
	}
	auth, err := old.Succeed(next)
	if err != nil {
		return nil, fmt.Errorf("rotate account: %w", err)
	}
	if _, err := nextSerial(dir, dev, PeerID(account.Public().(ed25519.PublicKey)), now); err != nil { // room for the news in the list
		return nil, err
	}
	serial, err := nextSerial(dir, dev, dev.Peer(), now)
	if err != nil {
		return nil, err
	}
	raw, err := auth.Delegate(dev.Peer(), serial, was.Powers, was.Cap)
	if err != nil {
		return nil, err
	}
	if err := replacePEM(filepath.Join(dir, delegationFile), pemDelegation, raw); err != nil {
		return nil, fmt.Errorf("rotate account: %w", err)
	}
	return Load(dir)
}

// AccountUnfinished says whether [FinishAccountRotation] has something to do, and changes nothing.
func AccountUnfinished(dir string) (bool, error) {
	next, err := nextKey(dir, nextAccountFile)
	if errors.Is(err, ErrNoNext) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	account, _, err := load(dir)
	return err == nil && account.Equal(next), err // else it waits, or this PC was linked to another meanwhile
}

// FinishAccountRotation does what is left after [RotateAccount], or after a kill in it: it signs the news of the change, which a daemon
// spreads as it does revocations, and removes the old key. ok is false if there is nothing to finish. Call it at each start.
func FinishAccountRotation(dir string, now time.Time) (ok bool, err error) {
	if ok, err := AccountUnfinished(dir); err != nil || !ok {
		return false, err
	}
	account, dev, err := load(dir)
	if err != nil {
		return false, err
	}
	auth, err := authority(account, dev)
	if err != nil {
		return false, err
	}
	former, err := auth.Chain[:len(auth.Chain)-1].Key(auth.Account)
	if err != nil {
		return false, err
	}
	if err := errors.Join(letGo(dir, dev, PeerID(former), now), revokeAgain(dir, dev, auth, now)); err != nil {
		return false, err
	}
	if err := os.Rename(filepath.Join(dir, nextAccountFile), filepath.Join(dir, accountFile)); err != nil {
		return false, fmt.Errorf("rotate account: %w", err)
	}
	return true, syncDir(dir)
}

// revokeAgain signs with the new key what the old one revoked: whoever knows the new one takes no news of the old one any more.
func revokeAgain(dir string, dev *Device, auth Authority, now time.Time) error {
	all, err := devices(dir, dev)
	if err != nil {
		return err
	}
	for _, k := range all {
		if k.Revoked() && k.Revocation.Chain.Against(auth.Chain) == OlderKey {
			if _, _, err := RevokeDevice(dir, k.Device, now); err != nil {
				return err
			}
		}
	}
	return nil
}
