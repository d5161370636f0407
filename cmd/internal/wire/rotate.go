package wire

import (
	"context"
	"errors"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/identity"
)

// WhileStopped calls f with what hangs on the device of a stopped daemon, so that changing its key would break it off: nothing where there
// is no ledger. No daemon starts before f returns. It leaves the device's delegation with the ledger, which the next device needs to go
// on with it. Errors are for people; f's come as they are.
func WhileStopped(ctx context.Context, state, what string, f func(books.Hanging) error) error {
	err := stopped(ctx, state, what, func(b *books.Books) error {
		if err := b.ReadOnly(); err != nil {
			return cli.Fail(cli.ExitRefused, what, err, "get the ledger whole again first: `ledger recover`")
		}
		if err := b.KeepOwn(ctx); err != nil {
			return cli.Fail(cli.ExitSystem, what, err, "free some space on the disk and try again")
		}
		var h books.Hanging
		err := b.View(ctx, func(r *books.Reader) (err error) {
			h, err = r.Hanging()
			return err
		})
		if err != nil {
			return cli.Fail(cli.ExitSystem, what, err, "`ledger verify` says what is wrong with the ledger")
		}
		return f(h)
	})
	if errors.Is(err, errNoLedger) {
		return f(books.Hanging{})
	}
	return err
}

// finishRotation does what a change of the device's or the account's key left to be done.
func (b *Base) finishRotation() error {
	if ok, err := identity.FinishAccountRotation(IdentityDir(b.State), time.Now()); err != nil {
		return cli.Fail(cli.ExitSystem, "finish the change of the account's key", err, "the text above says which file")
	} else if ok {
		b.Log.Warn("finished a change of the account's key that was cut short")
	}
	r, ok, err := identity.FinishRotation(IdentityDir(b.State), time.Now())
	if err != nil {
		return cli.Fail(cli.ExitSystem, "finish the change of the device's key", err, "the text above says which file")
	}
	switch {
	case ok && r.Revoked:
		b.Log.Warn("finished a change of the device's key that was cut short", "old", r.Old, "new", r.New)
	case ok:
		b.Log.Warn("finished a change of the device's key: let the old one go on the PC that has the account's key, with `identity revoke`",
			"old", r.Old, "new", r.New)
	}
	return nil
}
