package settle

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p"
)

// TestToPeer: what a peer can bring about, and a full disk, are no internal error: of those each one is a line in the owner's log.
func TestToPeer(t *testing.T) {
	for _, c := range []struct {
		err  error
		want p2p.Kind
	}{
		{history.ErrCheckpoint, p2p.KindBadRequest},
		{ledger.ErrChannel, p2p.KindBadRequest},
		{money.ErrOverflow, p2p.KindConflict},
		{books.ErrRefused, p2p.KindConflict},
		{kv.ErrReadOnly, p2p.KindUnavailable},
		{books.ErrReadOnly, p2p.KindUnavailable},
		{books.ErrUnsure, p2p.KindUnavailable},
		{errors.New("a fault of ours"), p2p.KindInternal},
	} {
		err := toPeer(fmt.Errorf("take it: %w", c.err))
		if got := p2p.KindOf(err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	if err := toPeer(nil); err != nil {
		t.Error(err)
	}
}
