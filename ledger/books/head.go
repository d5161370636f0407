package books

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// headName is the file of the head note: a second copy of how far the ledger was, outside of store and journal.
const headName = "head"

// maxHead bounds the file: a checkpoint has 300 bytes.
const maxHead = 4 << 10

// headNote is the file's content.
type headNote struct {
	Seq        uint64 `json:"seq"`        // of the last transaction
	Size       uint64 `json:"size"`       // of the log
	Checkpoint string `json:"checkpoint"` // signed
}

// writeHead replaces the head note: temporary file, sync, rename, sync of the folder.
func writeHead(dir string, h headNote) error {
	b, err := json.MarshalIndent(h, "", " ")
	if err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	temp := filepath.Join(dir, headName+".new")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, headName)); err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	return syncDir(dir)
}

// readHead reads the head note; ok is false if there is none.
func readHead(dir string) (h headNote, ok bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, headName))
	if errors.Is(err, os.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, fmt.Errorf("read head note: %w", err)
	}
	if len(b) > maxHead || json.Unmarshal(b, &h) != nil {
		return h, true, fmt.Errorf("read head note: %s is damaged; compare the ledger with your peers, then remove the file", filepath.Join(dir, headName))
	}
	return h, true, nil
}

// syncDir makes renames and new files in dir durable. Windows can't sync a folder; there NTFS's own journal keeps the order.
func syncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}
