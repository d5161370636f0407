// Package mounts makes the folders of a lease: /in, /out, /scratch, the layer of what the job changes of its image, the exit record and the
// state that only the daemon sees. It fulfils provider.Mounts below one root of its own and refuses to touch anything outside it. It knows no
// container. Everything of the job's lies on one disk of the lease's, a file with a file system of its own: its size is the quota, and its key
// is in the kernel's memory alone and goes with the lease. Where the host has no such disks there are plain folders, and [Mounts.Info] says so.
package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

const (
	// maxInodes is the most files that a disk has, and ends a count of plain folders: a job that makes more is over any disk that is on
	// offer, and must not keep us counting.
	maxInodes = 1 << 20
	// private is the mode of what only the daemon enters.
	private = 0o700
	// open is the mode of what the job writes, as whatever user it runs: the private folder above keeps everybody else out.
	open = 0o777
)

// What lies in the folder of a lease.
const (
	stateDir = "state"
	lowerDir = "lower"
	// imageFile is mounted at diskDir; dataDir, on it, is encrypted and holds the folders of the job.
	imageFile = "disk.img"
	diskDir   = "disk"
	dataDir   = "disk/data"
	// readyFile holds the kind of disk, once all of it is there.
	readyFile = "ready"
	// tryDir is no lease's: a disk is tried there.
	tryDir = ".try"
)

// The folders of the job, in dataDir.
const (
	inDir      = "in"
	outDir     = "out"
	scratchDir = "scratch"
	recordDir  = "record"
	upperDir   = "upper"
	workDir    = "work"
)

// Mounts keeps the folders below one root. It may be used by several goroutines at once.
type Mounts struct {
	path string
	root *os.Root // names below it can't lead out of it, whatever links a job made

	mu   sync.Mutex // held while a disk is made or destroyed
	kind string     // guarded by mu; what disks this host has, once it was tried
	why  string     // guarded by mu; it has no better ones
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

// Close lets go of the root; the folders and disks stay.
func (m *Mounts) Close() error { return m.root.Close() }

// checkID keeps ids to what can't be a path.
func checkID(id string) error {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,127}$`).MatchString(id) {
		return fmt.Errorf("folders of lease %q: the id is not 1 to 128 of a-z, 0-9 and -: %w", id, provider.ErrRequest)
	}
	return nil
}

// at is the path of what belongs to a lease.
func (m *Mounts) at(id string, names ...string) string {
	return filepath.Join(append([]string{m.path, id}, names...)...)
}

func (m *Mounts) disk(id string) disk { return disk{image: m.at(id, imageFile), at: m.at(id, diskDir)} }

// Make implements provider.Mounts.
func (m *Mounts) Make(ctx context.Context, req provider.MountRequest) (provider.Folders, error) {
	if err := checkID(req.ID); err != nil {
		return provider.Folders{}, err
	}
	if req.MaxBytes <= 0 {
		return provider.Folders{}, fmt.Errorf("make folders of lease %s: a quota of %d bytes: %w", req.ID, req.MaxBytes, provider.ErrRequest)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.makeAll(ctx, req); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("%w: %w", provider.ErrNoSpace, err)
		}
		return provider.Folders{}, fmt.Errorf("make folders of lease %s: %w", req.ID, err)
	}
	data := func(name string) string { return m.at(req.ID, dataDir, name) }
	return provider.Folders{
		In: data(inDir), Out: data(outDir), Scratch: data(scratchDir), Record: data(recordDir), State: m.at(req.ID, stateDir),
		Root: provider.RootFolders{Upper: data(upperDir), Work: data(workDir), Lower: m.at(req.ID, lowerDir)},
	}, nil
}

// makeAll makes what is missing. Modes are set after making, since the umask has its say before.
func (m *Mounts) makeAll(ctx context.Context, req provider.MountRequest) error {
	for _, dir := range []string{req.ID, filepath.Join(req.ID, stateDir), filepath.Join(req.ID, lowerDir)} {
		if err := m.mkdir(dir, private); err != nil {
			return err
		}
	}
	if !m.ready(req.ID) {
		if err := m.makeDisk(ctx, req); err != nil {
			return err
		}
	}
	for name, mode := range map[string]fs.FileMode{inDir: 0o755, outDir: open, scratchDir: open, recordDir: open, upperDir: 0o755, workDir: private} {
		dir := filepath.Join(req.ID, dataDir, name)
		if err := m.mkdir(dir, mode); err != nil {
			return err
		}
		if name == inDir || name == workDir {
			continue
		}
		if err := m.root.Lchown(dir, int(req.UID), int(req.GID)); err != nil {
			return err
		}
	}
	return nil
}

// ready reports whether the disk of a lease is whole and there: after a reboot one that was mounted is not, and its key is gone for good.
func (m *Mounts) ready(id string) bool {
	kind, err := m.root.ReadFile(filepath.Join(id, readyFile))
	return err == nil && (string(kind) == provider.DiskPlain || mounted(m.at(id, diskDir)))
}

// makeDisk makes a lease's disk, of the best kind that this host has, in the place of whatever a call that was cut off left.
func (m *Mounts) makeDisk(ctx context.Context, req provider.MountRequest) error {
	if err := m.destroy(ctx, req.ID); err != nil {
		return err
	}
	kind, err := m.diskKind(ctx)
	if err != nil {
		return err
	}
	if err := m.build(ctx, req.ID, kind, req.MaxBytes); err != nil {
		return errors.Join(err, m.destroy(context.WithoutCancel(ctx), req.ID))
	}
	return m.root.WriteFile(filepath.Join(req.ID, readyFile), []byte(kind), 0o600)
}

// build makes a disk of the kind, with an empty data folder.
func (m *Mounts) build(ctx context.Context, id, kind string, bytes int64) error {
	if err := m.mkdir(filepath.Join(id, diskDir), private); err != nil {
		return err
	}
	if kind != provider.DiskPlain {
		if err := m.disk(id).create(ctx, bytes, kind == provider.DiskEncrypted); err != nil {
			return err
		}
	}
	if err := m.mkdir(filepath.Join(id, dataDir), private); err != nil {
		return err
	}
	if kind == provider.DiskEncrypted {
		return encrypt(m.at(id, diskDir), m.at(id, dataDir))
	}
	return nil
}

// destroy removes a lease's disk, key first, and says so only if it saw all of it go.
func (m *Mounts) destroy(ctx context.Context, id string) error {
	if err := unmountBelow(m.at(id, lowerDir)); err != nil {
		return err
	}
	if err := m.root.RemoveAll(filepath.Join(id, readyFile)); err != nil {
		return err
	}
	if err := m.disk(id).destroy(ctx, m.at(id, dataDir)); err != nil {
		return err
	}
	return m.root.RemoveAll(filepath.Join(id, diskDir))
}

// diskKind tries once what disks this host has; m.mu is held. An error that may pass is no answer: data of a job is not to lie there bare
// since the disk was full for a moment.
func (m *Mounts) diskKind(ctx context.Context) (string, error) {
	if m.kind != "" {
		return m.kind, nil
	}
	if err := m.destroy(ctx, tryDir); err != nil { // of a process that was killed
		return "", err
	}
	if err := m.mkdir(tryDir, private); err != nil {
		return "", err
	}
	why := ""
	for _, kind := range []string{provider.DiskEncrypted, provider.DiskQuota, provider.DiskPlain} {
		const small = 1 << 20
		err := m.build(ctx, tryDir, kind, small)
		if err == nil && kind != provider.DiskPlain {
			err = m.canOverlay(kind)
		}
		if ctx.Err() != nil {
			return "", errors.Join(ctx.Err(), m.destroy(context.WithoutCancel(ctx), tryDir))
		}
		if derr := m.destroy(ctx, tryDir); derr != nil {
			return "", derr
		}
		if err == nil {
			m.kind, m.why = kind, why
			return kind, m.root.RemoveAll(tryDir)
		}
		if provider.Passing(err) {
			return "", fmt.Errorf("disk of kind %s: %w", kind, err)
		}
		why = err.Error()
	}
	return "", errors.New("not even a plain folder can be made")
}

// canOverlay tries whether what a job changes of its image can lie on the disk in tryDir: older kernels take no encrypted folder for that.
func (m *Mounts) canOverlay(kind string) error {
	at := func(name string) string { return m.at(tryDir, dataDir, name) }
	for _, name := range []string{upperDir, workDir, inDir, outDir} {
		if err := m.mkdir(filepath.Join(tryDir, dataDir, name), private); err != nil {
			return err
		}
	}
	options := "lowerdir=" + at(inDir) + ",upperdir=" + at(upperDir) + ",workdir=" + at(workDir)
	if strings.ContainsAny(m.path, ",:\\") {
		return fmt.Errorf("overlay: %q has a comma, colon or backslash", m.path)
	}
	if err := unix.Mount("overlay", at(outDir), "overlay", 0, options); err != nil {
		return fmt.Errorf("overlay on a disk of kind %s: %w", kind, err)
	}
	return unix.Unmount(at(outDir), 0)
}

// Info implements provider.Mounts.
func (m *Mounts) Info(ctx context.Context) (provider.MountsInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, err := m.diskKind(ctx)
	if err != nil {
		return provider.MountsInfo{}, fmt.Errorf("try a disk for leases: %w", err)
	}
	return provider.MountsInfo{Disk: kind, Why: m.why}, nil
}

// Free implements provider.Mounts. What only root may use is not counted.
func (m *Mounts) Free(context.Context) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(m.path, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", m.path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func (m *Mounts) mkdir(dir string, mode fs.FileMode) error {
	if err := m.root.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return m.root.Chmod(dir, mode)
}

// Usage implements provider.Mounts. Of plain folders a file with several names counts once; names that vanish while it counts are no error.
func (m *Mounts) Usage(ctx context.Context, id string) (provider.DiskUsage, error) {
	var u provider.DiskUsage
	if err := checkID(id); err != nil {
		return u, err
	}
	kind, err := m.root.ReadFile(filepath.Join(id, readyFile))
	if err != nil {
		return u, fmt.Errorf("usage of lease %s: %w", id, notFound(err))
	}
	if string(kind) != provider.DiskPlain {
		return m.diskUsage(id)
	}
	seen := map[uint64]bool{} // inodes with several names; all folders lie on one filesystem
	for _, name := range []string{outDir, scratchDir, recordDir, upperDir} {
		dir := filepath.Join(id, dataDir, name)
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

// diskUsage reads what a disk's own file system counts.
func (m *Mounts) diskUsage(id string) (provider.DiskUsage, error) {
	at := m.at(id, diskDir)
	if !mounted(at) {
		return provider.DiskUsage{}, fmt.Errorf("usage of lease %s: its disk is not mounted: %w", id, provider.ErrNotFound)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return provider.DiskUsage{}, fmt.Errorf("usage of lease %s: %w", id, err)
	}
	return provider.DiskUsage{Bytes: int64(st.Blocks-st.Bfree) * st.Bsize, Inodes: int64(st.Files - st.Ffree), Held: true}, nil
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", provider.ErrNotFound, err)
	}
	return err
}

// Remove implements provider.Mounts. It says false, with the reason, unless it saw that key, disk and folder of the lease are gone.
func (m *Mounts) Remove(ctx context.Context, id string) (bool, error) {
	if err := checkID(id); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.destroy(ctx, id); err != nil {
		return false, fmt.Errorf("remove folders of lease %s: %w", id, err)
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
func (m *Mounts) List(context.Context) ([]string, error) { return m.list() }

func (m *Mounts) list() ([]string, error) {
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
