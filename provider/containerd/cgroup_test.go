package containerd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/provider"
)

// files makes a tree as the kernel would show it. Only one version can be mounted on a machine: the other is tested here.
func files(t *testing.T, tree map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range tree {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCgroupVersions(t *testing.T) {
	want := provider.Usage{CPU: 1500 * time.Millisecond, MemoryBytes: 1000, MemoryPeak: 2000, Pids: 3}
	v1 := cgroups{root: files(t, map[string]string{
		"cpuacct/ns/job/cpuacct.usage": "1500000000\n", "memory/ns/job/memory.usage_in_bytes": "1000\n",
		"memory/ns/job/memory.max_usage_in_bytes": "2000\n", "pids/ns/job/pids.current": "3\n",
		"memory/ns/job/memory.oom_control":  "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/ns/well/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
	})}
	v2 := cgroups{unified: true, root: files(t, map[string]string{
		"ns/job/cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "ns/job/memory.current": "1000\n", "ns/job/memory.peak": "2000\n",
		"ns/job/pids.current": "3\n", "ns/job/memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n",
		"ns/well/memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n",
	})}
	for _, g := range []cgroups{v1, v2} {
		if u, err := g.usage("/ns/job"); err != nil || u != want {
			t.Errorf("version %d: usage %+v, %v", g.version(), u, err)
		}
		if !g.oomKilled("/ns/job") || g.oomKilled("/ns/well") || g.oomKilled("/ns/none") {
			t.Errorf("version %d: out of memory is told wrongly", g.version())
		}
		if _, err := g.usage("/ns/none"); !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("version %d: usage of no group: %v", g.version(), err)
		}
		if err := g.clear(t.Context(), "/ns/none"); err != nil {
			t.Errorf("version %d: clear of no group: %v", g.version(), err)
		}
	}
	old := cgroups{unified: true, root: files(t, map[string]string{ // Linux before 5.19
		"ns/job/cpu.stat": "usage_usec 1\n", "ns/job/memory.current": "1000\n", "ns/job/pids.current": "3\n",
	})}
	if u, err := old.usage("/ns/job"); err != nil || u.MemoryPeak != 1000 {
		t.Errorf("without memory.peak: %+v, %v", u, err)
	}
}

func TestHugepages(t *testing.T) {
	sizes := files(t, map[string]string{"hugepages-2048kB/nr_hugepages": "0", "hugepages-1048576kB/nr_hugepages": "0", "hugepages-64kB/nr_hugepages": "0"})
	for name, g := range map[string]cgroups{
		"v1": {root: files(t, map[string]string{"hugetlb/tasks": "", "memory/tasks": ""})},
		"v2": {unified: true, root: files(t, map[string]string{"cgroup.controllers": "cpu memory hugetlb pids\n"})},
	} {
		var got []string
		for _, l := range g.noHugepages(sizes) {
			if l.Limit != 0 {
				t.Errorf("%s: %+v", name, l)
			}
			got = append(got, l.Pagesize)
		}
		if slices.Sort(got); !slices.Equal(got, []string{"1GB", "2MB", "64KB"}) {
			t.Errorf("%s: %v", name, got)
		}
		if none := g.noHugepages(filepath.Join(sizes, "none")); len(none) > 0 {
			t.Errorf("%s: a kernel without huge pages: %v", name, none)
		}
	}
	for _, g := range []cgroups{
		{root: files(t, map[string]string{"memory/tasks": ""})}, {unified: true, root: files(t, map[string]string{"cgroup.controllers": "cpu memory\n"})},
	} {
		if got := g.noHugepages(sizes); len(got) > 0 {
			t.Errorf("a host whose groups can't: %v", got)
		}
	}
}
