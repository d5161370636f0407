package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
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
		Network: b.Network, Protocol: protocol, First: first, Books: b.Books, Peer: b.lastDevice, Log: b.Log.With("part", "recovery"),
		Records: b.given, Terms: terms.Read,
	})
	if err != nil {
		return err
	}
	b.Network.Handle(protocol, settle.RecoverLimits(), b.recovery.Handler())
	b.Network.Handle(first, settle.RecoverLimits(), b.recovery.FirstHandler())
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

// lastDevice finds where an account was dealt with last: by the agent's records, or by the ledger's own where those know nothing.
func (b *Base) lastDevice(ctx context.Context, account identity.AccountID) (peer identity.PeerID, err error) {
	if b.peerOf != nil {
		if peer, err := b.peerOf(ctx, account); err == nil && !peer.IsZero() {
			return peer, nil
		}
	}
	err = b.Books.View(ctx, func(r *books.Reader) (err error) {
		if peer, err = r.LastDevice(account); err == nil && peer.IsZero() {
			peer, err = r.SkippedAt(account)
		}
		return err
	})
	if err == nil && peer.IsZero() {
		err = fmt.Errorf("account %s: no device of it is known; it is asked when it connects", account.Short())
	}
	return peer, err
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
