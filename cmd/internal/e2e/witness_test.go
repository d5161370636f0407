package e2e

import (
	"testing"

	"github.com/gpufair/gpufair/ledger/books"
)

// cosigned waits until each of two parties holds a head of its ledger that the other checked and cosigned, and neither thinks ill of the other.
func cosigned(t *testing.T, a, b *party) {
	t.Helper()
	for _, two := range [][2]*party{{a, b}, {b, a}} {
		until(t, "the other side to cosign the ledger", patience, func() bool {
			done := false
			err := two[0].base.Books.View(t.Context(), func(r *books.Reader) error {
				all, err := r.ShowWitnesses()
				for _, w := range all {
					done = done || w.Device == two[1].base.Device.Peer().String() && w.Cosigned > 0 && w.Checked > 0
					if w.Suspicion != "" || w.Fork != nil {
						t.Fatalf("%+v", w)
					}
				}
				return err
			})
			return err == nil && done
		})
	}
}
