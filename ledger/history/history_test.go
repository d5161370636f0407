package history_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/proof"
	"github.com/transparency-dev/merkle/rfc6962"
	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/identity"
)

// memory keeps a log's stored hashes, and counts what was read at once.
type memory struct {
	hashes []history.Hash
	most   int
}

func (m *memory) ReadHashes(indexes []int64) ([]history.Hash, error) {
	m.most = max(m.most, len(indexes))
	out := make([]history.Hash, len(indexes))
	for n, i := range indexes {
		if i < 0 || i >= int64(len(m.hashes)) {
			return nil, fmt.Errorf("hash %d of %d was asked for", i, len(m.hashes))
		}
		out[n] = m.hashes[i]
	}
	return out, nil
}

// grown is a log with its roots by size.
type grown struct {
	memory
	leaves [][]byte
	roots  []history.Hash
}

func grow(t fataler, leaves ...[]byte) *grown {
	t.Helper()
	root, err := history.Root(&memory{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := &grown{roots: []history.Hash{root}}
	for _, leaf := range leaves {
		g.append(t, leaf)
	}
	return g
}

type fataler interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func (g *grown) append(t fataler, leaf []byte) {
	t.Helper()
	a, err := history.Append(g, uint64(len(g.leaves)), leaf)
	if err != nil {
		t.Fatal(err)
	}
	if a.Index != uint64(len(g.leaves)) || a.Size != a.Index+1 || a.First != uint64(len(g.hashes)) || len(a.Hashes) == 0 {
		t.Fatalf("append leaf %d to a log of %d hashes: got index %d, size %d, first %d", len(g.leaves), len(g.hashes), a.Index, a.Size, a.First)
	}
	g.hashes, g.leaves, g.roots = append(g.hashes, a.Hashes...), append(g.leaves, leaf), append(g.roots, a.Root)
	if uint64(len(g.hashes)) != history.StoredCount(a.Size) {
		t.Fatalf("a log of %d has %d hashes, want %d", a.Size, len(g.hashes), history.StoredCount(a.Size))
	}
}

func (g *grown) head(size int) history.Checkpoint {
	return history.Checkpoint{Origin: history.Origin{Epoch: 1}, Size: uint64(size), Root: g.roots[size]}
}

func entries(n int) (leaves [][]byte) {
	for i := range n {
		leaves = append(leaves, history.Leaf([history.SaltSize]byte{byte(i)}, fmt.Appendf(nil, "entry %d", i)))
	}
	return leaves
}

func raw(hs []history.Hash) (out [][]byte) {
	for _, h := range hs {
		out = append(out, slices.Clone(h[:]))
	}
	return out
}

// TestVectors are those of RFC 6962's reference implementation (certificate-transparency, merkle_tree_test).
func TestVectors(t *testing.T) {
	var leaves [][]byte
	for _, s := range []string{"", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"} {
		b, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, b)
	}
	g := grow(t, leaves...)
	for size, want := range map[int]string{
		0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
		8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
	} {
		if got := hex.EncodeToString(g.roots[size][:]); got != want {
			t.Errorf("root of %d leaves: got %s, want %s", size, got, want)
		}
	}
}

func TestLeafIsSaltAndEntry(t *testing.T) {
	leaf := history.Leaf([16]byte{1, 2}, []byte("entry"))
	if want := "\x01\x02" + string(make([]byte, 14)) + "entry"; string(leaf) != want {
		t.Errorf("leaf: got %q, want %q", leaf, want)
	}
	if got := history.LeafHash(leaf); got != sha256.Sum256(append([]byte{0}, leaf...)) {
		t.Errorf("leaf hash: got %s", got)
	}
}

// TestAgainstIndependent holds roots and all proofs of small logs against github.com/transparency-dev/merkle.
func TestAgainstIndependent(t *testing.T) {
	const n = 40
	g := grow(t, entries(n)...)
	hasher := rfc6962.DefaultHasher
	r := (&compact.RangeFactory{Hash: hasher.HashChildren}).NewEmptyRange(0)
	for size := 1; size <= n; size++ {
		if err := r.Append(hasher.HashLeaf(g.leaves[size-1]), nil); err != nil {
			t.Fatal(err)
		}
		root, err := r.GetRootHash(nil)
		if err != nil || history.Hash(root) != g.roots[size] {
			t.Fatalf("root of %d leaves: got %s, want %x, %v", size, g.roots[size], root, err)
		}
		for i := range size {
			p, err := history.ProveInclusion(g, uint64(size), uint64(i))
			if err != nil {
				t.Fatal(err)
			}
			if err := proof.VerifyInclusion(hasher, uint64(i), uint64(size), hasher.HashLeaf(g.leaves[i]), raw(p), root); err != nil {
				t.Fatalf("entry %d of %d: %v", i, size, err)
			}
			if err := history.CheckInclusion(p, g.head(size), uint64(i), g.leaves[i]); err != nil {
				t.Fatal(err)
			}
		}
		for old := 0; old <= size; old++ {
			p, err := history.ProveConsistency(g, uint64(old), uint64(size))
			if err != nil {
				t.Fatal(err)
			}
			if err := proof.VerifyConsistency(hasher, uint64(old), uint64(size), raw(p), g.roots[old][:], root); err != nil && old > 0 {
				t.Fatalf("%d extends %d: %v", size, old, err)
			}
			if err := history.CheckConsistency(p, g.head(old), g.head(size)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestWrongProofs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 70).Draw(rt, "size")
		g := grow(rt, entries(n)...)
		i := rapid.IntRange(0, n-1).Draw(rt, "index")
		j := rapid.IntRange(0, n-1).Draw(rt, "other index")
		p, err := history.ProveInclusion(g, uint64(n), uint64(i))
		if err != nil {
			rt.Fatal(err)
		}
		refuse := func(what string, err error) {
			if !errors.Is(err, history.ErrProof) {
				rt.Fatalf("%s: got error %v, want ErrProof", what, err)
			}
		}
		if i != j {
			refuse("other entry", history.CheckInclusion(p, g.head(n), uint64(i), g.leaves[j]))
			refuse("other index", history.CheckInclusion(p, g.head(n), uint64(j), g.leaves[i]))
		}
		refuse("shorter proof", history.CheckInclusion(p[1:], g.head(n), uint64(i), g.leaves[i]))
		refuse("longer proof", history.CheckInclusion(append(slices.Clone(p), history.Hash{}), g.head(n), uint64(i), g.leaves[i]))
		bad := slices.Clone(p)
		bad[rapid.IntRange(0, len(p)-1).Draw(rt, "changed hash")][0] ^= 1
		refuse("changed proof", history.CheckInclusion(bad, g.head(n), uint64(i), g.leaves[i]))
		refuse("index outside", history.CheckInclusion(p, g.head(n), uint64(n), g.leaves[i]))
	})
}

// TestRewrittenHistory: after any change of an old entry, no proof that the rewritten log can give shows that it extends the old head.
func TestRewrittenHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "size")
		old := rapid.IntRange(1, n).Draw(rt, "old size")
		honest, leaves := grow(rt, entries(n)...), entries(n)
		leaves[rapid.IntRange(0, old-1).Draw(rt, "changed entry")][20] ^= 1
		forged := grow(rt, leaves...)
		for _, g := range []*grown{honest, forged} {
			p, err := history.ProveConsistency(g, uint64(old), uint64(n))
			if err != nil {
				rt.Fatal(err)
			}
			if err := history.CheckConsistency(p, honest.head(old), forged.head(n)); !errors.Is(err, history.ErrProof) {
				rt.Fatalf("a log of %d changed before %d passed: %v", n, old, err)
			}
		}
	})
}

func TestConsistencyRefusals(t *testing.T) {
	g := grow(t, entries(9)...)
	p, err := history.ProveConsistency(g, 4, 9)
	if err != nil {
		t.Fatal(err)
	}
	other, fakeEmpty := g.head(9), g.head(0)
	other.Origin.Epoch++
	fakeEmpty.Root[0]++
	huge := g.head(9)
	huge.Size = 1 << 63
	for name, c := range map[string]struct {
		proof     []history.Hash
		old, head history.Checkpoint
	}{
		"other origin":                   {p, g.head(4), other},
		"backwards":                      {p, g.head(9), g.head(4)},
		"proof from nothing":             {p, g.head(0), g.head(9)},
		"proof between equals":           {p, g.head(9), g.head(9)},
		"empty log with another root":    {nil, fakeEmpty, g.head(9)},
		"equal sizes with another root":  {nil, history.Checkpoint{Origin: g.head(9).Origin, Size: 9}, g.head(9)},
		"no proof":                       {nil, g.head(4), g.head(9)},
		"absurd size":                    {p, g.head(4), huge},
		"proof longer than any log's is": {make([]history.Hash, 1000), g.head(4), g.head(9)},
	} {
		if err := history.CheckConsistency(c.proof, c.old, c.head); !errors.Is(err, history.ErrProof) {
			t.Errorf("%s: got error %v, want ErrProof", name, err)
		}
	}
}

func TestOutside(t *testing.T) {
	g := grow(t, entries(3)...)
	_, err1 := history.ProveInclusion(g, 3, 3)
	_, err2 := history.ProveConsistency(g, 4, 3)
	_, err3 := history.Append(g, history.MaxSize, nil)
	_, err4 := history.Root(g, history.MaxSize+1)
	_, err5 := history.Append(g, 1<<63-1, nil)
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, history.ErrSize) {
			t.Errorf("case %d: got error %v, want ErrSize", i+1, err)
		}
	}
}

func TestFaultyStoreIsAnError(t *testing.T) {
	gone := errors.New("hash is gone")
	none := history.HashesFunc(func([]int64) ([]history.Hash, error) { return nil, gone })
	short := history.HashesFunc(func([]int64) ([]history.Hash, error) { return nil, nil })
	for _, size := range []uint64{1, 2, 5} {
		if _, err := history.Append(none, size, nil); !errors.Is(err, gone) {
			t.Errorf("append to a log of %d without hashes: got error %v", size, err)
		}
		if _, err := history.Append(short, size, nil); err == nil {
			t.Errorf("append to a log of %d: a store that gives too few hashes was believed", size)
		}
	}
}

// TestReadsAreBounded: an append to a large log reads few hashes at once.
func TestReadsAreBounded(t *testing.T) {
	most := 0
	zeros := history.HashesFunc(func(indexes []int64) ([]history.Hash, error) {
		most = max(most, len(indexes))
		return make([]history.Hash, len(indexes)), nil
	})
	for _, size := range []uint64{1<<40 - 1, 1 << 40, 1<<41 - 2, history.MaxSize - 1} {
		a, err := history.Append(zeros, size, nil)
		if err != nil || len(a.Hashes) > 49 || most > 48 {
			t.Errorf("append to a log of %d: %d new hashes, %d read, %v", size, len(a.Hashes), most, err)
		}
	}
}

func FuzzProofs(f *testing.F) {
	f.Add(uint64(3), uint64(9), uint64(2), []byte("0123456789012345678901234567890123456789"))
	f.Add(uint64(0), uint64(1)<<63, uint64(1)<<62, []byte(nil))
	f.Fuzz(func(t *testing.T, old, size, index uint64, b []byte) {
		var p []history.Hash
		for ; len(b) >= 32; b = b[32:] {
			p = append(p, history.Hash(b))
		}
		head := history.Checkpoint{Size: size, Root: history.Hash{1}}
		if err := history.CheckInclusion(p, head, index, b); !errors.Is(err, history.ErrProof) {
			t.Errorf("inclusion: %v", err)
		}
		err := history.CheckConsistency(p, history.Checkpoint{Size: old, Root: history.Hash{2}}, head)
		if !errors.Is(err, history.ErrProof) {
			t.Errorf("consistency: %v", err)
		}
	})
}

func device(t testing.TB) *identity.Device {
	t.Helper()
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestConsistencyAgainstIndependent: github.com/transparency-dev/merkle takes every consistency proof of larger logs, too, and refuses the
// same changed ones.
func TestConsistencyAgainstIndependent(t *testing.T) {
	const n = 700
	g := grow(t, entries(n)...)
	hasher := rfc6962.DefaultHasher
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, n).Draw(rt, "size")
		old := rapid.IntRange(1, size).Draw(rt, "old size")
		p, err := history.ProveConsistency(g, uint64(old), uint64(size))
		if err != nil {
			rt.Fatal(err)
		}
		if len(p) > 0 && rapid.Bool().Draw(rt, "change") {
			p = slices.Clone(p)
			p[rapid.IntRange(0, len(p)-1).Draw(rt, "hash")][0] ^= 1
		}
		ours := history.CheckConsistency(p, g.head(old), g.head(size))
		theirs := proof.VerifyConsistency(hasher, uint64(old), uint64(size), raw(p), g.roots[old][:], g.roots[size][:])
		if (ours == nil) != (theirs == nil) {
			rt.Fatalf("%d extends %d: we say %v, transparency-dev says %v", size, old, ours, theirs)
		}
	})
}
