package containerd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// cgroups reads the control groups of jobs. The difference between the two versions of the kernel's interface is here and nowhere else.
// Limits are never written here: runc does that from the spec.
type cgroups struct {
	root    string
	unified bool
}

// hostCgroups finds out which version is mounted at root.
func hostCgroups(root string) cgroups {
	var st unix.Statfs_t
	err := unix.Statfs(root, &st)
	return cgroups{root: root, unified: err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC}
}

func (g cgroups) version() int {
	if g.unified {
		return 2
	}
	return 1
}

// path is what the spec asks for: the group's name in every hierarchy.
func cgroupPath(namespace, id string) string { return "/" + namespace + "/" + id }

// file is a file of a job's group; controller matters for version 1 only.
func (g cgroups) file(path, controller, name string) string {
	if g.unified {
		return filepath.Join(g.root, path, name)
	}
	return filepath.Join(g.root, controller, path, name)
}

// usage reads what a job has used. [provider.ErrNotFound] if its group is gone.
func (g cgroups) usage(path string) (provider.Usage, error) {
	var u provider.Usage
	var err error
	read := func(controller, v1, v2 string) uint64 {
		name := v1
		if g.unified {
			name = v2
		}
		n, rerr := readNumber(g.file(path, controller, name))
		if rerr != nil && err == nil && name != "memory.peak" { // memory.peak came with Linux 5.19
			err = rerr
		}
		return n
	}
	u.MemoryBytes = read("memory", "memory.usage_in_bytes", "memory.current")
	u.MemoryPeak = max(read("memory", "memory.max_usage_in_bytes", "memory.peak"), u.MemoryBytes)
	u.Pids = read("pids", "pids.current", "pids.current")
	if g.unified {
		var usec uint64
		if usec, err = readKey(g.file(path, "", "cpu.stat"), "usage_usec"); err == nil {
			u.CPU = time.Duration(usec) * time.Microsecond
		}
	} else {
		u.CPU = time.Duration(read("cpuacct", "cpuacct.usage", ""))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return u, fmt.Errorf("read usage of group %s: %w", path, provider.ErrNotFound)
	}
	return u, err
}

// oomKilled reports whether the kernel killed a process of the job over its memory limit. A group that is gone tells nothing: false.
func (g cgroups) oomKilled(path string) bool {
	name := "memory.oom_control"
	if g.unified {
		name = "memory.events"
	}
	n, err := readKey(g.file(path, "memory", name), "oom_kill")
	return err == nil && n > 0
}

// noHugepages forbids huge pages of every size in sizes (/sys/kernel/mm/hugepages), which the limit of memory does not count. Where groups
// can't limit them there is nothing to ask for: runc would refuse the job.
func (g cgroups) noHugepages(sizes string) []specs.LinuxHugepageLimit {
	if g.unified {
		b, err := os.ReadFile(filepath.Join(g.root, "cgroup.controllers"))
		if err != nil || !slices.Contains(strings.Fields(string(b)), "hugetlb") {
			return nil
		}
	} else if info, err := os.Stat(filepath.Join(g.root, "hugetlb")); err != nil || !info.IsDir() {
		return nil
	}
	entries, err := os.ReadDir(sizes)
	if err != nil {
		return nil // a kernel without them
	}
	var out []specs.LinuxHugepageLimit
	for _, e := range entries {
		kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"))
		if err != nil {
			continue
		}
		name := strconv.Itoa(kib) + "KB" // as the kernel names the groups' files: 64KB, 2MB, 1GB
		switch {
		case kib >= 1<<20:
			name = strconv.Itoa(kib>>20) + "GB"
		case kib >= 1<<10:
			name = strconv.Itoa(kib>>10) + "MB"
		}
		out = append(out, specs.LinuxHugepageLimit{Pagesize: name})
	}
	return out
}

// clear kills what is left in a job's group, whose processes outlive a killed shim, and removes the group from every hierarchy. It returns
// when nothing is left: only then may a device be leased again.
func (g cgroups) clear(ctx context.Context, path string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := 0
		for _, dir := range g.dirs(path) {
			n, err := clearDir(dir)
			if err != nil {
				return fmt.Errorf("clear group %s: %w", path, err)
			}
			left += n
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("clear group %s: %d processes or groups are left: %w", path, left, ctx.Err())
		case <-tick.C:
		}
	}
}

// tidy removes the group above all jobs' if none is left.
func (g cgroups) tidy(path string) {
	for _, dir := range g.dirs(path) {
		_ = unix.Rmdir(dir) // jobs run on in it
	}
}

// dirs are the folders of a job's group, those of nested groups before their parents.
func (g cgroups) dirs(path string) []string {
	tops := []string{filepath.Join(g.root, path)}
	if !g.unified {
		tops, _ = filepath.Glob(filepath.Join(g.root, "*", path)) // the pattern is ours and well formed
	}
	var dirs []string
	for _, top := range tops {
		_ = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{p}, dirs...)
			}
			return nil // a group that went meanwhile is what we want
		})
	}
	return dirs
}

// clearDir kills the processes of one group and removes it, and counts what is left.
func clearDir(dir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pids := strings.Fields(string(b))
	if len(pids) == 0 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		return 1, nil // busy for a moment after its last process
	}
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 1 {
			return 0, fmt.Errorf("unexpected process %q in %s", s, dir)
		}
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended just now
	}
	thaw(dir)
	return len(pids), nil
}

// thaw lets a frozen group take its signals: with version 1 a frozen process can't be killed.
func thaw(dir string) {
	for name, value := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		if err != nil {
			continue // of the other version, or another hierarchy
		}
		_, _ = f.WriteString(value)
		f.Close()
	}
}

func readNumber(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return n, nil
}

// readKey reads "key value" lines.
func readKey(file, key string) (uint64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if k, v, ok := strings.Cut(s.Text(), " "); ok && k == key {
			return strconv.ParseUint(strings.TrimSpace(v), 10, 64)
		}
	}
	if err := s.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("read %s: no line %q", file, key)
}
