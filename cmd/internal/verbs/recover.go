package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local"
)

func (d *Daemon) ledgerBackup() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "backup FILE", Short: "write the ledger and its leases to one signed file", Args: exactly("the file to write", 1),
		Long: "The file holds everything of one moment that " + d.Title + " keeps in its store, and is read again before it counts. It takes the place of an\n" +
			"older backup of the same ledger, and never of one that knows more. Keys are not in it: `identity export` saves those.",
		Example: fmt.Sprintf("  %s ledger backup /media/stick/ledger.backup", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := filepath.Abs(args[0])
			if err != nil {
				return cli.Fail(cli.ExitSystem, "back up the ledger", err, "")
			}
			h, err := backup.Save(cmd.Context(), path, force, func(w io.Writer) error { return d.streamBackup(cmd.Context(), w) })
			if err != nil {
				return d.explainBackup(err)
			}
			if d.JSON {
				return d.PrintJSON(h.Show(path))
			}
			return d.Pairs([2]string{"backup", path}, [2]string{"entries", fmt.Sprintf("%d, epoch %d", h.Size, h.Epoch)}, [2]string{"root", h.Root.String()},
				[2]string{"records", fmt.Sprintf("%d, %d bytes", h.Records, h.Bytes)})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "overwrite FILE whatever it holds, also a backup that knows more; never a folder, a link, a pipe or a device, and never by an empty ledger")
	return c
}

// streamBackup gets the backup from the daemon, or where none runs and none is started by commands, from its store.
func (d *Daemon) streamBackup(ctx context.Context, w io.Writer) error {
	c, err := d.Dial(ctx)
	if err != nil {
		return err
	}
	body, err := c.Raw(ctx, http.MethodGet, "/ledger/backup", nil)
	if errors.Is(err, local.ErrNotRunning) && d.Client == nil {
		state, _, err := d.Place()
		if err != nil {
			return err
		}
		return wire.StoppedBackup(ctx, state, w)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(w, body)
	return err
}

func (d *Daemon) explainBackup(err error) error {
	const what = "back up the ledger"
	var told *cli.Error
	switch {
	case errors.As(err, &told): // by who read the store
		return told
	case errors.Is(err, backup.ErrOlder), errors.Is(err, backup.ErrOccupied):
		return cli.Fail(cli.ExitRefused, what, err, "give another name; or keep a copy of that file, and then --force")
	case errors.Is(err, backup.ErrEmpty):
		return cli.Fail(cli.ExitRefused, what, err, "if this ledger should have entries, `ledger restore FILE` brings them back")
	case errors.Is(err, backup.ErrBackup):
		return cli.Fail(cli.ExitFailure, what, err, "what came was not whole: "+d.Title+"'s log says more")
	case errors.Is(err, local.ErrNotRunning):
		return d.Explain(what, err)
	}
	return cli.Fail(cli.ExitSystem, what, err, "a FILE in a folder that you may write, on a disk with room; what was there is as it was")
}

func (d *Daemon) ledgerRestore() *cobra.Command {
	var other bool
	c := &cobra.Command{
		Use: "restore FILE", Short: "make the ledger again from a backup; " + d.Title + " must be stopped", Args: exactly("the backup", 1),
		Long: "The backup is checked whole before anything is made, and the store that is there is set aside, never deleted. What its journal has\n" +
			"beyond the backup is kept. The ledger is of a new epoch then: when " + d.Title + " starts, it asks every counterparty for what came after\n" +
			"the backup, and signs nothing on a lease of before until that answered. `ledger recover` shows how far that is.",
		Example: fmt.Sprintf("  %s ledger restore /media/stick/ledger.backup", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.rebuild(cmd.Context(), args[0], other)
		},
	}
	c.Flags().BoolVar(&other, "other-device", false, "take a backup of another device of this account: its leases are shown and settled, not continued")
	return c
}

func (d *Daemon) ledgerRecover() *cobra.Command {
	var from, forget, take string
	c := &cobra.Command{
		Use: "recover", Short: "get back what the ledger lost: from its own files, a backup, and the peers", Args: cobra.NoArgs,
		Long: "While " + d.Title + " runs it asks every counterparty that has not answered since the ledger was restored. While it is stopped, a ledger\n" +
			"that is behind or damaged is made again from what is left of it, and from a backup with --from; the store that is there is set aside.\n" +
			"Leases of another device of this account stay out, since that one has a ledger of its own. If it is lost for good (its disk is dead and\n" +
			"there is no backup), --take DEVICE takes them over here: what peers have of it is booked and settled, not continued. Never do it while that\n" +
			"device may still run, or on two devices: the same debts would be booked twice.\n" +
			"Exit codes: 0 all have answered; 10 somebody has not: " + d.Title + " goes on asking.",
		Example: fmt.Sprintf("  %[1]s ledger recover\n  %[1]s ledger recover --from /media/stick/ledger.backup\n  %[1]s ledger recover --forget gf5vesrrri2h…\n  %[1]s ledger recover --take 12D3KooW…", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if take != "" {
				v, err := sendTo[statement.Recovery](cmd.Context(), d, "take over device "+take, "/ledger/recover/"+url.PathEscape(take)+"/take")
				if err != nil {
					return err
				}
				return d.printRecovery(v)
			}
			if forget != "" {
				v, err := sendTo[statement.Recovery](cmd.Context(), d, "give up account "+forget, "/ledger/recover/"+url.PathEscape(forget)+"/forget")
				if err != nil {
					return err
				}
				return d.printRecovery(v)
			}
			v, err := sendTo[statement.Recovery](cmd.Context(), d, "recover the ledger", "/ledger/recover")
			switch {
			case from != "" && err == nil:
				return cli.Fail(cli.ExitRefused, "recover the ledger", errors.New(d.Title+" is running"), "stop it first: a backup is taken while it is stopped")
			case cli.CodeOf(err) == cli.ExitNoDaemon:
				return d.rebuild(cmd.Context(), from, false)
			case err != nil:
				return err
			}
			return d.printRecovery(v)
		},
	}
	c.Flags().StringVar(&from, "from", "", "start from this backup `file`")
	c.Flags().StringVar(&forget, "forget", "", "give up what this `account` may have, and go on")
	c.Flags().StringVar(&take, "take", "", "take over the leases of this `device` of the account, which is lost for good")
	c.MarkFlagsMutuallyExclusive("from", "forget", "take")
	return c
}

// sendTo asks a daemon that runs; it starts none.
func sendTo[T any](ctx context.Context, d *Daemon, what, path string) (out T, err error) {
	_, socket, err := d.Place()
	if err != nil {
		return out, err
	}
	return out, d.Explain(what, local.NewClient(socket).Do(ctx, http.MethodPost, path, struct{}{}, &out))
}

// rebuild makes the ledger again, with the daemon stopped.
func (d *Daemon) rebuild(ctx context.Context, from string, other bool) error {
	state, _, err := d.Place()
	if err != nil {
		return err
	}
	log, _, err := d.Logger(cli.DefaultLog())
	if err != nil {
		return err
	}
	got, err := wire.Restore(ctx, wire.RestoreConfig{
		State: state, Backup: from, OtherDevice: other, Release: cli.ThisBuild().Version, Log: log, Now: time.Now(),
	})
	if err != nil {
		return err
	}
	if d.JSON {
		return d.PrintJSON(got)
	}
	pairs := [][2]string{{"from", got.From}, {"entries", fmt.Sprintf("%d, epoch %d", got.Entries, got.Epoch)}}
	if got.Replayed > 0 {
		pairs = append(pairs, [2]string{"journal", fmt.Sprintf("%d transactions beyond it", got.Replayed)})
	}
	if s := got.Salvaged; s.Lanes+s.Settlements+s.Lost > 0 {
		pairs = append(pairs, [2]string{"taken over", fmt.Sprintf("%d leases, %d payments; %d records can't be read", s.Lanes, s.Settlements, s.Lost)})
	}
	if got.Aside != "" {
		pairs = append(pairs, [2]string{"old store", got.Aside})
	}
	if err := d.Pairs(pairs...); err != nil {
		return err
	}
	d.Note("next: start %s; it asks %s for what is newer (`%s ledger recover`)", d.Title, cli.Count(got.Peers, "counterparty"), d.Name)
	return nil
}

func (d *Daemon) printRecovery(v statement.Recovery) error {
	if d.JSON {
		if err := d.PrintJSON(v); err != nil {
			return err
		}
	} else if err := d.tellRecovery(v); err != nil {
		return err
	}
	if len(v.Waiting) > 0 {
		return cli.Status(cli.ExitBehind)
	}
	return nil
}

func (d *Daemon) tellRecovery(v statement.Recovery) error {
	now := time.Now()
	if v.Restored.IsZero() {
		d.Note("this ledger was never restored: nothing is missing")
		return nil
	}
	if len(v.Asked) > 0 {
		tab := d.Table("ACCOUNT", "RESULT", ">LEASES", ">PAYMENTS", "DETAIL")
		for _, a := range v.Asked {
			tab.Row(a.Account, a.Result, a.Leases, a.Settlements, strings.TrimSpace(a.Detail))
		}
		if err := tab.Print(); err != nil {
			return err
		}
	}
	d.Note("restored %s, epoch %d", cli.Ago(v.Restored, now), v.Epoch)
	for _, o := range v.Others {
		d.Note("%s of device %s of this account stay out: they are in its own ledger; only if it is lost for good, --take %s", cli.Count(o.Leases, "lease"),
			o.Device, o.Device)
	}
	if len(v.Waiting) == 0 {
		d.Note("everybody has answered")
		return nil
	}
	for _, w := range v.Waiting {
		d.Note("%s has not answered: nothing is signed on its %s of before; it is asked again, or given up with --forget", short(w.Account),
			cli.Count(w.Leases, "unsure lease"))
	}
	return nil
}
