package blob

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/p2p/wire"
)

var someHash = wire.Sum("some chunk")

func file(path string, size int64, chunks ...wire.Hash) Entry {
	return Entry{Path: path, Type: File, Mode: 0o644, Size: size, Chunks: chunks}
}
func dir(path string) Entry          { return Entry{Path: path, Type: Dir, Mode: 0o755} }
func link(path, target string) Entry { return Entry{Path: path, Type: Symlink, Target: target} }

func manifest(entries ...Entry) Manifest { return Manifest{Version: 1, Entries: entries} }

func TestManifestRoundTrip(t *testing.T) {
	m := manifest(dir("a"), file("a-b", 3, someHash), file("a/b", 0), link("a/l", "../a-b"), file("big", ChunkSize+1, someHash, someHash))
	b, id, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeManifest(b)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(m) || id != wire.Sum("", b) {
		t.Fatal(got, err)
	}
	if m.Bytes() != ChunkSize+4 {
		t.Error(m.Bytes())
	}
}

func TestManifestRefuses(t *testing.T) {
	deep := strings.Repeat("d/", MaxDepth)
	var many []Entry
	for i := range MaxEntries + 1 {
		many = append(many, file(fmt.Sprintf("%06d", i), 0))
	}
	bad := map[string]Manifest{
		"absolute":             manifest(file("/etc/passwd", 0)),
		"dotdot":               manifest(file("../x", 0)),
		"dotdot inside":        manifest(dir("a"), file("a/../../x", 0)),
		"just dotdot":          manifest(dir("..")),
		"dot":                  manifest(dir(".")),
		"empty path":           manifest(file("", 0)),
		"not clean":            manifest(dir("a"), file("a//b", 0)),
		"trailing slash":       manifest(dir("a/")),
		"control character":    manifest(file("a\x1b[2J", 0)),
		"zero byte":            manifest(file("a\x00b", 0)),
		"not UTF-8":            manifest(file("a\xffb", 0)),
		"long name":            manifest(file(strings.Repeat("n", MaxName+1), 0)),
		"long path":            manifest(file(strings.Repeat("n/", MaxPath/2)+"x", 0)),
		"too deep":             manifest(file(deep+"x", 0)),
		"no parent":            manifest(file("a/b", 0)),
		"in a file":            manifest(file("a", 0), file("a/b", 0)),
		"through a link":       manifest(dir("d"), link("l", "d"), file("l/x", 0)),
		"twice":                manifest(file("a", 0), file("a", 0)),
		"out of order":         manifest(file("b", 0), file("a", 0)),
		"setuid":               manifest(Entry{Path: "a", Type: File, Mode: 0o4755}),
		"unknown type":         manifest(Entry{Path: "a", Type: 4}),
		"device":               manifest(Entry{Path: "a", Type: 0}),
		"too few chunks":       manifest(file("a", 1)),
		"too many chunks":      manifest(file("a", 1, someHash, someHash)),
		"negative size":        manifest(file("a", -1)),
		"huge size":            manifest(file("a", 1<<62, someHash)),
		"largest size":         manifest(file("a", 1<<63-1, someHash)),
		"folder with content":  manifest(Entry{Path: "a", Type: Dir, Size: 1, Chunks: []wire.Hash{someHash}}),
		"link with content":    manifest(Entry{Path: "a", Type: Symlink, Target: "b", Size: 1, Chunks: []wire.Hash{someHash}}),
		"file with target":     manifest(Entry{Path: "a", Type: File, Target: "b"}),
		"link to nothing":      manifest(link("a", "")),
		"absolute link":        manifest(link("a", "/etc/passwd")),
		"link out":             manifest(link("a", "..")),
		"link out and in":      manifest(dir("d"), link("d/a", "../../d")),
		"link turns behind":    manifest(dir("d"), link("d/up", ".."), link("l", "d/up/../x")),
		"link up after a name": manifest(dir("d"), dir("d/e"), link("d/l", "e/..")),
		"link with control":    manifest(link("a", "b\n")),
		"other version":        {Version: 2},
		"version 0":            {},
		"too many entries":     manifest(many...),
		"too many in all":      manifest(manyChunks(MaxChunks + 1)...),
	}
	for name, m := range bad {
		if err := m.Check(); !errors.Is(err, ErrPath) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := m.Encode(); err == nil {
			t.Errorf("%s was encoded", name)
		}
		if b, err := wire.Marshal(m); err == nil {
			if _, err := DecodeManifest(b); err == nil {
				t.Errorf("%s was decoded", name)
			}
		}
	}
}

// manyChunks is files of 65,536 chunks with n in all.
func manyChunks(n int) []Entry {
	var list []Entry
	for i := 0; n > 0; i++ {
		k := min(n, 1<<16)
		chunks := make([]wire.Hash, k)
		list = append(list, file(fmt.Sprint(i), int64(k)*ChunkSize, chunks...))
		n -= k
	}
	return list
}

func TestManifestAcceptsTheLargest(t *testing.T) {
	b, _, err := manifest(manyChunks(MaxChunks)...).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeManifest(b); err != nil {
		t.Fatal(err)
	}
}

func TestManifestAcceptsLinks(t *testing.T) {
	m := manifest(dir("a"), dir("a/b"), link("a/b/up", "../../x"), link("a/dot", "./b"), link("a/gone", "nowhere"), link("a/here", ".."), link("s", "a"))
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// Whatever links a manifest has, following them step by step as a kernel does never leaves the folder.
func TestLinksNeverLeave(t *testing.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "..", "."})
	rapid.Check(t, func(t *rapid.T) {
		m := manifest(dir("a"), dir("a/b"), dir("a/b/c"))
		links := map[string]string{}
		for _, p := range []string{"a/b/c/l", "a/b/l", "a/l", "l"} {
			target := strings.Join(rapid.SliceOfN(rapid.OneOf(name, rapid.Just("l")), 1, 6).Draw(t, p), "/")
			if checkTarget(p, target) == nil {
				links[p] = target
			}
		}
		followed := 0 // a kernel gives up after 40 links in all (ELOOP)
		var resolve func(at, target string) (string, bool)
		resolve = func(at, target string) (string, bool) {
			for n := range strings.SplitSeq(target, "/") {
				if n == ".." {
					if at == "." {
						return at, false
					}
					at = path.Dir(at)
					continue
				}
				next := path.Join(at, n)
				to, ok := links[next]
				if !ok {
					at = next
					continue
				}
				if followed++; followed > 40 {
					return at, true
				}
				if at, ok = resolve(path.Dir(next), to); !ok {
					return at, false
				}
			}
			return at, true
		}
		for p, target := range links {
			followed = 0
			if at, ok := resolve(path.Dir(p), target); !ok {
				t.Fatalf("%s -> %s leaves at %s; links %v, folders %v", p, target, at, links, m)
			}
		}
	})
}

func TestOneChunkWithTwoSizesIsRefused(t *testing.T) {
	m := manifest(file("a", 1, someHash), file("b", 2, someHash))
	if _, err := m.chunks(); !errors.Is(err, ErrPath) {
		t.Error(err)
	}
}

func FuzzDecodeManifest(f *testing.F) {
	for _, m := range []Manifest{
		manifest(), manifest(dir("a"), file("a/b", 5, someHash), link("a/l", "b")), manifest(file("../x", 0)), manifest(link("a", "/")),
	} {
		b, err := wire.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeManifest(b)
		if err != nil {
			return
		}
		for _, e := range m.Entries {
			if strings.HasPrefix(e.Path, "/") || path.Clean("/"+e.Path) != "/"+e.Path || e.Mode > 0o777 {
				t.Fatalf("%+v", e)
			}
		}
		again, id, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeManifest(again); err != nil || id != wire.Sum("", again) || len(back.Entries) != len(m.Entries) {
			t.Fatal(err)
		}
	})
}
