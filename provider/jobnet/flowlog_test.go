package jobnet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// put makes a file of so many bytes, written when said.
func put(t *testing.T, path string, size int64, at time.Time) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	put(t, dir+"/old", 1, now.Add(-30*day-time.Second))
	put(t, dir+"/month", 100, now.Add(-30*day))
	put(t, dir+"/week", 100, now.Add(-7*day))
	put(t, dir+"/new", 100, now)
	for _, c := range []struct {
		most int64
		want []string
	}{{301, []string{"month", "new", "week"}}, {300, []string{"month", "new", "week"}}, {299, []string{"new", "week"}}, {100, []string{"new"}}, {99, nil}} {
		if err := prune(dir, now, c.most); err != nil {
			t.Fatal(err)
		}
		var left []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if !slices.Equal(left, c.want) {
			t.Errorf("at most %d bytes: %v is left, want %v", c.most, left, c.want)
		}
	}
}

// TestPruneAtOnce lets several prune the same folder: each finds files gone that it wanted gone.
func TestPruneAtOnce(t *testing.T) {
	dir := t.TempDir()
	for i := range 500 {
		put(t, filepath.Join(dir, fmt.Sprint(i)), 0, time.Unix(0, 0))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := prune(dir, time.Now(), maxFlows); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestTurn fills the newer file: the older one is emptied and written, and after a restart the log goes on in it.
func TestTurn(t *testing.T) {
	dir := t.TempDir()
	paths := []string{dir + "/j.0.log", dir + "/j.1.log"}
	old := time.Now().Add(-time.Hour)
	put(t, paths[0], 10, old)
	put(t, paths[1], maxFlowFile-10, old.Add(time.Minute))
	reopen := func() *flowLog {
		t.Helper()
		older, newer, err := openFlowFiles(dir, "j")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { older.Close(); newer.Close() })
		l, err := openFlowLog(older, newer)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i, want := range []int{1, 2} { // lines in the first file: the second is full
		l := reopen()
		l.opened("tcp", outside)
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(paths[0])
		if err != nil || strings.Count(string(text), " open tcp "+outside.String()+"\n") != want || strings.Contains(string(text), "\x00") {
			t.Errorf("start %d: %q, %v", i, text, err)
		}
		if st, err := os.Stat(paths[1]); err != nil || st.Size() != maxFlowFile-10 {
			t.Errorf("start %d: the full file is touched: %v, %v", i, st, err)
		}
	}
}
