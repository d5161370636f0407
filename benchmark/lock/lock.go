// Package lock owns the machine-wide claim on cores and cards: of all daemons and benchmark runs of one machine, one at a time may
// use each. It knows only keys and files; the kernel itself releases a claim when its process dies, however it dies.
package lock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// DefaultDir is where a machine's locks lie unless the config names another folder. All daemons of a machine must name the same one.
const DefaultDir = "/run/lock/gpufair"

// maxHolder is the most bytes read of a lock file: a pid and a name.
const maxHolder = 256

// Key is one core or one card.
type Key string

// CoreKeys are the keys of cores: "core-3".
func CoreKeys(cores benchmark.Cores) []Key {
	keys := make([]Key, len(cores))
	for i, c := range cores {
		keys[i] = Key("core-" + strconv.FormatUint(uint64(c), 10))
	}
	return keys
}

// GPUKey is the key of a card by its UUID as NVML gives it: "gpu-GPU-fa4e0000-…".
func GPUKey(uuid string) Key { return Key("gpu-" + uuid) }

// HeldError says that another process, or another claim of this one, holds a key.
type HeldError struct {
	Key    Key
	PID    int    // 0 if the holder did not write it, or no process of the id it wrote is alive
	Holder string // what the holder calls itself
}

// Error names the key, the holder and what to do.
func (e *HeldError) Error() string {
	what := strings.Replace(string(e.Key), "-", " ", 1)
	if e.PID == 0 {
		return fmt.Sprintf("%s is in use by another process; stop it, or leave this device out of the config", what)
	}
	return fmt.Sprintf("%s is in use by process %d (%s); stop it, or leave this device out of the config", what, e.PID, e.Holder)
}

// Lock is a claim on keys. Safe for concurrent use.
type Lock struct {
	keys  []Key
	files []*os.File
}

// Acquire claims all keys or none: a key that is held gives a [*HeldError] at once, without waiting. name is what the holder is
// called in the errors of others ("gpufaird run"). The files stay when the claim ends; only the kernel's lock on them counts.
func Acquire(dir, name string, keys []Key) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock devices: %w; run as root or set another lock folder in the config of every daemon of this machine", err)
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	l := &Lock{keys: slices.Compact(sorted)}
	for _, k := range l.keys {
		f, err := claim(dir, name, k)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock devices: %w", err), l.Release())
		}
		l.files = append(l.files, f)
	}
	return l, nil
}

func claim(dir, name string, k Key) (*os.File, error) {
	if k == "" || strings.ContainsAny(string(k), "/\x00") {
		return nil, fmt.Errorf("key %q: not a name of a core or card", k)
	}
	path := filepath.Join(dir, string(k)+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", k, err)
	}
	if err := narrow(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("claim %s: keep others from locking %s: %w", k, path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, holder(f, k)
		}
		return nil, fmt.Errorf("claim %s: lock %s: %w", k, path, err)
	}
	if err := sign(f, name); err != nil {
		f.Close()
		return nil, fmt.Errorf("claim %s: %w", k, err)
	}
	return f, nil
}

// narrow takes a file that an earlier release made readable for all from everyone but its owner: who can open it can lock it, and so
// keep a daemon from starting. A file of another user stays as it is.
func narrow(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || int(sys.Uid) != os.Geteuid() || st.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return f.Chmod(0o600)
}

// sign writes who holds f, for the errors of others.
func sign(f *os.File, name string) error {
	line := fmt.Sprintf("%d %s\n", os.Getpid(), strings.Join(strings.Fields(name), " "))
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(line), 0)
	return err
}

func holder(f *os.File, k Key) error {
	b, err := io.ReadAll(io.LimitReader(f, maxHolder))
	if err != nil {
		return &HeldError{Key: k}
	}
	pid, name, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	n, err := strconv.Atoi(pid)
	if err != nil || !alive(n) {
		return &HeldError{Key: k} // who holds it did not sign it: the line is an earlier holder's
	}
	return &HeldError{Key: k, PID: n, Holder: name}
}

// alive reports whether a process of that id is there, whoever's it is.
func alive(pid int) bool {
	return pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// Covers reports whether l holds every one of keys. A nil lock holds nothing.
func (l *Lock) Covers(keys []Key) bool {
	if l == nil || len(l.files) == 0 {
		return false
	}
	for _, k := range keys {
		if _, ok := slices.BinarySearch(l.keys, k); !ok {
			return false
		}
	}
	return true
}

// Release ends the claim. A second call does nothing. It must not run while [Lock.Covers] does.
func (l *Lock) Release() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	l.files = nil
	return errors.Join(errs...)
}
