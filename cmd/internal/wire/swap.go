package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpufair/gpufair/ledger/disk"
)

// swap puts store.new in the store's place.
func (r *restoring) swap() error {
	note, err := json.Marshal(r.out)
	if err != nil {
		return err
	}
	if err := writeDurable(r.place(newStore, readyName), note); err != nil {
		return err
	}
	if _, err := os.Lstat(StoreDir(r.State)); err == nil {
		r.out.Aside = r.place(fmt.Sprint(aside, r.out.Epoch))
		if err := os.Rename(StoreDir(r.State), r.out.Aside); err != nil {
			return fmt.Errorf("set the old store aside: %w", err)
		}
	}
	_, err = FinishRestore(r.State)
	return err
}

// FinishRestore does the last step of a restore that a crash cut short: no store is there, and a whole new one waits. It reports whether
// it did. Every opening of the store calls it first.
func FinishRestore(state string) (bool, error) {
	from, to := filepath.Join(state, newStore), StoreDir(state)
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if _, err := os.Lstat(filepath.Join(from, readyName)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	if err := os.Rename(from, to); err != nil {
		return false, fmt.Errorf("put the restored store in its place: %w", err)
	}
	folder, err := disk.Open(state)
	if err != nil {
		return true, err
	}
	return true, folder.Sync()
}

// writeDurable writes a small file and makes it and its name durable.
func writeDurable(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	folder, err := disk.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return folder.Sync()
}
