package verbs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
)

// Settle is the verb `settle`.
func (d *Daemon) Settle() *cobra.Command {
	var req statement.SettleRequest
	c := &cobra.Command{
		Use: "settle ACCOUNT", Short: "record a payment that was made outside, for both to sign", Args: exactly("an account", 1),
		Long: "gpufair moves no money. You pay or get paid as both agreed, and record it here: it counts once both sides have signed. What takes a\n" +
			"debt off you is signed by itself; whether money has come in is yours to say (`settle accept`), or your program's: `settlement.command` in\n" +
			"the settings names one that makes invoices and checks payments, or pays them (docs/settlement.md). Who paid is who rented from the other;\n" +
			"where both rented, `--paid-by` says it.",
		Example: fmt.Sprintf("  %s settle gf… --amount 3.5 --reference 2026-117\n  %s settle list\n  %s settle accept ID\n  %s settle proof ID", d.Name, d.Name, d.Name, d.Name),
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
	c.Flags().StringVar(&req.PaidBy, "paid-by", "", "me or them; empty: whoever rented from the other")
	c.Flags().BoolVar(&req.Force, "force", false, "although settlement.command may be paying an invoice of the same debt")
	c.AddCommand(d.settleList(), d.settleDecide("accept", "sign the other side's proposal: the money has come in"),
		d.settleDecide("refuse", "refuse the other side's proposal, or drop yours if it was never sent"), d.settleDecide("send", "ask the other side again"), d.settleProof())
	return c
}

// settlementID is what the verbs about one payment take.
const settlementID = "the id of a settlement, as `settle list` prints it, or the start of one"

func (d *Daemon) settleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "payments and who has signed", Args: cobra.NoArgs,
		Long: "States: proposed: you signed, and the other side has not answered; waiting: the other side signed, and `settle accept` or `settle refuse`\n" +
			"is yours to say; signed: both did, and it counts; refused, and by whom; dropped: yours, never sent. What was not delivered is sent by\n" +
			"itself when the other side connects. One that has not been answered for 7 days is marked: `settle proof` makes a\n" +
			"file that shows to others who signed what.",
		Example: fmt.Sprintf("  %s settle list\n  %s settle list --json", d.Name, d.Name),
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
			now := time.Now()
			for _, s := range v.Settlements {
				by := "me"
				if !s.ByMe {
					by = short(s.Account)
				}
				tab.Row(s.ID, d.Time(s.Time, now), by, s.Amount, s.Unit, s.Method, s.Reference, settleState(s, now))
				if s.Overdue && s.State == "proposed" {
					d.Note("%s has not signed for %s %s in %s: `%s settle send %s` asks again, `%s settle proof %s` shows to others that you signed", s.Account,
						s.Amount, s.Unit, cli.Span(now.Sub(s.Time)), d.Name, short(s.ID), d.Name, short(s.ID))
				}
			}
			return tab.Print()
		},
	}
}

// settleState marks what should have been answered by now.
func settleState(s statement.Settlement, now time.Time) any {
	switch {
	case s.Overdue && s.State == "waiting":
		return cli.Cell{Text: "waiting for you, " + cli.Span(now.Sub(s.Time)), Colour: cli.Bad}
	case s.Overdue:
		return cli.Cell{Text: s.State + ", not countersigned for " + cli.Span(now.Sub(s.Time)), Colour: cli.Bad}
	}
	return stateText(s)
}

// stateText says how a payment stands, and who refused it.
func stateText(s statement.Settlement) string {
	text := s.State
	switch {
	case s.RefusedBy == "other":
		text = "refused by " + short(s.Account)
	case s.RefusedBy == "me" && len(s.Signed) > 0 && s.Signed[0] != s.Account:
		text = "dropped"
	case s.RefusedBy == "me":
		text = "refused by you"
	case s.Undelivered:
		text += fmt.Sprintf(", not delivered yet: %s is not connected; it is sent when it connects", short(s.Account))
	}
	if s.Why != "" {
		text += ": " + cli.Clean(s.Why)
	}
	return text
}

// settleProof is the verb `settle proof`.
func (d *Daemon) settleProof() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "proof ID", Short: "one file that shows anybody who signed for a payment", Args: exactly(settlementID, 1),
		Long: "The file holds the signatures that the payment has, the accounts' words that those devices may sign for them, and if both have signed,\n" +
			"the entry with which this ledger booked it and the proof that it stands in its signed log. Whoever gets it runs `ledger verify FILE`,\n" +
			"without a daemon. With one signature it shows what you said and when, which is what a payer has whom nobody answers.",
		Example: fmt.Sprintf("  %s settle proof 5c1e\n  %s settle proof 5c1e -o for-the-judge.proof", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "settlement " + short(args[0])
			raw, err := d.fetchProof(cmd.Context(), "prove "+what, "/settlements/"+url.PathEscape(args[0])+"/proof")
			if err != nil {
				return err
			}
			v := proof.CheckPayment(raw)
			if output == "" {
				output = "payment-" + short(v.ID) + ".proof"
			}
			if err := d.writeProof(what, output, raw); err != nil {
				return err
			}
			if err := d.printPayment(v); err != nil {
				return err
			}
			return verdict(v.Result)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this new `file` (default payment-<start of its id>.proof)")
	return c
}

// verifyPayment checks a payment's file, with nothing else.
func (d *Daemon) verifyPayment(raw []byte) error {
	v := proof.CheckPayment(raw)
	if err := d.printPayment(v); err != nil {
		return err
	}
	return verdict(v.Result)
}

func (d *Daemon) printPayment(v statement.PaymentProof) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	colour := cli.Bad
	if v.Result == proof.OK {
		colour = cli.Good
	}
	result := d.Paint(colour, v.Result)
	if v.Result == proof.OK && len(v.Signed) == 1 {
		result = d.Paint(cli.Warn, "ok, but only one side has signed: it shows what that side says, and not that the other agrees")
	}
	pairs := [][2]string{{"result", result}}
	if v.Record != "" {
		pairs = append(pairs, [2]string{"wrong", cli.Clean(v.Record)}, [2]string{"why", cli.Clean(v.Detail)})
	}
	if v.ID == "" {
		return d.Pairs(append(pairs, [2]string{"payment", "none: it does not follow from good signatures"})...)
	}
	pairs = append(pairs, [2]string{"settlement", v.ID}, [2]string{"paid", v.Amount + " " + v.Unit}, [2]string{"by", v.Renter}, [2]string{"to", v.Provider},
		[2]string{"method", cli.Clean(v.Method)}, [2]string{"reference", orDash(cli.Clean(v.Reference))}, [2]string{"time", v.Time.Format(time.RFC3339)},
		[2]string{"signed by", strings.Join(v.Signed, "\n")}, [2]string{"made by", v.MadeBy})
	for _, l := range v.Leases {
		pairs = append(pairs, [2]string{"lists", fmt.Sprintf("lease %s at %s %s", l.Lease, l.Listed, v.Unit)})
	}
	if err := d.Pairs(pairs...); err != nil {
		return err
	}
	return d.printShown(v.Proven, v.NotProven)
}

func (d *Daemon) settleDecide(verb, what string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: what, Args: exactly(settlementID, 1),
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
	return d.Pairs([2]string{"settlement", v.ID}, [2]string{"with", v.Account}, [2]string{"amount", v.Amount + " " + v.Unit},
		[2]string{"reference", orDash(v.Reference)}, [2]string{"state", stateText(v)}, [2]string{"signed by", strings.Join(v.Signed, "\n")})
}
