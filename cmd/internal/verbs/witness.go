package verbs

import (
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
)

func (d *Daemon) ledgerWitness() *cobra.Command {
	c := &cobra.Command{
		Use: "witness", Short: "what counterparties and I checked of each other's ledgers",
		Long: "Each side signs the head of its ledger in every record of money, and now and then shows the other that it only grew; the other cosigns it.\n" +
			"CHECKED is how many entries of the counterparty's ledger were checked so, MINE how many of this ledger it has cosigned. Who does not show\n" +
			"how its ledger grew is suspect, which proves nothing. Who signed two histories has FORKED: that is proven, its promises are not taken\n" +
			"any more, and `ledger witness proof` writes the proof for others. If it is one's own device (an older copy of its folder was put back):\n" +
			"`identity rotate --device --force` gives it another key.",
		Example: fmt.Sprintf("  %s ledger witness\n  %s ledger witness proof gf5kq -o fork.txt", d.Name, d.Name),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Witnesses](cmd.Context(), d, "list witnesses", "/ledger/witnesses")
			if err != nil {
				return err
			}
			if d.JSON {
				for _, w := range v.Witnesses {
					if err := d.PrintJSON(w); err != nil {
						return err
					}
				}
				return nil
			}
			return d.printWitnesses(v.Witnesses)
		},
	}
	c.AddCommand(d.ledgerWitnessProof())
	return c
}

func (d *Daemon) printWitnesses(all []statement.Witness) error {
	now := time.Now()
	tab := d.Table("ACCOUNT", "DEVICE", ">EPOCH", ">CHECKED", "WHEN", ">MINE", "WHEN", "STATE")
	for _, w := range all {
		tab.Row(short(w.Account), w.Device, w.Epoch, w.Checked, ago(w.CheckedAt, now), w.Cosigned, ago(w.CosignedAt, now), witnessState(w, now))
	}
	for _, w := range all {
		if w.Suspicion != "" {
			d.Note("%s is suspect: %s", w.Device, cli.Clean(w.Suspicion))
		}
	}
	return tab.Print()
}

// witnessState says the worst that is known of a counterparty's ledger.
func witnessState(w statement.Witness, now time.Time) cli.Cell {
	switch {
	case w.Fork != nil && w.Fork.Epoch == w.Epoch:
		return cli.Cell{Text: fmt.Sprintf("FORKED at %d", w.Fork.Entries), Colour: cli.Bad}
	case w.Fork != nil:
		return cli.Cell{Text: fmt.Sprintf("FORKED in epoch %d", w.Fork.Epoch), Colour: cli.Bad}
	case w.Suspicion != "":
		return cli.Cell{Text: "suspect since " + ago(w.SuspectSince, now), Colour: cli.Warn}
	case w.CheckedAt.IsZero():
		return cli.Cell{Text: "not checked yet"}
	case w.Seen > w.Checked:
		return cli.Cell{Text: fmt.Sprintf("ok, at %d since", w.Seen), Colour: cli.Good}
	}
	return cli.Cell{Text: "ok", Colour: cli.Good}
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return cli.Ago(t, now)
}

func (d *Daemon) ledgerWitnessProof() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "proof PEER", Short: "one file that shows anybody that a counterparty signed two histories",
		Args: exactly("a counterparty's account or device, or the start of one", 1),
		Long: "The file is text with two heads of the counterparty's ledger as it signed them: of one size, with different roots. Whoever gets it runs\n" +
			"`ledger verify FILE`, which needs nothing else and names the device and the account, or any program that checks signed notes.",
		Example: fmt.Sprintf("  %s ledger witness proof gf5kq\n  %s ledger witness proof 12D3KooWPjce -o fork.txt", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "prove that " + args[0] + " signed two histories"
			raw, err := d.fetchProof(cmd.Context(), what, "/ledger/witnesses/"+url.PathEscape(args[0])+"/fork")
			if err != nil {
				return err
			}
			v := proof.CheckFork(raw)
			if output == "" {
				output = "fork-" + short(v.Device) + ".txt"
			}
			if err := d.writeProof("the two histories of "+args[0], output, raw); err != nil {
				return err
			}
			return d.printFork(v)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this new `file` (default fork-<start of the device>.txt)")
	return c
}

// verifyFork checks a fork's file. One that holds is somebody's forgery proven, and exits so.
func (d *Daemon) verifyFork(raw []byte) error {
	v := proof.CheckFork(raw)
	if err := d.printFork(v); err != nil {
		return err
	}
	return verdict(v.Result)
}

func (d *Daemon) printFork(v statement.ForkProof) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	pairs := [][2]string{{"result", d.Paint(cli.Bad, v.Result)}, {"means", cli.Clean(v.Detail)}}
	if v.Device != "" {
		account := v.Account
		if account == "" {
			account = "- (the file has no delegation of the device)"
		}
		pairs = append(pairs, [2]string{"forged by", v.Device}, [2]string{"account", account}, [2]string{"log", v.Origin},
			[2]string{"entries", fmt.Sprint(v.Entries)}, [2]string{"one root", v.Roots[0]}, [2]string{"other root", v.Roots[1]}, [2]string{"key", v.Key})
	}
	return d.Pairs(pairs...)
}
