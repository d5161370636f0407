package verbs

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/statement"
)

// Credit is the verb `credit`.
func (d *Daemon) Credit() *cobra.Command {
	c := &cobra.Command{
		Use: "credit", Short: "how much renters may come to owe",
		Long: "Three limits hold: for one account that never settled, for all of those together, and for accounts by what they have settled.\n" +
			"A late payment or a debt written off takes an account's credit to 0, whatever it settled. `credit set` overrides the rule for one\n" +
			"account. Without a verb it shows all of it, and how you stand with providers yourself.",
		Example: fmt.Sprintf("  %s credit\n  %s credit set gf… --limit 25", d.Name, d.Name),
	}
	show := d.creditShow()
	if !d.Lends {
		c.Short, c.Long = "how you stand with providers", "What you owe each provider, what is held and prepaid, and whether a late payment takes your credit there. How much more\n"+
			"a provider lets you owe is its own to say: `"+d.Name+" show OFFER` prints what it gives a stranger."
		c.Example = fmt.Sprintf("  %s credit", d.Name)
	}
	c.RunE = show.RunE
	c.AddCommand(show)
	if d.Lends {
		c.AddCommand(d.creditSet())
	}
	return c
}

func (d *Daemon) creditShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "limits and what is used of them", Example: fmt.Sprintf("  %s credit show", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Credit](cmd.Context(), d, "show credit", "/credit")
			if err != nil {
				return err
			}
			return d.printCredit(v)
		},
	}
}

func (d *Daemon) printCredit(v statement.Credit) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	if v.Origin != (statement.CreditOrigin{}) {
		if err := d.printLimits(v); err != nil {
			return err
		}
	}
	if len(v.Standings) == 0 {
		if !d.Lends {
			d.Note("you have rented from nobody yet: no provider has a standing of yours")
		}
		return nil
	}
	if v.Origin != (statement.CreditOrigin{}) {
		fmt.Fprintln(d.Out)
	}
	tab := d.Table("PROVIDER", ">I OWE", ">HELD", ">PREPAID", ">SETTLED", "UNIT", "CREDIT")
	for _, s := range v.Standings {
		credit := cli.Cell{Text: "the provider's to say"}
		if s.Late {
			credit = cli.Cell{Text: "none: a payment is late", Colour: cli.Bad}
		}
		tab.Row(s.Account, s.Owed, s.Held, s.Prepaid, s.Settled, s.Unit, credit)
	}
	return tab.Print()
}

// printLimits prints what I lend: the three limits, and each account's.
func (d *Daemon) printLimits(v statement.Credit) error {
	err := d.Pairs(
		[2]string{"stranger", fmt.Sprintf("%s %s for one account (%s)", v.Stranger, v.Unit, v.Origin.Stranger)},
		[2]string{"strangers in all", fmt.Sprintf("%s %s, %s used, of it %s written off (%s)", v.StrangersTotal, v.Unit, v.StrangersUsed, v.WrittenOff,
			v.Origin.StrangersTotal)},
		[2]string{"known", fmt.Sprintf("%d %% of what an account has settled, at most %s %s, %s used (%s)", v.KnownPercent, v.KnownCap, v.Unit, v.KnownUsed,
			v.Origin.Known)})
	if err != nil || len(v.Accounts) == 0 {
		return err
	}
	fmt.Fprintln(d.Out)
	tab := d.Table("ACCOUNT", ">USED", ">LIMIT", ">ROOM", "BECAUSE OF", ">PREPAID", ">SETTLED", ">WRITTEN OFF", "UNIT")
	for _, a := range v.Accounts {
		tab.Row(a.Account, a.Used, a.Limit, a.Room, because(a), a.Prepaid, a.Settled, a.WrittenOff, v.Unit)
	}
	return tab.Print()
}

// because says what ends an account's room.
func because(a statement.CreditLimit) any {
	switch a.Why {
	case "late":
		return cli.Cell{Text: "a late payment", Colour: cli.Bad}
	case "written off":
		return cli.Cell{Text: "a debt written off", Colour: cli.Bad}
	case "dispute":
		return cli.Cell{Text: "an open dispute", Colour: cli.Bad}
	case "strangers_total":
		return "the limit for all strangers"
	case "by hand":
		return "its limit, set by hand"
	}
	if a.Known {
		return "its limit, by history"
	}
	return "the limit for a stranger"
}

func (d *Daemon) creditSet() *cobra.Command {
	var limit string
	var rule bool
	c := &cobra.Command{
		Use: "set ACCOUNT", Short: "set one account's limit by hand", Args: exactly("an account, as `identity show` prints it", 1),
		Example: fmt.Sprintf("  %s credit set gf… --limit 25\n  %s credit set gf… --rule", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (limit == "") != rule {
				return cli.Usagef("give --limit 25, or --rule to go back to the rule", "want --limit or --rule")
			}
			v, err := send[statement.Credit](cmd.Context(), d, "set credit", http.MethodPut, "/credit/"+url.PathEscape(args[0]), statement.SetCredit{Limit: limit})
			if err != nil {
				return err
			}
			return d.printCredit(v)
		},
	}
	c.Flags().StringVar(&limit, "limit", "", "the most that the account may owe, an `amount`")
	c.Flags().BoolVar(&rule, "rule", false, "back to the rule")
	return c
}
