package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

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

// Save writes a backup to path: into a temporary file of mode 0600 beside it, which is synced, read again and checked before it takes the
// place of what is there. It never takes the place of a backup that knows more, of another ledger's, or of another file, unless force is
// set; that of an empty ledger takes nobody's place, and none takes that of a link, a folder, a pipe or a device. What fails leaves what
// was there, and no temporary file.
func Save(ctx context.Context, path string, force bool, write func(io.Writer) error) (h Header, err error) {
	err = disk.Replace(path, 0o600, func(f *os.File) error {
		if err := errors.Join(write(f), f.Sync()); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if h, err = Check(ctx, f); err != nil {
			return err
		}
		return mayReplace(path, h, force)
	})
	if errors.Is(err, disk.ErrNotFile) {
		err = fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	if err != nil {
		return h, fmt.Errorf("save backup %s: %w", path, err)
	}
	return h, nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// mayReplace judges what is at path.
func mayReplace(path string, h Header, force bool) error {
	f, err := disk.OpenFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if h.Size == 0 {
		return fmt.Errorf("%w: what is there stays as it is", ErrEmpty)
	}
	if force {
		return nil
	}
	old, err := ReadHeader(f)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	switch {
	case old.Account != h.Account || old.Device != h.Device:
		return fmt.Errorf("%w: it is of account %s, device %s", ErrOccupied, old.Account.Short(), old.Device.Short())
	case h.Less(old):
		return fmt.Errorf("%w: %d entries in epoch %d, the ledger has %d in epoch %d", ErrOlder, old.Size, old.Epoch, h.Size, h.Epoch)
	}
	return nil
}

// Less reports whether a backup of the same ledger knows less than old: an older epoch, or fewer entries or transactions. A ledger that was
// restored is of a newer epoch and may have fewer entries all the same: it knows less until it has got them back.
func (h Header) Less(old Header) bool {
	return h.Epoch < old.Epoch || h.Size < old.Size || h.Epoch == old.Epoch && h.Seq < old.Seq
}
