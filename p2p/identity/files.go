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
	"runtime"
	"time"
)

var (
	// ErrNoIdentity says that a directory holds no identity yet.
	ErrNoIdentity = errors.New("no identity here")
	// ErrIdentityExists says that a directory holds an identity already. It is never overwritten.
	ErrIdentityExists = errors.New("an identity is here already")
	// ErrIdentityFiles says that an identity's files are unsafe, incomplete or damaged; the text says what to do.
	ErrIdentityFiles = errors.New("cannot use the identity")
)

// The files of an identity.
const (
	accountFile    = "account.key"
	deviceFile     = "device.key"
	delegationFile = "delegation.pem"

	pemKey        = "PRIVATE KEY"
	pemDelegation = "GPUFAIR DELEGATION"
	maxKeyFile    = 4 << 10 // bytes; a PEM Ed25519 key has 119, a delegation about 400
)

// Create makes an account and its first device in dir: account.key, device.key (PEM PKCS#8, 0600) and delegation.pem. dir (0700) is
// the identity's own: it must be missing or empty, else the error is [ErrIdentityExists]. It appears whole or not at all. now makes
// the delegation's serial.
func Create(dir string, now time.Time) (*Device, error) {
	_, account, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create identity: %w", err)
	}
	return install(dir, FirstKey(account), now)
}

// LoadOrCreate is Load, or Create where there is no identity yet; created says which.
func LoadOrCreate(dir string, now time.Time) (dev *Device, created bool, err error) {
	dev, err = Load(dir)
	if !errors.Is(err, ErrNoIdentity) {
		return dev, false, err
	}
	dev, err = Create(dir, now)
	if errors.Is(err, ErrIdentityExists) { // another process was faster
		dev, err = Load(dir)
		return dev, false, err
	}
	return dev, err == nil, err
}

// Load reads the identity in dir: [ErrNoIdentity] if there is none, [ErrIdentityFiles] if what is there cannot be trusted.
func Load(dir string) (*Device, error) {
	_, dev, err := load(dir)
	return dev, err
}

// load gives a nil account key where the device was linked to an account whose key is on another PC.
func load(dir string) (account ed25519.PrivateKey, dev *Device, err error) {
	if err := checkPresent(dir); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, delegationFile)
	raw, linked, err := readDelegation(path)
	if err != nil {
		return nil, nil, err
	}
	device, err := keyInUse(dir, raw)
	if err != nil {
		return nil, nil, err
	}
	if dev, err = NewDevice(device, raw); err != nil {
		return nil, nil, damaged(path, err)
	}
	if linked { // a key that is here is of an account that this device left
		return nil, dev, nil
	}
	if account, err = accountKey(dir, dev); err != nil {
		return nil, nil, err
	}
	if account == nil {
		return nil, nil, fmt.Errorf("%w: %s is for account %s, but %s holds another key: put back the three files of one backup",
			ErrIdentityFiles, path, dev.Account(), accountFile)
	}
	return account, dev, nil
}

// checkPresent tells no identity from part of one, and a directory that others can read.
func checkPresent(dir string) error {
	var there, missing []string
	for _, name := range []string{accountFile, deviceFile, delegationFile} {
		_, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err == nil:
			there = append(there, name)
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, name)
		default:
			return fmt.Errorf("load identity: %w", err)
		}
	}
	switch {
	case len(there) == 0:
		return fmt.Errorf("load identity from %s: %w", dir, ErrNoIdentity)
	case len(missing) == 1 && missing[0] == accountFile && isLinked(dir):
	case len(missing) > 0:
		return fmt.Errorf("%w: %s has %q but not %q: put the missing file back from a backup; without one, move %s away and run"+
			" `identity import` with the recovery phrase", ErrIdentityFiles, dir, there, missing, dir)
	}
	return private(dir, "700")
}

// private refuses a path that others than its owner may use. On Windows the mode says nothing: the profile's own rights guard it.
func private(path, want string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("load identity: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("%w: others can get at %s (mode %04o): run `chmod %s %s`, and if others did use this machine make a new identity",
			ErrIdentityFiles, path, mode, want, path)
	}
	return nil
}

func damaged(path string, why error) error {
	return fmt.Errorf("%w: %s is damaged (%w): put it back from a backup, or move the directory away and run `identity import` with the"+
		" recovery phrase", ErrIdentityFiles, path, why)
}

// readDelegation reads the device's delegation; linked says that the account's key is on another PC.
func readDelegation(path string) (raw []byte, linked bool, err error) {
	raw, err = readPEM(path, pemGrant)
	if err == nil {
		return raw, true, nil
	}
	raw, err = readPEM(path, pemDelegation)
	return raw, false, err
}

func isLinked(dir string) bool {
	_, linked, err := readDelegation(filepath.Join(dir, delegationFile))
	return err == nil && linked
}

func readPEM(path, kind string) ([]byte, error) {
	if err := private(path, "600"); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("load identity: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return nil, damaged(path, fmt.Errorf("not a file of at most %d bytes", maxKeyFile))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load identity: %w", err)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != kind || len(rest) != 0 || len(block.Headers) != 0 {
		return nil, damaged(path, fmt.Errorf("want one PEM block %q", kind))
	}
	return block.Bytes, nil
}

func readKey(path string) (ed25519.PrivateKey, error) {
	der, err := readPEM(path, pemKey)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, damaged(path, err)
	}
	ed, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, damaged(path, fmt.Errorf("a %T, want an Ed25519 key", key))
	}
	return ed, nil
}

// install makes a device for account, or takes the one that waits for a grant, and puts both into dir: in a directory beside it that
// gets dir's name when all is on disk.
func install(dir string, account Authority, now time.Time) (*Device, error) {
	dir = filepath.Clean(dir)
	if err := vacant(dir); err != nil {
		return nil, err
	}
	device, err := deviceKey(dir)
	if errors.Is(err, ErrNoIdentity) {
		_, device, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return nil, fmt.Errorf("create identity: %w", err)
	}
	raw, err := account.Delegate(PeerID(device.Public().(ed25519.PublicKey)), uint64(now.UnixMilli()), AllPowers, DefaultCap)
	if err != nil {
		return nil, err
	}
	dev, err := NewDevice(device, raw)
	if err != nil {
		return nil, err
	}
	return dev, place(dir, func(tmp string) error { return writeFiles(tmp, account.Key, device, raw) })
}

// place makes dir with the files that write puts into it, all or none of them. A device key that waited is then in use.
func place(dir string, write func(tmp string) error) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("create identity: %w", err)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+"-new-*") // 0700
	if err != nil {
		return fmt.Errorf("create identity: %w", err)
	}
	defer os.RemoveAll(tmp) // nothing is there after the rename
	if err := write(tmp); err != nil {
		return fmt.Errorf("create identity: %w", err)
	}
	if err := takeName(tmp, dir); err != nil {
		return err
	}
	if err := syncDir(parent); err != nil {
		return err
	}
	return os.RemoveAll(waitingDir(dir)) // the key has another copy now, durably
}

// vacant reports [ErrIdentityExists] unless dir is missing or empty.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("create identity: %w", err)
	case len(entries) == 0:
		return nil
	}
	return exists(dir)
}

func exists(dir string) error {
	return fmt.Errorf("create identity in %s: %w and is never overwritten: to use another, move the directory away first", dir, ErrIdentityExists)
}

// takeName renames tmp to dir. Only an empty dir gives way: os.Remove and rename both refuse a full one, whoever filled it meanwhile.
func takeName(tmp, dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(exists(dir), err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if vacant(dir) != nil {
			return exists(dir)
		}
		return fmt.Errorf("create identity: %w", err)
	}
	return nil
}

// writeFiles writes an identity; a nil account makes it a linked one.
func writeFiles(dir string, account, device ed25519.PrivateKey, delegation []byte) error {
	kind := pemDelegation
	if account == nil {
		kind = pemGrant
	}
	for _, k := range []struct {
		name string
		key  ed25519.PrivateKey
	}{{accountFile, account}, {deviceFile, device}} {
		if k.key == nil {
			continue
		}
		der, err := x509.MarshalPKCS8PrivateKey(k.key)
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(dir, k.name), pemKey, der); err != nil {
			return err
		}
	}
	if err := writePEM(filepath.Join(dir, delegationFile), kind, delegation); err != nil {
		return err
	}
	return syncDir(dir)
}

func writePEM(path, kind string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: b})
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in dir durable. Windows has no such call and needs none: it journals names itself.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
