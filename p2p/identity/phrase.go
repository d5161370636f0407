package identity

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tyler-smith/go-bip39"
)

// phraseWords is the length of a recovery phrase: 256 bits of key and 8 of checksum, 11 a word (BIP 39).
const phraseWords = 24

// ErrPhrase says that a text is not a recovery phrase.
var ErrPhrase = errors.New("not a recovery phrase")

// Phrase is the recovery phrase of the account in dir: 24 English words (BIP 39) that encode the seed of its key itself, with no
// further derivation. Whoever reads them owns the account.
func Phrase(dir string) (string, error) {
	account, _, err := load(dir)
	if err != nil {
		return "", err
	}
	if account == nil {
		return "", fmt.Errorf("recovery phrase: %w", ErrNoAccountKey)
	}
	words, err := bip39.NewMnemonic(account.Seed())
	if err != nil {
		return "", fmt.Errorf("recovery phrase: %w", err)
	}
	return words, nil
}

// Import restores the account of a recovery phrase into dir, with a new device of its own: a key is never in two places. Like [Create]
// it refuses a dir that holds an identity. now makes the delegation's serial, so that it is newer than all before.
func Import(dir, phrase string, now time.Time) (*Device, error) {
	return ImportChanged(dir, phrase, "", now)
}

// ImportChanged is [Import] of an account whose key was changed, with its [KeysText].
func ImportChanged(dir, phrase, keys string, now time.Time) (*Device, error) {
	seed, err := parsePhrase(phrase)
	if err != nil {
		return nil, err
	}
	account := FirstKey(ed25519.NewKeyFromSeed(seed))
	if keys != "" {
		if account, err = parseKeys(keys, account.Key); err != nil {
			return nil, err
		}
	}
	return install(dir, account, now)
}

// parsePhrase gives the account key's seed. Its errors never repeat the phrase, only the place of a word that is wrong.
func parsePhrase(phrase string) ([]byte, error) {
	words := strings.Fields(strings.ToLower(phrase))
	if len(words) != phraseWords {
		return nil, fmt.Errorf("%w: it has %d words, want %d, as `identity export` prints them", ErrPhrase, len(words), phraseWords)
	}
	for i, w := range words {
		if _, ok := bip39.GetWordIndex(w); !ok {
			return nil, fmt.Errorf("%w: word %d is not in the list: check its spelling", ErrPhrase, i+1)
		}
	}
	seed, err := bip39.EntropyFromMnemonic(strings.Join(words, " "))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("%w: its checksum is wrong: a word is wrong or two changed places; copy it again", ErrPhrase)
	}
	return seed, nil
}
