package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/terms"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/books"
	ledgerlocal "github.com/gpufair/gpufair/ledger/local"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// DefaultLedger is what a config file says of the ledger before anybody changed it. There are no daily backups: a copy on the ledger's own
// disk dies with it, and only its owner knows of another.
func DefaultLedger() LedgerConfig {
	return LedgerConfig{Keep: 7, DisputeDays: ledgerlocal.DefaultDisputeDays}
}

// Validate says what is wrong, by key.
func (c LedgerConfig) Validate() error {
	if c.Keep < 1 || c.Keep > maxKeep {
		return cli.KeyErrorf("ledger.keep", "%d: want 1 to %d daily backups", c.Keep, maxKeep)
	}
	if c.DisputeDays < 1 || c.DisputeDays > ledgerlocal.MaxDisputeDays {
		return cli.KeyErrorf("ledger.dispute_days", "%d: want 1 to %d days", c.DisputeDays, ledgerlocal.MaxDisputeDays)
	}
	if c.Backup != "" && !filepath.IsAbs(c.Backup) {
		return cli.KeyErrorf("ledger.backup", "%q: want the whole path of a folder", c.Backup)
	}
	return nil
}

// maxKeep is ten years of daily backups.
const maxKeep = 3660

// openRecovery makes the conversation by which a restored ledger gets back what it lost.
func (b *Base) openRecovery() (err error) {
	protocol, first := p2p.ProtocolVersion(b.name, work.ProtoRecover, 2), p2p.ProtocolID(b.name, work.ProtoRecover)
	b.recovery, err = settle.NewRecovery(settle.RecoveryConfig{
		Network: b.Dealing, Protocol: protocol, First: first, Books: b.Books, Peer: b.deviceOf, Log: b.Log.With("part", "recovery"),
		Records: b.given, Terms: terms.Read,
	})
	if err != nil {
		return err
	}
	b.Dealing.Handle(protocol, settle.RecoverLimits(), b.recovery.Handler())
	b.Dealing.Handle(first, settle.RecoverLimits(), b.recovery.FirstHandler())
	return nil
}

// given are the records of a lane that go back to a side that lost it.
func (b *Base) given(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error) {
	all, err := b.recordsOf(ctx, lane)
	return terms.Given(all), err
}

// recordsOf are the agent's records of a lane; of a lease of which it knows nothing any more, those that came back with the ledger.
func (b *Base) recordsOf(ctx context.Context, lane ledger.Lane) (all []proof.Attachment, err error) {
	if b.records != nil {
		if all, err = b.records(ctx, lane); err != nil || len(all) > 0 {
			return all, err
		}
	}
	err = b.Books.View(ctx, func(r *books.Reader) (err error) { all, err = r.KeptRecords(lane); return err })
	return all, err
}

// deviceOf finds the device on which an account is to be reached: where it was dealt with last by the agent's records, or what the ledger
// knows besides, after a restore or when the account has another PC. One that is connected now goes first, and none that the account let go.
func (b *Base) deviceOf(ctx context.Context, account identity.AccountID) (identity.PeerID, error) {
	var may []identity.PeerID
	err := b.Books.View(ctx, func(r *books.Reader) (err error) {
		if may, err = r.DevicesOf(account); err != nil || b.peerOf == nil {
			return err
		}
		if last, err := b.peerOf(ctx, account); err == nil && !last.IsZero() {
			if gone, err := r.LetGo(account, last); err != nil || gone {
				return err
			}
			may = slices.Insert(may, 0, last)
		}
		return nil
	})
	if err != nil {
		return identity.PeerID{}, err
	}
	if len(may) == 0 {
		return identity.PeerID{}, fmt.Errorf("account %s: no device of it is known: it never dealt with this account, or has let its devices go; it is asked when it connects", account.Short())
	}
	for _, p := range b.Network.Peers() {
		if slices.Contains(may, p.Peer) {
			return p.Peer, nil
		}
	}
	return may[0], nil
}

// daily makes the daily backups.
func (b *Base) daily() backup.Daily {
	return backup.Daily{
		Dir: b.Ledger.Backup, Keep: b.Ledger.Keep, Device: b.Device.Peer(), Log: b.Log.With("part", "backup"),
		Write: func(ctx context.Context, w io.Writer) error {
			_, err := b.Books.Backup(ctx, w, time.Now())
			return err
		},
	}
}

// StoppedBackup writes a backup of a daemon's ledger while the daemon is stopped. Errors are for people.
func StoppedBackup(ctx context.Context, state string, w io.Writer) (err error) {
	const what = "back up the ledger"
	err = stopped(ctx, state, what, func(b *books.Books) error {
		_, err := b.Backup(ctx, w, time.Now())
		return err
	})
	if errors.Is(err, errNoLedger) {
		err = cli.Fail(cli.ExitNotFound, what, err, "start "+state+"'s daemon once, or give --home DIR")
	}
	return err
}
