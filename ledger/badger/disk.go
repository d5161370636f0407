package badger

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize"

	"github.com/gpufair/gpufair/ledger/kv"
)

// ballastName is the file that keeps space for opening the store on a disk that someone else filled.
const ballastName = "BALLAST"

func (d *DB) ballast() string { return filepath.Join(d.conf.Dir, ballastName) }

// roomToOpen checks that there is room for what Open writes, giving up the ballast for it.
func (d *DB) roomToOpen() error {
	free, err := d.conf.free(d.conf.Dir)
	if err == nil && free < d.conf.Ballast {
		if err = d.dropBallast(); err == nil {
			free, err = d.conf.free(d.conf.Dir)
		}
	}
	if err != nil {
		return fmt.Errorf("open store: measure free space of %s: %w", d.conf.Dir, err)
	}
	if free < d.conf.Ballast {
		return fmt.Errorf("open store in %s: %w: %s of disk are free and opening needs %s: free some space and start again",
			d.conf.Dir, kv.ErrReadOnly, humanize.IBytes(free), humanize.IBytes(d.conf.Ballast))
	}
	return nil
}

func (d *DB) dropBallast() error {
	d.ballastMu.Lock()
	defer d.ballastMu.Unlock()
	err := os.Remove(d.ballast())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give up ballast: %w", err)
	}
	d.conf.Log.Warn("disk is nearly full, ballast given up", "dir", d.conf.Dir, "bytes", d.conf.Ballast)
	return nil
}

// keepBallast makes the ballast if there is none and room enough for it above the floor. It is of random bytes, so that no file system
// compresses it away.
func (d *DB) keepBallast() error {
	d.ballastMu.Lock()
	defer d.ballastMu.Unlock()
	if st, err := os.Stat(d.ballast()); err == nil && uint64(st.Size()) == d.conf.Ballast {
		return nil
	}
	free, err := d.conf.free(d.conf.Dir)
	if err != nil {
		return fmt.Errorf("measure free space of %s: %w", d.conf.Dir, err)
	}
	if free < d.conf.FreeFloor+d.conf.Ballast {
		return nil
	}
	f, err := os.OpenFile(d.ballast(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("make ballast: %w", err)
	}
	_, err = io.CopyN(f, rand.Reader, int64(d.conf.Ballast))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("make ballast: %w", err), os.Remove(d.ballast()))
	}
	return nil
}
