package renter

import (
	"slices"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/proof"
)

// What both sides signed about a job goes into its proof, from the offer to the end.
func TestRecords(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		time.Sleep(30 * time.Second)
		r.owner.ends()
		r.ends(id, 30*time.Second)
		list, err := r.agent.Records(t.Context(), ledger.Lane(id))
		must(t, err)
		var names []string
		for _, a := range list {
			names = append(names, a.Name)
		}
		if want := []string{"gpufair/offer/1", "gpufair/accept/1", "gpufair/lease/1", "gpufair/end/1"}; !slices.Equal(names, want) {
			t.Fatalf("%v, want %v", names, want)
		}
		must(t, r.books.View(t.Context(), func(b *books.Reader) error {
			f, err := b.Prove(ledger.Lane(id), list)
			if err != nil {
				return err
			}
			raw, err := f.Encode()
			if v := proof.Check(raw); v.Result != proof.OK || len(v.Attachments) != len(names) {
				t.Errorf("%+v", v)
			}
			return err
		}))
		if none, err := r.agent.Records(t.Context(), ledger.Lane{1}); err != nil || len(none) != 0 {
			t.Fatalf("of a lane that is no job: %v, %v", none, err)
		}
	})
}
