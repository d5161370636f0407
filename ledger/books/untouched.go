package books

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpufair/gpufair/ledger/kv"
)

// Untouched says whether the ledger in dir has never had an entry, lane or hold, by its files alone and without opening the store: nil if
// so, and what is there if not. Nobody may have the ledger open. A folder that is not there is untouched.
func Untouched(dir string) error {
	files, err := existing(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	note, ok, err := readHead(files)
	switch {
	case err != nil:
		return err
	case ok && note.Size > 0:
		return fmt.Errorf("its ledger has %d entries", note.Size)
	}
	records, lost, err := readJournals(files)
	switch {
	case err != nil:
		return err
	case lost > 0:
		return fmt.Errorf("its journal is damaged before transaction %d", lost)
	}
	for _, r := range records { // the head note is written once a second at most
		for _, w := range r.Writes {
			for _, prefix := range []string{"e/", "lane/", "hold/", "set/"} {
				if bytes.HasPrefix(w.Key, []byte(string(kv.Books)+"/"+prefix)) {
					return errors.New("its ledger has entries")
				}
			}
		}
	}
	return nil
}
