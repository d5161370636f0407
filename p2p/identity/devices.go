package identity

import (
	"cmp"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// ErrNoAccountKey says that an identity was linked: its account's key is on another PC, and what needs the key is done there.
var ErrNoAccountKey = errors.New("the account's key is not on this PC, which was linked to the account")

// ErrTooManyDevices says that an account has let in as many devices as it can.
var ErrTooManyDevices = errors.New("too many devices")

// MaxDevices is how many devices an account may ever let in or revoke; lists of an account's revocations are bounded by it.
const MaxDevices = 64

// The devices of an account lie beside its key, two small files for each device: the newest delegation and the highest revocation.
const (
	devicesDir    = "devices"
	grantFile     = ".delegation.pem"
	revokedFile   = ".revocation.pem"
	pemRevocation = "GPUFAIR REVOCATION"
)

// Known is what an account's PC knows of one device of the account.
type Known struct {
	Device     PeerID
	Delegation *Delegation // the newest; nil if it was made elsewhere, as before an import
	Revocation *Revocation // the highest; nil: never revoked
	Sealed     []byte      // the revocation as signed
	This       bool        // the device is this PC's own
	formerKey  bool        // it is no device but a key that the account has replaced
}

// Revoked reports whether the newest delegation that is known is void.
func (k Known) Revoked() bool {
	return k.Revocation != nil && (k.Delegation == nil || k.Revocation.Voids(*k.Delegation))
}

// Devices lists the devices that the account of dir has let in or revoked, as far as this PC knows, its own first. On a linked PC it is
// that PC alone.
func Devices(dir string) ([]Known, error) {
	_, dev, err := load(dir)
	if err != nil {
		return nil, err
	}
	all, err := devices(dir, dev)
	return slices.DeleteFunc(all, func(k Known) bool { return k.formerKey }), err
}

// Revocations gives every revocation that the account of dir has signed, as far as this PC knows, for the daemon to spread: of devices, and of
// keys that the account has replaced.
func Revocations(dir string) ([][]byte, error) {
	_, dev, err := load(dir)
	if err != nil {
		return nil, err
	}
	all, err := devices(dir, dev)
	var out [][]byte
	for _, k := range all {
		if k.Sealed != nil {
			out = append(out, k.Sealed)
		}
	}
	return out, err
}

// devices lists keys that were replaced, too: they take places in the list as devices do.
func devices(dir string, dev *Device) ([]Known, error) {
	own, err := OpenDelegation(dev.Delegation())
	if err != nil {
		return nil, err
	}
	all := []Known{{Device: dev.Peer(), Delegation: &own, This: true}}
	names, err := deviceFiles(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := readDevice(filepath.Join(dir, devicesDir, name), dev.Account(), &all); err != nil {
			return nil, err
		}
	}
	for i := range all {
		all[i].formerKey = own.isFormer(all[i].Device)
	}
	slices.SortFunc(all[1:], func(a, b Known) int { return cmp.Compare(a.Device.String(), b.Device.String()) })
	return all, nil
}

// deviceFiles lists the files of other devices, a bounded number.
func deviceFiles(dir string) ([]string, error) {
	f, err := os.Open(filepath.Join(dir, devicesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	defer f.Close()
	const most = 4 * MaxDevices // two of each, and what a crash left of their writing
	names, err := f.Readdirnames(most + 1)
	if err != nil && len(names) == 0 {
		return nil, nil // empty
	}
	if len(names) > most {
		return nil, fmt.Errorf("%w: %s has over %d files: move away those that are not of a device", ErrIdentityFiles, f.Name(), most)
	}
	return slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasSuffix(n, grantFile) && !strings.HasSuffix(n, revokedFile)
	}), nil
}

// readDevice adds what the file says to the list. Records of another account, which this PC had before, are left out.
func readDevice(path string, account AccountID, all *[]Known) error {
	kind := pemDelegation
	if strings.HasSuffix(path, revokedFile) {
		kind = pemRevocation
	}
	raw, err := readPEM(path, kind)
	if err != nil {
		return err
	}
	var (
		h Header
		d Delegation
		r Revocation
	)
	if kind == pemRevocation {
		r, err = OpenRevocation(raw)
		h = r.Header
	} else {
		d, err = OpenDelegation(raw)
		h = d.Header
	}
	if err != nil {
		return damaged(path, err)
	}
	if h.Account != account {
		return nil
	}
	at := slices.IndexFunc(*all, func(k Known) bool { return k.Device == h.Device })
	if at < 0 {
		at, *all = len(*all), append(*all, Known{Device: h.Device})
	}
	switch k := &(*all)[at]; {
	case kind == pemRevocation:
		k.Revocation, k.Sealed = &r, raw
	case k.Delegation == nil || d.Serial > k.Delegation.Serial:
		k.Delegation = &d
	}
	return nil
}

// Grant lets a device act for the account of dir: it signs a delegation for device, newer than all that this PC knows of, and keeps a
// copy. limit is the cap of one lane in micro-units. Own device: its own delegation becomes the new one.
func Grant(dir string, device PeerID, powers Powers, limit uint64, now time.Time) ([]byte, Delegation, error) {
	account, dev, err := load(dir)
	if err != nil {
		return nil, Delegation{}, err
	}
	if account == nil {
		return nil, Delegation{}, fmt.Errorf("let device %s in: %w", device.Short(), ErrNoAccountKey)
	}
	serial, err := nextSerial(dir, dev, device, now)
	if err != nil {
		return nil, Delegation{}, err
	}
	auth, err := authority(account, dev)
	if err != nil {
		return nil, Delegation{}, err
	}
	raw, err := auth.Delegate(device, serial, powers, limit)
	if err != nil {
		return nil, Delegation{}, err
	}
	d, err := OpenDelegation(raw)
	if err != nil {
		return nil, d, err
	}
	return raw, d, keepDevice(dir, device, grantFile, pemDelegation, raw)
}

// RevokeDevice voids every delegation of device that the account of dir has signed up to now, and keeps the revocation. It gives the
// signed record, for the daemon to spread.
func RevokeDevice(dir string, device PeerID, now time.Time) ([]byte, Revocation, error) {
	account, dev, err := load(dir)
	if err != nil {
		return nil, Revocation{}, err
	}
	if account == nil {
		return nil, Revocation{}, fmt.Errorf("revoke device %s: %w", device.Short(), ErrNoAccountKey)
	}
	serial, err := nextSerial(dir, dev, device, now)
	if err != nil {
		return nil, Revocation{}, err
	}
	auth, err := authority(account, dev)
	if err != nil {
		return nil, Revocation{}, err
	}
	raw, err := auth.Revoke(device, serial, now.UnixMilli())
	if err != nil {
		return nil, Revocation{}, err
	}
	r, err := OpenRevocation(raw)
	if err != nil {
		return nil, r, err
	}
	return raw, r, keepDevice(dir, device, revokedFile, pemRevocation, raw)
}

// nextSerial is higher than every serial that this PC knows of, and than those of other PCs that once held the key: it is the time in
// Unix milliseconds where the clock did not go back.
func nextSerial(dir string, dev *Device, device PeerID, now time.Time) (uint64, error) {
	all, err := devices(dir, dev)
	if err != nil {
		return 0, err
	}
	serial, known := uint64(max(now.UnixMilli(), 1)), false
	for _, k := range all {
		known = known || k.Device == device
		if k.Delegation != nil {
			serial = max(serial, k.Delegation.Serial+1)
		}
		if k.Revocation != nil {
			serial = max(serial, k.Revocation.Serial+1)
		}
	}
	if !known && len(all) >= MaxDevices {
		return 0, fmt.Errorf("%w: the account has let in or revoked %d, and that is the most", ErrTooManyDevices, MaxDevices)
	}
	return serial, nil
}

// keepDevice replaces one file of a device, durably.
func keepDevice(dir string, device PeerID, suffix, kind string, raw []byte) error {
	into := filepath.Join(dir, devicesDir)
	if err := os.MkdirAll(into, 0o700); err != nil {
		return fmt.Errorf("keep device %s: %w", device.Short(), err)
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := replacePEM(filepath.Join(into, device.String()+suffix), kind, raw); err != nil {
		return fmt.Errorf("keep device %s: %w", device.Short(), err)
	}
	return nil
}

// replacePEM puts a file in place of an older one, whole or not at all.
func replacePEM(path, kind string, raw []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*") // 0600
	if err != nil {
		return err
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: raw})
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// HasAccountKey reports whether the account's key lies in dir; on a linked PC it does not.
func HasAccountKey(dir string) (bool, error) {
	account, _, err := load(dir)
	return account != nil, err
}

// holds reports whether key is account's, of an account's name or of a key that follows it.
func holds(key ed25519.PrivateKey, account AccountID) bool {
	return key != nil && AccountID(key.Public().(ed25519.PublicKey)) == account
}
