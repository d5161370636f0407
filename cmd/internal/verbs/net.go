package verbs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/statement"
)

func (d *Daemon) ledgerNet() *cobra.Command {
	var req statement.NetRequest
	c := &cobra.Command{
		Use: "net", Short: "find circles of debts, and clear them with everyone's signature", Args: cobra.NoArgs,
		Long: "Where A owes B, B owes C and C owes A, all three debts can go down by the same amount without anybody paying. This asks those you owe,\n" +
			"who ask those they owe, up to eight accounts in a circle, and clears what closes: all of it or nothing. Only accounts whose settings say\n" +
			"`ledger.netting = true` take part, since it tells them of debts along the way. What is being cleared is set aside, and stays owed until all\n" +
			"have signed.",
		Example: fmt.Sprintf("  %s ledger net --dry-run\n  %s ledger net\n  %s ledger net list", d.Name, d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := send[statement.Circles](cmd.Context(), d, "clear circles of debts", http.MethodPost, "/ledger/net", req)
			if err != nil {
				return err
			}
			return d.printCircles(v.Circles)
		},
	}
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only find circles")
	c.Flags().StringVar(&req.Unit, "unit", "", "unit of the debts (default that of the settings)")
	c.AddCommand(d.ledgerNetList(), d.ledgerNetRelease())
	return c
}

func (d *Daemon) printCircles(all []statement.Circle) error {
	if d.JSON {
		for _, c := range all {
			if err := d.PrintJSON(c); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		d.Note("no circle of debts was found among those who take part")
		return nil
	}
	tab := d.Table("CIRCLE", ">AMOUNT", "UNIT", "STATE", "BOOKED", "ID")
	for _, c := range all {
		booked := "-"
		if c.Booked > 0 {
			booked = cli.Count(c.Booked, "device")
		}
		tab.Row(round(c.Accounts), c.Amount, c.Unit, c.State, booked, orDash(short(c.ID)))
	}
	for _, c := range all {
		if c.Why != "" {
			d.Note("%s: %s", round(c.Accounts), cli.Clean(c.Why))
		}
	}
	return tab.Print()
}

// round writes a circle: who owes whom, back to the first.
func round(accounts []string) string {
	var out strings.Builder
	for _, a := range accounts {
		out.WriteString(short(a) + " > ")
	}
	if len(accounts) > 0 {
		out.WriteString(short(accounts[0]))
	}
	return out.String()
}

func (d *Daemon) ledgerNetList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "circles that were cleared, or were to be", Args: cobra.NoArgs, Example: fmt.Sprintf("  %s ledger net list", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Clearings](cmd.Context(), d, "list clearings", "/ledger/net")
			if err != nil {
				return err
			}
			if d.JSON {
				for _, c := range v.Clearings {
					if err := d.PrintJSON(c); err != nil {
						return err
					}
				}
				return nil
			}
			tab := d.Table("ID", "TIME", "CIRCLE", ">AMOUNT", "UNIT", "STATE", "NOT SIGNED")
			for _, c := range v.Clearings {
				d.noteLiars(c)
				var missing []string
				for _, m := range c.Missing {
					missing = append(missing, short(m))
				}
				tab.Row(short(c.ID), d.Time(c.Time, time.Now()), round(c.Accounts), c.Amount, c.Unit, c.State, orDash(strings.Join(missing, " ")))
			}
			return tab.Print()
		},
	}
}

func (d *Daemon) noteLiars(c statement.Clearing) {
	for _, liar := range c.Liars {
		d.Note("clearing %s: %s signed an agreement and a refusal; both are kept", short(c.ID), liar)
	}
}

func (d *Daemon) ledgerNetRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release ID", Short: "wait no longer for the members of a clearing", Args: exactly("the id of a clearing, as `ledger net list` prints it, or the start of one", 1),
		Long: "A clearing that you have signed sets its amount aside until all have signed or one has refused. If a member is gone for good, this frees\n" +
			"the amount for payments and other circles. Nothing is lost by it; but if all signatures turn up after all, the clearing counts, and what you\n" +
			"paid otherwise meanwhile is prepaid.",
		Example: fmt.Sprintf("  %s ledger net release 5c1e", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := send[statement.Clearing](cmd.Context(), d, "release clearing "+short(args[0]), http.MethodPost,
				"/ledger/net/"+url.PathEscape(args[0])+"/release", nil)
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			return d.Pairs([2]string{"clearing", v.ID}, [2]string{"circle", round(v.Accounts)}, [2]string{"amount", v.Amount + " " + v.Unit},
				[2]string{"state", v.State})
		},
	}
}
