package provider

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/market/reason"
)

// A renter that signed two histories is told so, and the proof stays in the error: the books keep it by that when the sale is undone.
func TestForkIsToldAndKept(t *testing.T) {
	err := creditReason(fmt.Errorf("open lane: %w", &books.Fork{Have: []byte("a"), Got: []byte("b")}))
	var f *books.Fork
	if r, ok := reason.Of(err); !ok || r.Code != reason.HistoryForked || !errors.As(err, &f) || string(f.Got) != "b" {
		t.Errorf("%v, %+v", err, f)
	}
}
