package soak

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
)

// flip is one case: a byte of a file of a stored ledger that is changed.
type flip struct {
	Case int
	Keys string // of the ledger's device
	From string // the folder of the ledger as it was
	Work string // a folder to damage it in
	File string
	At   int64
	Xor  byte
}

func (f flip) String() string {
	return fmt.Sprintf("case %d: byte %d of %s in %s, changed by %#x", f.Case, f.At, f.File, filepath.Base(f.From), f.Xor)
}

// verdict is what came of it.
type verdict struct {
	Case  int
	Found string // by whom, or empty: nobody found anything
	Holds string // everything that the ledger's store holds
}

// judge opens damaged ledgers, each named by a line, and says what it sees: in a process of its own, since a library may end that.
func judge(ctx context.Context, in io.Reader, out io.Writer) error {
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var f flip
		if err := from.Decode(&f); err != nil {
			return nil // the parent has enough
		}
		v := f.look(ctx)
		v.Case = f.Case
		if err := to.Encode(v); err != nil {
			return err
		}
	}
}

func (f flip) look(ctx context.Context) (v verdict) {
	fail := func(who string, err error) verdict { return verdict{Found: who + ": " + err.Error()} }
	if err := f.damage(); err != nil {
		return fail("test", err)
	}
	p, err := openAny(ctx, place{keys: f.Keys, data: f.Work, ballast: 1})
	if err != nil {
		return fail("open", err)
	}
	defer func() {
		if err := p.close(); err != nil && v.Found == "" {
			v = fail("close", err)
		}
	}()
	if err := p.ReadOnly(); err != nil {
		return fail("read-only", err)
	}
	if err := verified(ctx, p); err != nil {
		return fail("verify", err)
	}
	h := sha256.New()
	err = p.store.View(ctx, func(t *kv.Txn) error {
		for _, o := range []kv.Owner{kv.Books, kv.Provider, kv.Renter, kv.Settle} {
			for pair, err := range t.Of(o).Iterate(nil, nil) {
				if err != nil {
					return err
				}
				fmt.Fprintf(h, "%s %q %q\n", o, pair.Key, pair.Value)
			}
		}
		return nil
	})
	if err != nil {
		return fail("read", err)
	}
	return verdict{Holds: fmt.Sprintf("%x", h.Sum(nil))}
}

// damage makes the work folder a copy with one byte changed.
func (f flip) damage() error {
	if err := os.RemoveAll(f.Work); err != nil {
		return err
	}
	if err := copyTree(f.From, f.Work); err != nil || f.File == "" {
		return err
	}
	file, err := os.OpenFile(filepath.Join(f.Work, f.File), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var b [1]byte
	if _, err := file.ReadAt(b[:], f.At); err != nil {
		return err
	}
	b[0] ^= f.Xor
	_, err = file.WriteAt(b[:], f.At)
	return err
}

// notCopied are files without content of a store: its lock, and bytes that only hold room.
var notCopied = []string{"LOCK", "BALLAST"}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		if slices.Contains(notCopied, d.Name()) {
			return nil
		}
		return copySparse(path, filepath.Join(to, rel))
	})
}

// copySparse copies a file without the zeros in it.
func copySparse(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	block, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	info, err := in.Stat()
	if err != nil {
		return errors.Join(err, out.Close())
	}
	for at := int64(0); ; {
		n, rerr := 0, io.EOF
		if at = nextData(in, at, info.Size()); at < info.Size() {
			n, rerr = in.ReadAt(block, at)
		}
		if n > 0 && !bytes.Equal(block[:n], zeros[:n]) {
			if _, err := out.WriteAt(block[:n], at); err != nil {
				return errors.Join(err, out.Close())
			}
		}
		at += int64(n)
		if rerr != nil {
			if errors.Is(rerr, io.EOF) {
				rerr = nil
			}
			return errors.Join(rerr, out.Truncate(max(at, info.Size())), out.Close())
		}
	}
}

// nextData is where the next bytes of a file may be that are no hole.
func nextData(f *os.File, at, size int64) int64 {
	const seekData = 3 // on Linux; holes are read as zeros elsewhere
	if runtime.GOOS != "linux" || at >= size {
		return at
	}
	next, err := f.Seek(at, seekData)
	if errors.Is(err, syscall.ENXIO) {
		return size
	}
	if err != nil {
		return at
	}
	return next
}

// extent is a file with its length and the part of it that is used: what is behind has zeros only.
type extent struct {
	dir, file  string
	used, size int64
}

func extents(t *testing.T, dirs []string) (all []extent) {
	t.Helper()
	for _, dir := range dirs {
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dir, path)
			all = append(all, extent{dir: dir, file: rel, used: int64(len(bytes.TrimRight(b, "\x00"))), size: int64(len(b))})
			return err
		}))
	}
	return all
}

// ledgers makes three ledgers on disk: one closed, one as a kill leaves it, and one whose journals do not reach back to its beginning.
func ledgers(t *testing.T, dir string, p pair) (dirs []string) {
	t.Helper()
	ctx := t.Context()
	keep := func(name string) {
		to := filepath.Join(dir, name)
		must(t, copyTree(p.provider.data, to))
		dirs = append(dirs, to)
	}
	write := func(r, s *party, lane byte) {
		silent := func(string, ...any) {}
		ask := func(q request) (reply, error) {
			a := answer(ctx, s, q, silent)
			if a.Err != "" {
				return a, fmt.Errorf("%w: %s", errRefused, a.Err)
			}
			return a, nil
		}
		peer, err := hello(ctx, r, ask)
		must(t, err)
		one := renter{r, peer, ask, silent}
		id := ledger.Lane{lane}
		_, err = one.resume(ctx, id)
		must(t, err)
		for range 12 {
			must(t, one.tick(ctx, id, 500))
		}
		must(t, one.end(ctx, id))
		must(t, one.pay(ctx, 7000, fmt.Sprint("invoice ", lane)))
		must(t, s.Update(ctx, func(tx *books.Tx) error { // lease state: a small value and one that lies in the value log
			own := tx.Of(kv.Provider)
			if err := own.Set([]byte{'s', lane}, []byte(strings.Repeat("small", 20))); err != nil {
				return err
			}
			return own.Set([]byte{'l', lane}, bytes.Repeat([]byte{lane, 'x'}, 40<<10))
		}))
	}
	for life := range byte(3) {
		r, err := open(ctx, p.renter)
		must(t, err)
		s, err := open(ctx, p.provider)
		must(t, err)
		write(r, s, 1+2*life)
		if life == 1 {
			keep("killed")
		}
		write(r, s, 2+2*life)
		if life == 2 {
			keep("long")
		}
		must(t, r.close())
		must(t, s.close())
		switch life {
		case 0:
			keep("closed")
		case 1: // as if it had become journal.old, and that another
			must(t, os.Remove(filepath.Join(p.provider.data, "ledger", "journal")))
		}
	}
	return dirs
}

// judging is the process that opens damaged ledgers.
type judging struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err *bytes.Buffer
}

func newJudging(t *testing.T) *judging {
	t.Helper()
	j := &judging{cmd: exec.Command(os.Args[0]), err: &bytes.Buffer{}}
	j.cmd.Env = append(os.Environ(), childRole+"=judge")
	j.cmd.Stderr = j.err
	in, err := j.cmd.StdinPipe()
	must(t, err)
	out, err := j.cmd.StdoutPipe()
	must(t, err)
	j.in, j.out = in, bufio.NewReader(out)
	must(t, j.cmd.Start())
	return j
}

// ask gives the verdict on a case, or false if the process ended.
func (j *judging) ask(f flip) (v verdict, ok bool) {
	b, err := json.Marshal(f)
	if err != nil {
		return v, false
	}
	_, err = j.in.Write(append(b, '\n'))
	if err != nil {
		return v, false
	}
	line, err := j.out.ReadBytes('\n')
	return v, err == nil && json.Unmarshal(line, &v) == nil
}

func (j *judging) close() string {
	_ = j.in.Close()
	_ = j.cmd.Wait()
	lines := strings.SplitN(strings.TrimSpace(j.err.String()), "\n", 12)
	return strings.Join(lines[:min(len(lines), 11)], "\n")
}

// draw gives a case: a byte of the used range of any file, or behind that one of the zeros that a file was given in advance.
func draw(r *rand.Rand, files []extent, tail bool) flip {
	for {
		e := files[r.IntN(len(files))]
		from, to := int64(0), e.used
		if tail {
			from, to = e.used, e.size
		}
		if from < to {
			return flip{From: e.dir, File: e.file, At: from + r.Int64N(to-from), Xor: byte(1 + r.IntN(255))}
		}
	}
}

// One byte of any file of a ledger is changed, and it is opened and verified: the damage is found and said, or everything is there as it
// was. Nothing is ever silently shorter or other, and no process dies of it.
func TestSoakFlips(t *testing.T) {
	n, r, done := suite(t, 200, 5500)
	if n == 0 {
		return
	}
	dir := t.TempDir()
	if memory, err := os.MkdirTemp("/dev/shm", "gpufair-soak-"); err == nil { // nobody waits for a disk there
		dir = memory
		t.Cleanup(func() { must(t, os.RemoveAll(memory)) })
	}
	p := newPair(t, dir, filepath.Join(dir, "live"))
	dirs := ledgers(t, dir, p)
	files := extents(t, dirs)
	j := newJudging(t)
	defer func() { j.close() }()
	whole := map[string]string{}
	work := filepath.Join(dir, "work")
	for _, d := range dirs {
		v, ok := j.ask(flip{Keys: p.provider.keys, From: d, Work: work})
		if !ok || v.Found != "" {
			t.Fatalf("%s is not whole to begin with: %+v", d, v)
		}
		whole[d] = v.Holds
	}
	found, harmless, silent, died := map[string]int{}, 0, 0, 0
	for i := range n {
		f := draw(r, files, i%11 == 10)
		if *only >= 0 && i != *only {
			continue
		}
		f.Case, f.Keys, f.Work = i, p.provider.keys, work
		v, ok := j.ask(f)
		switch {
		case !ok:
			died++
			t.Errorf("%v: the process died:\n%s", f, j.close())
			j = newJudging(t)
		case v.Found != "":
			who, _, _ := strings.Cut(v.Found, ":")
			found[who]++
			if *only >= 0 {
				t.Log(v.Found)
			}
			if who == "test" {
				t.Fatalf("%v: %s", f, v.Found)
			}
		case v.Holds == whole[f.From]:
			harmless++
		default:
			silent++
			t.Errorf("%v: nothing was found, and the ledger holds something else", f)
		}
	}
	done("flips=%d found=%v harmless=%d silent=%d died=%d files=%d", n, found, harmless, silent, died, len(files))
}
