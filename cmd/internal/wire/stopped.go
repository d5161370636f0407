package wire

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
)

// errNoLedger says that a daemon never had a ledger.
var errNoLedger = errors.New("there is no ledger")

// stopped calls f with a daemon's ledger while the daemon is stopped: the store's lock says so. The error is errNoLedger where there is
// none, and else for people; what is what failed.
func stopped(ctx context.Context, state, what string, f func(*books.Books) error) (err error) {
	dir := StoreDir(state)
	if _, err := FinishRestore(state); err != nil {
		return cli.Fail(cli.ExitSystem, what, err, "the folder "+state+" must belong to this user")
	}
	if _, err := os.Stat(filepath.Join(dir, "badger")); errors.Is(err, fs.ErrNotExist) {
		return errNoLedger
	}
	quiet := slog.New(slog.DiscardHandler)
	db, err := badger.Open(ctx, badger.Config{Dir: filepath.Join(dir, "badger"), Log: quiet})
	switch {
	case errors.Is(err, kv.ErrInUse):
		return cli.Fail(cli.ExitRefused, what, err, "stop the daemon first (`gpufair agent stop`, or Ctrl-C where `gpufaird run` runs)")
	case errors.Is(err, badger.ErrDamaged):
		return cli.Fail(cli.ExitSystem, what, err, recoverNext)
	case err != nil:
		return cli.Fail(cli.ExitSystem, what, err, "start the daemon: its log says more")
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	dev, err := identity.Load(IdentityDir(state)) // under the store's lock: another program may have changed it before
	if err != nil {
		return cli.Fail(cli.ExitSystem, what, err, "the text above says which file")
	}
	store, err := kv.Open(ctx, db, schema(cli.ThisBuild().Version))
	if err != nil {
		return cli.Fail(cli.ExitSystem, what, err, "use the release that the text names, or a newer one")
	}
	b, err := books.Open(ctx, books.Config{Dir: filepath.Join(dir, "ledger"), Mark: MarkFile(state), Store: store, Device: dev, Log: quiet})
	if err != nil {
		return cli.Fail(cli.ExitSystem, what, err, recoverNext)
	}
	err = f(b)
	return errors.Join(err, b.Close())
}

// recoverNext is the way out of damage.
const recoverNext = "run `ledger recover`: it sets the damaged store aside and makes it again from the\njournal, the peers and, with --from FILE, a backup"

// broken reports whether a store or a ledger could not be opened since it is not what was written.
func broken(err error) bool { return errors.Is(err, kv.ErrDamaged) || errors.Is(err, books.ErrCorrupt) }

// StoppedVerify checks a daemon's ledger while the daemon is stopped. What keeps the store or the ledger from being opened is a verdict,
// too. looked is false if there never was a ledger, or another program uses it. Errors are for people.
func StoppedVerify(ctx context.Context, state string) (v statement.Verdict, looked bool, err error) {
	err = stopped(ctx, state, "verify the ledger", func(b *books.Books) (err error) { v, err = b.Verify(ctx); return err })
	switch {
	case errors.Is(err, errNoLedger) && books.MarkedEpoch(MarkFile(state)) > 0:
		return statement.Verdict{Result: books.ResultBehind, Entry: "store", Detail: "this device has had a ledger, and its store is gone"}, true, nil
	case errors.Is(err, errNoLedger), errors.Is(err, kv.ErrInUse):
		return v, false, nil
	case broken(err):
		return statement.Verdict{Result: books.ResultCorrupt, Entry: "store", Detail: err.Error()}, true, nil
	}
	return v, true, err
}
