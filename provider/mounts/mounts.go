// Package mounts makes the folders of a lease: /in, /out, /scratch, the exit record and the state that only the daemon sees. It fulfils
// provider.Mounts with plain folders below one root of its own and refuses to touch anything outside it. It knows no container. Byte
// quotas are not held by the kernel yet: [Mounts.Usage] counts, so that a lease over its disk can be ended.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/gpufair/gpufair/provider"
)

const (
	// maxInodes ends a count: a job that makes more is over any disk that is on offer, and must not keep us counting.
	maxInodes = 4 << 20
	// private is the mode of what only the daemon enters.
	private = 0o700
	// open is the mode of what the job writes, as whatever user it runs: the private folder above keeps everybody else out.
	open = 0o777
)

// The folders of a lease, below its own.
const (
	inDir      = "in"
	outDir     = "out"
	scratchDir = "scratch"
	recordDir  = "record"
	stateDir   = "state"
)

// Mounts keeps the folders below one root. It may be used by several goroutines at once.
type Mounts struct {
	path string
	root *os.Root // names below it can't lead out of it, whatever links a job made
}

var _ provider.Mounts = (*Mounts)(nil)

// Open takes the root folder (an absolute path), making it if need be, with mode 0700: whoever can't enter it can't reach a lease's
// files, whatever modes the job gives them.
func Open(path string) (*Mounts, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("open folders of leases: %q is not an absolute path", path)
	}
	if err := os.MkdirAll(path, private); err != nil {
		return nil, fmt.Errorf("open folders of leases: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open folders of leases: %w", err)
	}
	if err := root.Chmod(".", private); err != nil {
		root.Close()
		return nil, fmt.Errorf("open folders of leases: %w", err)
	}
	return &Mounts{path: filepath.Clean(path), root: root}, nil
}

// Close lets go of the root; the folders stay.
func (m *Mounts) Close() error { return m.root.Close() }

// checkID keeps ids to what can't be a path.
func checkID(id string) error {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,127}$`).MatchString(id) {
		return fmt.Errorf("folders of lease %q: the id is not 1 to 128 of a-z, 0-9 and -: %w", id, provider.ErrRequest)
	}
	return nil
}

// Make implements provider.Mounts.
func (m *Mounts) Make(_ context.Context, req provider.MountRequest) (provider.Folders, error) {
	if err := checkID(req.ID); err != nil {
		return provider.Folders{}, err
	}
	if err := m.makeAll(req); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("%w: %w", provider.ErrNoSpace, err)
		}
		return provider.Folders{}, fmt.Errorf("make folders of lease %s: %w", req.ID, err)
	}
	at := func(name string) string { return filepath.Join(m.path, req.ID, name) }
	return provider.Folders{In: at(inDir), Out: at(outDir), Scratch: at(scratchDir), Record: at(recordDir), State: at(stateDir)}, nil
}

// makeAll makes what is missing. Modes are set after making, since the umask has its say before.
func (m *Mounts) makeAll(req provider.MountRequest) error {
	if err := m.mkdir(req.ID, private); err != nil {
		return err
	}
	for name, mode := range map[string]fs.FileMode{inDir: 0o755, outDir: open, scratchDir: open, recordDir: open, stateDir: private} {
		dir := filepath.Join(req.ID, name)
		if err := m.mkdir(dir, mode); err != nil {
			return err
		}
		if name == inDir || name == stateDir {
			continue
		}
		if err := m.root.Lchown(dir, int(req.UID), int(req.GID)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mounts) mkdir(dir string, mode fs.FileMode) error {
	if err := m.root.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return m.root.Chmod(dir, mode)
}

// Usage implements provider.Mounts. A file with several names counts once. Names that vanish while it counts are no error.
func (m *Mounts) Usage(ctx context.Context, id string) (provider.DiskUsage, error) {
	var u provider.DiskUsage
	if err := checkID(id); err != nil {
		return u, err
	}
	if _, err := m.root.Lstat(id); err != nil {
		return u, fmt.Errorf("usage of lease %s: %w", id, notFound(err))
	}
	seen := map[uint64]bool{} // inodes with several names; all folders lie on one filesystem
	for _, name := range []string{outDir, scratchDir, recordDir} {
		dir := filepath.Join(id, name)
		err := fs.WalkDir(m.root.FS(), dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			} else if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return nil // gone meanwhile
			}
			st := info.Sys().(*syscall.Stat_t)
			if !d.IsDir() && st.Nlink > 1 {
				if seen[st.Ino] {
					return nil
				}
				seen[st.Ino] = true
			}
			u.Inodes++
			u.Bytes += st.Blocks * 512 // the unit of stat(2), whatever the block size
			if u.Inodes >= maxInodes {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			return u, fmt.Errorf("usage of lease %s: %w", id, err)
		}
	}
	return u, nil
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", provider.ErrNotFound, err)
	}
	return err
}

// Remove implements provider.Mounts. It says false, with the reason, unless it saw that the lease's folder is gone.
func (m *Mounts) Remove(_ context.Context, id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	if err := m.root.RemoveAll(id); err != nil {
		return false, fmt.Errorf("remove folders of lease %s: %w", id, err)
	}
	_, err := m.root.Lstat(id)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, fmt.Errorf("remove folders of lease %s: still there (%w)", id, err)
}

// List implements provider.Mounts.
func (m *Mounts) List(_ context.Context) ([]string, error) {
	entries, err := fs.ReadDir(m.root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("list folders of leases: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && checkID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
