package history_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gpufair/gpufair/ledger/history"
)

// TestFrontier: a log that keeps its edge only makes the same hashes and roots as one that keeps all.
func TestFrontier(t *testing.T) {
	var stored []history.Hash
	all := history.HashesFunc(func(numbers []int64) ([]history.Hash, error) {
		out := make([]history.Hash, len(numbers))
		for i, n := range numbers {
			out[i] = stored[n]
		}
		return out, nil
	})
	var f history.Frontier
	for size := range uint64(300) {
		root, err := f.Root()
		if want, werr := history.Root(all, size); err != nil || werr != nil || root != want || f.Size() != size {
			t.Fatalf("root of %d leaves: %v, want %v (%v, %v)", size, root, want, err, werr)
		}
		leaf := fmt.Append(nil, "leaf ", size)
		want, err := history.Append(all, size, leaf)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Add(leaf)
		if err != nil || !slices.Equal(got, want.Hashes) {
			t.Fatalf("hashes of leaf %d differ: %v", size, err)
		}
		stored = append(stored, got...)
	}
}
