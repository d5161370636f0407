package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpufair/gpufair/ledger/disk"
)

var (
	// ErrOlder says that a backup would take the place of one that knows more (lnd#4377, lnd#2757).
	ErrOlder = errors.New("the backup that is there knows more")
	// ErrEmpty says that a ledger without entries would take a backup's place: it may have been lost.
	ErrEmpty = errors.New("the ledger is empty")
	// ErrOccupied says that what is there is no backup of this ledger.
	ErrOccupied = errors.New("what is there is no backup of this ledger")
)

// Suffix is what a file's name has while it is being written.
const Suffix = ".new"

// Save writes a backup to path: into a temporary file of mode 0600 beside it, which is synced, read again and checked before it takes the
// place of what is there. It never takes the place of a backup that knows more, of another ledger's, or of something else, unless force is
// set; that of an empty ledger takes nobody's place. What fails leaves what was there, and no temporary file.
func Save(ctx context.Context, path string, force bool, write func(io.Writer) error) (h Header, err error) {
	temp := path + Suffix
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return h, fmt.Errorf("save backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(temp))
		}
	}()
	err = write(f)
	if err = errors.Join(err, f.Sync()); err != nil {
		return h, errors.Join(fmt.Errorf("save backup %s: %w", path, err), f.Close())
	}
	if _, err = f.Seek(0, io.SeekStart); err == nil {
		h, err = Check(ctx, f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return h, fmt.Errorf("save backup %s: %w", path, err)
	}
	if err := mayReplace(path, h, force); err != nil {
		return h, fmt.Errorf("save backup: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return h, fmt.Errorf("save backup: %w", err)
	}
	folder, err := disk.Open(filepath.Dir(path))
	if err == nil {
		err = folder.Sync()
	}
	return h, err
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// mayReplace judges what is at path.
func mayReplace(path string, h Header, force bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if h.Size == 0 {
		return fmt.Errorf("%w: %s stays as it is", ErrEmpty, path)
	}
	if force {
		return nil
	}
	old, err := ReadHeader(f)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrOccupied, err)
	}
	switch {
	case old.Account != h.Account || old.Device != h.Device:
		return fmt.Errorf("%s: %w: it is of account %s, device %s", path, ErrOccupied, old.Account.Short(), old.Device.Short())
	case h.Less(old):
		return fmt.Errorf("%s: %w: %d entries in epoch %d, the ledger has %d in epoch %d", path, ErrOlder, old.Size, old.Epoch, h.Size, h.Epoch)
	}
	return nil
}

// Less reports whether a backup of the same ledger knows less than old: an older epoch, or fewer entries or transactions. A ledger that was
// restored is of a newer epoch and may have fewer entries all the same: it knows less until it has got them back.
func (h Header) Less(old Header) bool {
	return h.Epoch < old.Epoch || h.Size < old.Size || h.Epoch == old.Epoch && h.Seq < old.Seq
}
