package books

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpufair/gpufair/ledger/disk"
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

// writeHead replaces the head note.
func writeHead(d disk.Disk, h headNote) error {
	b, err := json.MarshalIndent(h, "", " ")
	if err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	if err := replaceFile(d, headName, append(b, '\n')); err != nil {
		return fmt.Errorf("write head note: %w", err)
	}
	return nil
}

// replaceFile writes a file anew: temporary file, sync, rename, sync of the folder.
func replaceFile(d disk.Disk, name string, b []byte) error {
	temp := name + ".new"
	if err := writeFile(d, temp, b); err != nil {
		return err
	}
	if err := d.Rename(temp, name); err != nil {
		return err
	}
	return d.Sync()
}

// readHead reads the head note; ok is false if there is none.
func readHead(d disk.Disk) (h headNote, ok bool, err error) {
	b, err := d.Read(headName)
	if errors.Is(err, fs.ErrNotExist) {
		return h, false, nil
	}
	if err != nil {
		return h, false, fmt.Errorf("read head note: %w", err)
	}
	if len(b) > maxHead || json.Unmarshal(b, &h) != nil {
		return h, true, fmt.Errorf("read head note: the file %s is damaged; compare the ledger with your peers, then remove the file", headName)
	}
	return h, true, nil
}
