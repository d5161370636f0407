package books

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpufair/gpufair/ledger/disk"
)

// mark is a note outside of the ledger's folder, beside the keys: this device has had a ledger of at least so many entries. Without it, a
// folder that was deleted whole would start anew as if nobody had ever been owed anything.
type mark struct {
	Entries uint64 `json:"entries"`
	Epoch   uint32 `json:"epoch"`
}

// maxMark bounds the file.
const maxMark = 4 << 10

// readMark reads the mark at path; no path or no file is a zero one.
func readMark(path string) (m mark, err error) {
	if path == "" {
		return m, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read mark of the ledger: %w", err)
	}
	if len(b) > maxMark || json.Unmarshal(b, &m) != nil {
		return m, fmt.Errorf("%w: the file %s can't be read; remove it if `ledger verify` finds nothing else", ErrCorrupt, path)
	}
	return m, nil
}

// MarkedEpoch is the epoch that the mark at path knows, 0 if there is none or it can't be read.
func MarkedEpoch(path string) uint32 {
	m, err := readMark(path)
	if err != nil {
		return 0
	}
	return m.Epoch
}

// remember compares the ledger with the mark.
func (b *Books) remember(ctx context.Context) error {
	return b.View(ctx, func(r *Reader) error {
		h, err := r.head()
		if err != nil {
			return err
		}
		return b.compareMark(h.Size)
	})
}

// compareMark compares the ledger, of so many entries, with the mark.
func (b *Books) compareMark(entries uint64) error {
	m, err := readMark(b.config.Mark)
	switch {
	case errors.Is(err, ErrCorrupt):
		b.readOnly = errors.Join(b.readOnly, err)
		return nil
	case err != nil:
		return err
	case m.Epoch > b.epoch:
		b.readOnly = errors.Join(b.readOnly, fmt.Errorf("%w: this device's ledger was restored to epoch %d, and this one is of epoch %d", ErrBehind, m.Epoch, b.epoch))
	case m.Epoch == b.epoch && m.Entries > entries:
		b.readOnly = errors.Join(b.readOnly, fmt.Errorf("%w: this device has had a ledger of %d entries or more, and this one has %d", ErrBehind, m.Entries, entries))
	}
	b.marked = m
	return nil
}

// keepMark renews the mark when the ledger has doubled or is of a new epoch, so that it costs little.
func (b *Books) keepMark(entries uint64) error {
	if b.config.Mark == "" || b.marked.Epoch == b.epoch && entries < 2*b.marked.Entries+1 {
		return nil
	}
	m := mark{Entries: entries, Epoch: b.epoch}
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write mark of the ledger: %w", err)
	}
	folder, err := disk.Open(filepath.Dir(b.config.Mark))
	if err != nil {
		return fmt.Errorf("write mark of the ledger: %w", err)
	}
	if err := replaceFile(folder, filepath.Base(b.config.Mark), append(raw, '\n')); err != nil {
		return fmt.Errorf("write mark of the ledger: %w", err)
	}
	b.marked = m
	return nil
}
