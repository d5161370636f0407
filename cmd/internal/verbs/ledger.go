package verbs

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
)

// maxLine is the longest line read from a pipe.
const maxLine = 4 << 10

func readLine(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxLine))
	if err != nil {
		return "", cli.Fail(cli.ExitFailure, "read from the pipe", err, "")
	}
	return strings.TrimSpace(string(b)), nil
}

// Ledger is the verb `ledger`.
func (d *Daemon) Ledger() *cobra.Command {
	c := &cobra.Command{
		Use: "ledger", Short: "who owes whom, and the proof of it",
		Long: "Every amount stands on signed records that both sides keep. `ledger verify` computes all of it again from the records alone.\n" +
			"Without a verb it shows the balances.",
		Example: fmt.Sprintf("  %s ledger\n  %s ledger verify\n  %s ledger export --format csv > ledger.csv", d.Name, d.Name, d.Name),
	}
	show := d.ledgerShow()
	c.RunE = show.RunE
	if d.Lends {
		c.AddCommand(d.ledgerWriteOff())
	}
	c.AddCommand(show, d.ledgerOwed(), d.ledgerDispute(), d.ledgerVerify(), d.ledgerEntries(), d.ledgerStatement(), d.ledgerProof(), d.ledgerWitness(), d.ledgerNet(), d.ledgerExport(), d.ledgerBackup(), d.ledgerRestore(),
		d.ledgerRecover())
	return c
}

func (d *Daemon) ledgerShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "balances by counterparty", Example: fmt.Sprintf("  %s ledger show", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Ledger](cmd.Context(), d, "show the ledger", "/ledger")
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			now := time.Now()
			tab := d.Table("ACCOUNT", ">OWED TO ME", ">I OWE", ">HELD", ">PREPAID", ">SETTLED", "UNIT", ">LEASES", "LAST")
			for _, b := range v.Balances {
				tab.Row(b.Account, b.OwedToMe, b.IOwe, b.Held, b.Prepaid, b.Settled, b.Unit, b.Leases, cli.Ago(b.LastEntry, now))
			}
			if v.ReadOnly != "" {
				d.Note("%s", readOnly(v.ReadOnly))
			}
			d.Note("%s, root %s", cli.Count(v.Entries, "entry"), short(v.Root))
			d.noteDue(v.Due, now)
			return tab.Print()
		},
	}
}

// readOnly says why the ledger is read-only; most causes begin with that it is.
func readOnly(why string) string {
	return "the ledger is read-only: " + cli.Clean(strings.TrimPrefix(why, "ledger is read-only: "))
}

func (d *Daemon) ledgerVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify [FILE]", Short: "check every signature, sum and root of this ledger, or of a proof file", Args: cobra.MaximumNArgs(1),
		Long: "Without a FILE it checks this ledger. With a FILE that `ledger proof`, `settle proof` or `ledger witness proof` made, here or elsewhere, it checks that\n" +
			"and needs nothing else: no daemon, no network, no ledger. A proof that a device signed two histories gives 12 if it holds, since the device\n" +
			"forged its ledger, and 11 if it shows nothing against anybody.\n" +
			"While " + d.Title + " does not answer, it reads the ledger where it lies.\n" +
			"Exit codes: 0 all fits; 10 behind: sound, but older than what was proved to a peer; 11 corrupt: records do not fit each other;\n" +
			"12 forged: a record does not fit its signature.",
		Example: fmt.Sprintf("  %s ledger verify && echo sound\n  %s ledger verify lease-3fa9c1d20b77.proof", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return d.verifyFile(args[0])
			}
			v, err := send[statement.Verdict](cmd.Context(), d, "verify the ledger", http.MethodPost, "/ledger/verify", struct{}{})
			if cli.CodeOf(err) == cli.ExitNoDaemon {
				v, err = d.verifyStopped(cmd.Context(), err)
			}
			if err != nil {
				return err
			}
			if err := d.printVerdict(v); err != nil {
				return err
			}
			return verdict(v.Result)
		},
	}
}

// verifyStopped checks the ledger of a daemon that does not answer, as it may be by what is wrong with the ledger. notRunning is the error
// where there is nothing to check.
func (d *Daemon) verifyStopped(ctx context.Context, notRunning error) (v statement.Verdict, err error) {
	state, _, err := d.Place()
	if err != nil {
		return v, err
	}
	v, looked, err := wire.StoppedVerify(ctx, state)
	if err == nil && !looked {
		return v, notRunning
	}
	if err == nil && v.Result != books.ResultOK {
		d.Note("next: `%[1]s ledger recover` makes it again from what is left, `%[1]s ledger restore FILE` from a backup", d.Name)
	}
	return v, err
}

func (d *Daemon) printVerdict(v statement.Verdict) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	colour := cli.Bad
	if v.Result == "ok" {
		colour = cli.Good
	}
	pairs := [][2]string{
		{"result", d.Paint(colour, cli.Clean(v.Result))},
		{"entries", fmt.Sprint(v.Entries)},
		{"signatures", fmt.Sprintf("%d checked", v.Checked)},
		{"root", v.Root},
	}
	if v.Detail != "" {
		pairs = append(pairs, [2]string{"detail", cli.Clean(v.Detail)})
	}
	if v.Entry != "" {
		pairs = append(pairs, [2]string{"first wrong", cli.Clean(v.Entry)})
	}
	return d.Pairs(pairs...)
}

// verdict is the exit code of a result.
func verdict(result string) error {
	switch result {
	case "ok":
		return nil
	case "behind":
		return cli.Status(cli.ExitBehind)
	case "forged":
		return cli.Status(cli.ExitForged)
	default:
		return cli.Status(cli.ExitCorrupt)
	}
}

// entries is the answer to GET /ledger/entries.
type entries struct {
	Entries []statement.Entry `json:"entries"`
}

const pageOfEntries = 1000

func (d *Daemon) ledgerEntries() *cobra.Command {
	var from uint64
	var limit int
	c := &cobra.Command{
		Use: "entries", Short: "entries in order; with --json one a line",
		Example: fmt.Sprintf("  %s ledger entries --from 100 --limit 20\n  %s ledger entries --json --limit 0 > entries.jsonl", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return cli.Usagef("give 0 for all", "--limit %d: want 0 or more", limit)
			}
			tab := d.Table(">INDEX", "TIME", "KIND", ">AMOUNT", "UNIT", "ACCOUNT", "LEASE", "REF")
			for left := limit; ; {
				page := pageOfEntries
				if limit > 0 {
					page = min(page, left)
				}
				v, err := get[entries](cmd.Context(), d, "list entries", fmt.Sprintf("/ledger/entries?from=%d&limit=%d", from, page))
				if err != nil {
					return err
				}
				for _, e := range v.Entries {
					if d.JSON {
						if err := d.PrintJSON(e); err != nil {
							return err
						}
						continue
					}
					tab.Row(e.Index, d.Time(e.Time, time.Now()), e.Kind, e.Amount, e.Unit, short(e.Account), short(e.Lease), e.Ref)
				}
				from += uint64(len(v.Entries))
				left -= len(v.Entries)
				if len(v.Entries) < page || limit > 0 && left == 0 {
					break
				}
			}
			if d.JSON {
				return nil
			}
			return tab.Print()
		},
	}
	c.Flags().Uint64Var(&from, "from", 0, "index of the first entry")
	c.Flags().IntVar(&limit, "limit", 100, "how many; 0: all")
	return c
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
