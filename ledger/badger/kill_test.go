package badger

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/kv"
)

// childDir tells this test binary to be a daemon that writes to the store there until it is killed.
const childDir = "GPUFAIR_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Fprintln(os.Stderr, writeForever(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForever writes numbered transactions of two keys, one of them in the value log, and prints each number once it is committed.
func writeForever(dir string) error {
	d, err := Open(context.Background(), Config{Dir: dir, FreeFloor: 4 << 20, Ballast: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if err := d.Apply(context.Background(), numbered(n)); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func numbered(n int) []kv.Write {
	size := 100
	if n%8 == 0 {
		size = valueThreshold + 1
	}
	return []kv.Write{set(fmt.Sprintf("a%08d", n), strconv.Itoa(n)), set(fmt.Sprintf("b%08d", n), strings.Repeat("x", size))}
}

// TestKilledProcessLosesNothing: what a process was told is committed is there after it was killed, and every transaction is whole.
// While it runs, nobody else gets its store.
func TestKilledProcessLosesNothing(t *testing.T) {
	c := conf(t)
	for round, acks := range []int{1, 40, 150} {
		c.Dir = filepath.Join(t.TempDir(), "store")
		last := runAndKill(t, c, acks)
		d := open(t, c)
		var a, b int
		must(t, d.View(t.Context(), func(r kv.Reader) error {
			for range r.Iterate([]byte("a"), nil) {
				a++
			}
			for range r.Iterate([]byte("b"), nil) {
				b++
			}
			for n := range last + 1 {
				for _, w := range numbered(n) {
					if v, err := r.Get(w.Key); err != nil || string(v) != string(w.Value) {
						return fmt.Errorf("acknowledged transaction %d of %d: %s: %d bytes, %w", n, last, w.Key, len(v), err)
					}
				}
			}
			return nil
		}))
		if a != b || a <= last {
			t.Errorf("round %d: %d and %d keys of %d acknowledged transactions", round, a, b, last+1)
		}
		must(t, d.Close())
	}
}

// runAndKill starts a child, kills it after it acknowledged acks transactions, and gives the last number that it acknowledged.
func runAndKill(t *testing.T, c Config, acks int) (last int) {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childDir+"="+c.Dir)
	child.Stderr = t.Output()
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	lines, last := bufio.NewScanner(out), -1
	for lines.Scan() {
		if last, err = strconv.Atoi(lines.Text()); err != nil {
			t.Errorf("child said %q", lines.Text())
		}
		if last != acks {
			continue
		}
		_, err := Open(t.Context(), c)
		want(t, "open beside a running daemon", err, kv.ErrInUse)
		if pid := "process " + strconv.Itoa(child.Process.Pid); !strings.Contains(err.Error(), pid) {
			t.Errorf("the error does not name %s: %v", pid, err)
		}
		must(t, child.Process.Kill())
	}
	if err := child.Wait(); err == nil || last < acks {
		t.Fatalf("child ended after %d: %v", last, err)
	}
	return last
}
