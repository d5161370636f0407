package badger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	bopts "github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"

	"github.com/gpufair/gpufair/ledger/kv"
)

// ErrDamaged says that a store's files are not what was written.
var ErrDamaged = kv.ErrDamaged

// damaged says which folder is damaged and what to do.
func damaged(dir string, err error) error {
	return fmt.Errorf("open store: %w in %s: %w; `ledger recover` sets it aside and makes the ledger again from its journal, a backup and "+
		"the peers", ErrDamaged, dir, err)
}

// openLibrary opens badger's store, with errors of damage where the library panics or, for a table that was cut, ends the program.
func openLibrary(c Config) (db *badger.DB, err error) {
	if checkTables(c.Dir) != nil {
		// Once more: a process that uses the store may have cut and removed a table after its manifest was read here.
		if err := checkTables(c.Dir); err != nil {
			return nil, damaged(c.Dir, err)
		}
	}
	defer func() {
		if r := recover(); r != nil {
			db, err = nil, damaged(c.Dir, fmt.Errorf("badger: %v", r))
		}
	}()
	db, err = badger.Open(options(c))
	if err != nil {
		return nil, openError(c.Dir, err)
	}
	return db, nil
}

// checkTables checks the tables that the manifest names, every block of them: badger opens tables in goroutines of its own and panics
// there, where nobody can recover, or calls log.Fatal, if what it reads leads out of a table; and a table whose checksums are wrong it
// leaves out and goes on. A table that is not there is badger's to report: another process may be at work. So is what is wrong with the
// manifest.
func checkTables(dir string) error {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if err != nil {
		return nil // a new store, or one that badger.Open refuses
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(dir))
	if err != nil {
		return nil
	}
	for id := range m.Tables {
		name := table.NewFilename(id, dir)
		err := checkTable(name)
		if err == nil {
			err = checkBlocks(name, id)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkTable reads a table from its end: 4 bytes length of the checksum, the checksum, 4 bytes length of the index, the index.
func checkTable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	at := st.Size()
	for _, part := range []string{"checksum", "index"} {
		var size [4]byte
		at -= int64(len(size))
		if at < 0 {
			return fmt.Errorf("table %s: %d bytes are no whole table", filepath.Base(path), st.Size())
		}
		if _, err := f.ReadAt(size[:], at); err != nil {
			return fmt.Errorf("table %s: %w", filepath.Base(path), err)
		}
		n := int64(binary.BigEndian.Uint32(size[:]))
		if n == 0 || n > at {
			return fmt.Errorf("table %s: its end says that its %s has %d bytes, of %d", filepath.Base(path), part, n, at)
		}
		at -= n
	}
	return nil
}

// checkBlocks reads every block of a table whose ends are right and compares it with its checksum.
func checkBlocks(path string, id uint64) (err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("table %s: %v", filepath.Base(path), r)
		}
	}()
	o := badger.DefaultOptions("")
	t, err := table.OpenInMemoryTable(b, id, &table.Options{Compression: o.Compression, BlockSize: o.BlockSize, ChkMode: bopts.OnTableAndBlockRead})
	if err == nil {
		err = t.VerifyChecksum()
	}
	if err != nil {
		return fmt.Errorf("table %s: %w", filepath.Base(path), err)
	}
	return nil
}

// ofSystem reports whether the system, not what is in the files, keeps a store from being opened. Badger keeps the texts of errors alone.
func ofSystem(text string) bool {
	for _, e := range []syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE,
	} {
		if strings.Contains(text, e.Error()) {
			return true
		}
	}
	return false
}
