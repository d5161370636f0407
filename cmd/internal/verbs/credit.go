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
			"`credit set` overrides them for one account. Without a verb it shows them.",
		Example: fmt.Sprintf("  %s credit\n  %s credit set gf… --limit 25", d.Name, d.Name),
	}
	show := d.creditShow()
	c.RunE = show.RunE
	c.AddCommand(show, d.creditSet())
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
	err := d.Pairs([2]string{"stranger", v.Stranger + " " + v.Unit}, [2]string{"strangers in all", v.StrangersUsed + " used of " + v.StrangersTotal + " " + v.Unit},
		[2]string{"known", fmt.Sprintf("%d %% of what was settled, at most %s %s", v.KnownPercent, v.KnownCap, v.Unit)})
	if err != nil || len(v.Accounts) == 0 {
		return err
	}
	fmt.Fprintln(d.Out)
	tab := d.Table("ACCOUNT", ">USED", ">LIMIT", "UNIT", "BY")
	for _, a := range v.Accounts {
		by := "stranger"
		switch {
		case a.ByHand:
			by = "hand"
		case a.Known:
			by = "history"
		}
		tab.Row(a.Account, a.Used, a.Limit, v.Unit, by)
	}
	return tab.Print()
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
