package verbs

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

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

// Settle is the verb `settle`.
func (d *Daemon) Settle() *cobra.Command {
	var req statement.SettleRequest
	c := &cobra.Command{
		Use: "settle ACCOUNT", Short: "record a payment that was made outside, for both to sign", Args: exactly("an account", 1),
		Long: "gpufair moves no money. You pay or get paid as both agreed, and record it here: it counts once both sides have signed. What takes a\n" +
			"debt off you is signed by itself; whether money has come in is yours to say (`settle accept`).",
		Example: fmt.Sprintf("  %s settle gf… --amount 3.5 --reference 2026-117\n  %s settle list\n  %s settle accept ID", d.Name, d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Account = args[0]
			v, err := send[statement.Settlement](cmd.Context(), d, "settle with "+short(args[0]), http.MethodPost, "/settle", req)
			if err != nil {
				return err
			}
			return d.printSettlement(v)
		},
	}
	c.Flags().StringVar(&req.Amount, "amount", "", "how much was paid; empty: all that is owed")
	c.Flags().StringVar(&req.Reference, "reference", "", "invoice or transfer number; the same payment counts once by it")
	c.Flags().StringVar(&req.Method, "method", "", "how it was paid (default manual)")
	c.Flags().StringVar(&req.Unit, "unit", "", "unit of the amount (default that of the settings)")
	c.AddCommand(d.settleList(), d.settleDecide("accept", "sign the other side's proposal: the money has come in"),
		d.settleDecide("refuse", "refuse the other side's proposal"), d.settleDecide("send", "ask the other side again"))
	return c
}

func (d *Daemon) settleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "payments and who has signed", Example: fmt.Sprintf("  %s settle list", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Settlements](cmd.Context(), d, "list settlements", "/settlements")
			if err != nil {
				return err
			}
			if d.JSON {
				for _, s := range v.Settlements {
					if err := d.PrintJSON(s); err != nil {
						return err
					}
				}
				return nil
			}
			tab := d.Table("ID", "TIME", "PAID BY", ">AMOUNT", "UNIT", "METHOD", "REFERENCE", "STATE")
			for _, s := range v.Settlements {
				by := "me"
				if !s.ByMe {
					by = short(s.Account)
				}
				tab.Row(s.ID, d.Time(s.Time, time.Now()), by, s.Amount, s.Unit, s.Method, s.Reference, s.State)
			}
			return tab.Print()
		},
	}
}

func (d *Daemon) settleDecide(verb, what string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: what, Args: exactly("the id of a settlement, as `settle list` prints it, or the start of one", 1),
		Example: fmt.Sprintf("  %s settle %s 5c1e", d.Name, verb),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := send[statement.Settlement](cmd.Context(), d, verb+" settlement "+short(args[0]), http.MethodPost,
				"/settlements/"+url.PathEscape(args[0])+"/"+verb, nil)
			if err != nil {
				return err
			}
			return d.printSettlement(v)
		},
	}
}

func (d *Daemon) printSettlement(v statement.Settlement) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	signed := "nobody"
	for i, s := range v.Signed {
		if i == 0 {
			signed = s
		} else {
			signed += "\n" + s
		}
	}
	return d.Pairs([2]string{"settlement", v.ID}, [2]string{"with", v.Account}, [2]string{"amount", v.Amount + " " + v.Unit},
		[2]string{"reference", orDash(v.Reference)}, [2]string{"state", v.State}, [2]string{"signed by", signed})
}
