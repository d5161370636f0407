package identity

import (
	"errors"
	"time"
)

var (
	// ErrNoIdentity says that a directory holds no identity yet.
	ErrNoIdentity = errors.New("no identity here")
	// ErrIdentityExists says that a directory holds an identity already. It is never overwritten.
	ErrIdentityExists = errors.New("an identity is here already")
	// ErrIdentityFiles says that an identity's files are unsafe, incomplete or damaged; the text says what to do.
	ErrIdentityFiles = errors.New("identity files")
)

// Create makes an account and its first device in dir: account.key, device.key (PEM PKCS#8, 0600) and delegation. dir (0700) is the
// identity's own: it must be missing or empty, else the error is [ErrIdentityExists]. It appears whole or not at all. now makes the
// delegation's serial.
func Create(dir string, now time.Time) (*Device, error) { return nil, errors.New("not built yet") }

// Load reads the identity in dir: [ErrNoIdentity] if there is none, [ErrIdentityFiles] if what is there cannot be trusted.
func Load(dir string) (*Device, error) { return nil, errors.New("not built yet") }

// LoadOrCreate is Load, or Create where there is no identity yet; created says which.
func LoadOrCreate(dir string, now time.Time) (dev *Device, created bool, err error) {
	return nil, false, errors.New("not built yet")
}

// Phrase is the recovery phrase of the account in dir: 24 words (BIP 39) that encode its key. Whoever reads them owns the account.
func Phrase(dir string) (string, error) { return "", errors.New("not built yet") }

// Import restores the account of a recovery phrase into dir, with a new device of its own: a key is never in two places. Like Create
// it refuses a dir that holds an identity. now makes the delegation's serial, so that it is newer than all before.
func Import(dir, phrase string, now time.Time) (*Device, error) {
	return nil, errors.New("not built yet")
}
