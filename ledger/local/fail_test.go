package local

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// TestFailSaysWhatToDo: an error that a person can do something about names the verb.
func TestFailSaysWhatToDo(t *testing.T) {
	for _, x := range []struct {
		err  error
		next string
	}{
		{identity.ErrRevoked, "another device of the account"},
		{identity.ErrPower, "may pay"},
		{p2p.Errorf(p2p.KindForbidden, "its account has revoked the device"), "if its account has revoked it"},
		{books.ErrDiffer, "settle refuse"},
		{p2p.ErrUnreachable, "peers"},
	} {
		var said *local.Error
		if err := fail(fmt.Errorf("settle: %w", x.err)); !errors.As(err, &said) || !strings.Contains(said.Next, x.next) {
			t.Errorf("%v: %+v, want %q", x.err, err, x.next)
		}
	}
}
