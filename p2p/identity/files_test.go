package identity

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var someday = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

func create(t *testing.T) (dir string, dev *Device) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state", "identity")
	dev, err := Create(dir, someday)
	if err != nil {
		t.Fatal(err)
	}
	return dir, dev
}

func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, p))
		all[p] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCreateThenLoad(t *testing.T) {
	dir, dev := create(t)
	got, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Peer() != dev.Peer() || got.Account() != dev.Account() || !bytes.Equal(got.Delegation(), dev.Delegation()) {
		t.Fatal("another identity came back")
	}
	d, err := OpenDelegation(got.Delegation())
	if err != nil || d.Serial != uint64(someday.UnixMilli()) || d.Powers != AllPowers {
		t.Fatal(d, err)
	}
	for name, want := range map[string]fs.FileMode{".": fs.ModeDir | 0o700, accountFile: 0o600, deviceFile: 0o600, delegationFile: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the identity lie %v (%v)", left, err)
	}
}

func TestCreateTakesAnEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Create(dir, someday); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err != nil {
		t.Fatal(err)
	}
}

func TestNeverOverwritten(t *testing.T) {
	dir, _ := create(t)
	phrase, err := Phrase(dir)
	if err != nil {
		t.Fatal(err)
	}
	before := snapshot(t, dir)
	if _, err := Create(dir, someday); !errors.Is(err, ErrIdentityExists) {
		t.Errorf("create: %v", err)
	}
	if _, err := Import(dir, phrase, someday); !errors.Is(err, ErrIdentityExists) {
		t.Errorf("import: %v", err)
	}
	// Neither a part of an identity nor somebody's other files give way.
	if err := os.Remove(filepath.Join(dir, deviceFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, someday); !errors.Is(err, ErrIdentityExists) {
		t.Errorf("create over a part: %v", err)
	}
	delete(before, deviceFile)
	if after := snapshot(t, dir); len(after) != len(before) || after[accountFile] != before[accountFile] {
		t.Error("files changed")
	}
}

func TestManyStartAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "identity")
	var wg sync.WaitGroup
	peers := make([]PeerID, 8)
	made := make([]bool, 8)
	for i := range peers {
		wg.Go(func() {
			dev, created, err := LoadOrCreate(dir, someday)
			if err != nil {
				t.Error(err)
				return
			}
			peers[i], made[i] = dev.Peer(), created
		})
	}
	wg.Wait()
	if n := len(slices.Compact(slices.Clone(peers))); n != 1 {
		t.Errorf("%d identities, want 1", n)
	}
	if !slices.Contains(made, true) {
		t.Error("nobody says that it made the identity")
	}
}

func TestLoadRefuses(t *testing.T) {
	damage := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	swap := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			other, _ := create(t)
			if err := os.Rename(filepath.Join(other, name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	chmod := func(name string, mode fs.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, n := range names {
				if err := os.Remove(filepath.Join(dir, n)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for name, c := range map[string]struct {
		harm func(*testing.T, string)
		want error
		say  string
	}{
		"none":                {remove(accountFile, deviceFile, delegationFile), ErrNoIdentity, "no identity"},
		"no account key":      {remove(accountFile), ErrIdentityFiles, "identity import"},
		"no device key":       {remove(deviceFile), ErrIdentityFiles, "identity import"},
		"no delegation":       {remove(delegationFile), ErrIdentityFiles, "backup"},
		"key open to group":   {chmod(accountFile, 0o640), ErrIdentityFiles, "chmod 600"},
		"key open to all":     {chmod(deviceFile, 0o604), ErrIdentityFiles, "chmod 600"},
		"directory open":      {chmod(".", 0o755), ErrIdentityFiles, "chmod 700"},
		"account key damaged": {damage(accountFile, "-----BEGIN"), ErrIdentityFiles, "damaged"},
		"empty device key":    {damage(deviceFile, ""), ErrIdentityFiles, "damaged"},
		"huge device key":     {damage(deviceFile, strings.Repeat("x", maxKeyFile+1)), ErrIdentityFiles, "damaged"},
		"other kind of PEM":   {damage(delegationFile, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ErrIdentityFiles, "damaged"},
		"another's account":   {swap(accountFile), ErrIdentityFiles, "one backup"},
		"another's device":    {swap(deviceFile), ErrIdentityFiles, "damaged"},
		"another's word":      {swap(delegationFile), ErrIdentityFiles, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := create(t)
			c.harm(t, dir)
			_, err := Load(dir)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v; want %v and what to do (%q)", err, c.want, c.say)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "nowhere")); !errors.Is(err, ErrNoIdentity) {
		t.Error(err)
	}
}

func TestPhraseRestoresTheAccount(t *testing.T) {
	dir, dev := create(t)
	phrase, err := Phrase(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(strings.Fields(phrase)); n != phraseWords {
		t.Fatalf("%d words", n)
	}
	later := someday.Add(time.Hour)
	got, err := Import(filepath.Join(t.TempDir(), "new"), "  "+strings.ToUpper(phrase)+"\n", later)
	if err != nil {
		t.Fatal(err)
	}
	if got.Account() != dev.Account() || got.Peer() == dev.Peer() {
		t.Errorf("account %s, device %s; want the account %s on another device", got.Account(), got.Peer(), dev.Account())
	}
	old, _ := OpenDelegation(dev.Delegation())
	d, err := OpenDelegation(got.Delegation())
	if err != nil || d.Serial <= old.Serial {
		t.Errorf("serial %d after %d: %v", d.Serial, old.Serial, err)
	}
}

// The phrase is BIP 39 of the seed itself, so any program that knows BIP 39 can read an account back.
func TestPhraseIsBIP39(t *testing.T) {
	// Test vector of BIP 39: entropy of 32 zero bytes.
	const zero = "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon " +
		"abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon art"
	seed, err := parsePhrase(zero)
	if err != nil || !bytes.Equal(seed, make([]byte, 32)) {
		t.Fatal(seed, err)
	}
}

func TestImportRefusesAWrongPhrase(t *testing.T) {
	// A test vector of BIP 39, none of whose words is in what the errors say: of a phrase drawn anew, one may be.
	const phrase = "legal winner thank year wave sausage worth useful legal winner thank year wave sausage worth useful " +
		"legal winner thank year wave sausage worth title"
	if _, err := parsePhrase(phrase); err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(phrase)
	misspelt := slices.Clone(words)
	misspelt[4] = "gpufair"
	for name, bad := range map[string]string{
		"empty":         "",
		"one word less": strings.Join(words[1:], " "),
		"not a word":    strings.Join(misspelt, " "),
		"a wrong sum":   strings.TrimSpace(strings.Repeat("abandon ", phraseWords)),
	} {
		target := filepath.Join(t.TempDir(), "new")
		_, err := Import(target, bad, someday)
		if !errors.Is(err, ErrPhrase) {
			t.Errorf("%s: %v", name, err)
		} else if slices.ContainsFunc(append(words, "gpufair"), func(w string) bool { return strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: the error shows words of the phrase: %v", name, err)
		}
		if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: something was made", name)
		}
	}
}
