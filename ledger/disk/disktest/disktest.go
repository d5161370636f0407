// Package disktest is a disk in memory that fails as disks and file systems do. It owns what may be left of bytes and names that were not
// synced when the power goes, and what comes of a write or a Sync that fails: the system gives up the bytes and may still show them. It
// refuses to know what is written.
package disktest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"

	"github.com/gpufair/gpufair/ledger/disk"
)

// ErrOff is what every call gives after the power went.
var ErrOff = errors.New("the machine is off")

// Rand draws what is left to chance: 0 <= result < n.
type Rand func(n int) int

// sector is what a disk writes at once; of the sector under way when the power goes, any number of its first bytes.
const sector = 512

// Kind is what goes wrong.
type Kind int

// The kinds.
const (
	Off  Kind = iota + 1 // the power goes in the middle of the call
	Fail                 // the call gives EIO; what it wrote is given up
	Full                 // the disk has room for a part of what is written, from now until [Disk.Room]
)

// Disk is a simulated folder. Safe for concurrent use.
type Disk struct {
	mu    sync.Mutex
	rand  Rand             // guarded by mu
	names map[string]*node // guarded by mu; as the running system sees them
	kept  map[string]*node // guarded by mu; as they are on the disk
	moves []move           // guarded by mu; of names since the last Sync
	calls int              // guarded by mu
	at    int              // guarded by mu; the call that goes wrong
	kind  Kind             // guarded by mu
	off   bool             // guarded by mu
	full  bool             // guarded by mu
}

// node is one file. All of it is guarded by its disk's mu.
type node struct {
	seen  []byte // by the running system
	kept  []byte // on the disk
	dirty []edit // since the last Sync
}

// edit is a write, or with no data a change of length to at.
type edit struct {
	at   int
	data []byte
}

// move is a new name: of a new file, or from another name.
type move struct {
	file     *node
	from, to string
}

var _ disk.Disk = (*Disk)(nil)

// New gives an empty disk.
func New(r Rand) *Disk { return &Disk{rand: r, names: map[string]*node{}, kept: map[string]*node{}} }

// Plan lets the call after the next n calls go wrong.
func (d *Disk) Plan(n int, k Kind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.at, d.kind = 0, n+1, k
}

// Calls is how many calls there were since the last Plan, or since New.
func (d *Disk) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// Room gives a full disk room again.
func (d *Disk) Room() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = false
}

// Cut is the disk as it may be found after the power goes now: of what was not synced, any part is there. The disk itself is off.
func (d *Disk) Cut() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
	next := New(d.rand)
	names := clone(d.kept)
	for _, m := range d.moves {
		if d.rand(2) == 0 {
			continue
		}
		switch {
		case m.from == "":
			names[m.to] = m.file
		case names[m.from] == m.file:
			delete(names, m.from)
			names[m.to] = m.file
		}
	}
	for name, n := range names {
		b := n.survive(d.rand)
		next.names[name] = &node{seen: b, kept: slices.Clone(b)}
	}
	next.kept = clone(next.names)
	return next
}

// Killed is the disk as another process finds it after this one was killed: everything that was written is there, synced or not.
func (d *Disk) Killed() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
	next := New(d.rand)
	next.names, next.kept, next.moves, next.full = d.names, d.kept, d.moves, d.full
	return next
}

func clone(m map[string]*node) map[string]*node {
	out := make(map[string]*node, len(m))
	maps.Copy(out, m)
	return out
}

// survive gives what is left of a file: the synced bytes, and of each later change any sectors, the last of them perhaps in part.
func (n *node) survive(r Rand) []byte {
	out := slices.Clone(n.kept)
	for _, e := range n.dirty {
		if e.data == nil {
			if r(2) == 0 {
				out = e.on(out)
			}
			continue
		}
		for from := 0; from < len(e.data); {
			to := min(from+sector-(e.at+from)%sector, len(e.data))
			switch r(4) {
			case 0: // lost
			case 1:
				out = put(out, e.at+from, e.data[from:from+r(to-from+1)])
			case 2: // its length is there, its bytes are not
				out = resize(out, max(len(out), e.at+to))
			default:
				out = put(out, e.at+from, e.data[from:to])
			}
			from = to
		}
	}
	return out
}

// on makes the change whole.
func (e edit) on(b []byte) []byte {
	if e.data == nil {
		return resize(b, e.at)
	}
	return put(b, e.at, e.data)
}

func resize(b []byte, size int) []byte {
	if size <= len(b) {
		return b[:size:size]
	}
	return append(b, make([]byte, size-len(b))...)
}

func put(b []byte, at int, data []byte) []byte {
	b = resize(b, max(len(b), at+len(data)))
	copy(b[at:], data)
	return b
}

// call counts a call and says whether it goes wrong. The caller holds mu.
func (d *Disk) call() (Kind, error) {
	if d.off {
		return 0, ErrOff
	}
	d.calls++
	if d.calls != d.at {
		return 0, nil
	}
	switch d.kind {
	case Off:
		d.off = true
	case Full:
		d.full = true
	}
	return d.kind, nil
}

func failed(k Kind, what string) error {
	if k == Off {
		return ErrOff
	}
	return fmt.Errorf("%s: %w", what, syscall.EIO)
}

// Read fulfils [disk.Disk].
func (d *Disk) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, err := d.call()
	switch {
	case err != nil:
		return nil, err
	case k == Off, k == Fail:
		return nil, failed(k, "read "+name)
	case d.names[name] == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return slices.Clone(d.names[name].seen), nil
}

// Open fulfils [disk.Disk].
func (d *Disk) Open(name string) (disk.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, err := d.call()
	if err != nil {
		return nil, err
	}
	if k == Fail {
		return nil, failed(k, "open "+name)
	}
	n := d.names[name]
	if n == nil {
		if d.full {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
		}
		n = &node{}
		d.names[name] = n
		d.moves = append(d.moves, move{file: n, to: name})
	}
	if k == Off {
		return nil, ErrOff
	}
	return &file{disk: d, node: n, name: name}, nil
}

// Rename fulfils [disk.Disk].
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, err := d.call()
	if err != nil {
		return err
	}
	n := d.names[from]
	if k == Fail || n == nil {
		return failed(Fail, "rename "+from)
	}
	delete(d.names, from)
	d.names[to] = n
	d.moves = append(d.moves, move{file: n, from: from, to: to})
	if k == Off {
		return ErrOff
	}
	return nil
}

// Sync fulfils [disk.Disk].
func (d *Disk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, err := d.call()
	switch {
	case err != nil:
		return err
	case k == Off, k == Fail:
		return failed(k, "sync folder")
	}
	d.kept, d.moves = clone(d.names), nil
	return nil
}
