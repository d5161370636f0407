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

// ledgerDispute is the verb `ledger dispute`.
func (d *Daemon) ledgerDispute() *cobra.Command {
	var req statement.DisputeRequest
	var end bool
	c := &cobra.Command{
		Use: "dispute [LEASE]", Short: "disagree with what a lease comes to, or agree on less", Args: cobra.MaximumNArgs(1),
		Long: "Without a LEASE it lists the disputes, with one it shows how that stands. With --reason it opens one: the lease ends, no voucher raises it any more, and the two of you\n" +
			"agree on nothing new, until you agree on an amount (both give the same one with --close --amount), or until its days are over: then\n" +
			"what both signed stands. The other side gets your signed record with the newest voucher and receipt, at once or when it is back.\n" +
			"`ledger proof LEASE` then holds the records of the dispute, too.",
		Example: fmt.Sprintf("  %s ledger dispute\n  %s ledger dispute 3fa9\n  %s ledger dispute 3fa9 --reason 'the card was throttled'\n  %s ledger dispute 3fa9 --close --amount 1.25",
			d.Name, d.Name, d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && (end || req != statement.DisputeRequest{}):
				return cli.Usagef("name the lease, as `ledger statement` takes it", "the flags are about one lease, and none is given")
			case len(args) == 0:
				return d.listDisputes(cmd)
			case !end && req == statement.DisputeRequest{}:
				return d.showDispute(cmd, args[0])
			case end && (req.Amount == "" || req.Reason != ""):
				return cli.Usagef("say what the lease comes to: --close --amount 1.25", "--close wants an --amount, and no --reason")
			case !end && (req.Reason == "" || req.Amount != ""):
				return cli.Usagef("say why: --reason '…'; or end it: --close --amount 1.25", "want --reason, or --close with --amount")
			}
			v, err := send[statement.Dispute](cmd.Context(), d, "dispute lease "+short(args[0]), http.MethodPost,
				"/ledger/leases/"+url.PathEscape(args[0])+"/dispute", req)
			if err != nil {
				return err
			}
			return d.printDispute(v, time.Now())
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "open a dispute, and say why")
	c.Flags().Uint32Var(&req.Days, "days", 0, "until what both signed stands, 1 to 60 (default `ledger.dispute_days` of the settings)")
	c.Flags().BoolVar(&end, "close", false, "propose an amount, or agree to the one that the other side proposed")
	c.Flags().StringVar(&req.Amount, "amount", "", "what the lease comes to")
	return c
}

func (d *Daemon) listDisputes(cmd *cobra.Command) error {
	v, err := get[statement.Disputes](cmd.Context(), d, "list disputes", "/ledger/disputes")
	if err != nil {
		return err
	}
	now := time.Now()
	tab := d.Table("LEASE", "WITH", "BY", "STATE", ">AMOUNT", ">I OFFER", ">THEY OFFER", "UNIT", "UNTIL", "REASON")
	for _, s := range v.Disputes {
		if d.JSON {
			if err := d.PrintJSON(s); err != nil {
				return err
			}
			continue
		}
		tab.Row(short(s.Lease), s.Account, s.By, s.State, s.Amount, orDash(s.IOffer), orDash(s.TheyOffer), s.Unit, d.Time(s.Until, now), s.Reason)
	}
	if d.JSON {
		return nil
	}
	return tab.Print()
}

func (d *Daemon) showDispute(cmd *cobra.Command, lease string) error {
	v, err := get[statement.Dispute](cmd.Context(), d, "show the dispute about lease "+short(lease), "/ledger/leases/"+url.PathEscape(lease)+"/dispute")
	if err != nil {
		return err
	}
	return d.printDispute(v, time.Now())
}

// turn says who must act, and how.
func (d *Daemon) turn(v statement.Dispute) string {
	lease := short(v.Lease)
	switch v.Turn {
	case "me":
		return fmt.Sprintf("you: `%s ledger dispute %s --close --amount %s` agrees; another amount is your own proposal", d.Name, lease, v.TheyOffer)
	case "other":
		return fmt.Sprintf("the other side: it agrees to %s %s, or proposes its own", v.IOffer, v.Unit)
	case "both":
		if v.TheyOffer != "" {
			return fmt.Sprintf("either of you: `%s ledger dispute %s --close --amount %s` agrees to theirs", d.Name, lease, v.TheyOffer)
		}
		return fmt.Sprintf("either of you: `%s ledger dispute %s --close --amount …` proposes what it comes to", d.Name, lease)
	}
	if v.State == "open" {
		return "nobody yet: the lease is being ended"
	}
	return "nobody: it is done"
}

func (d *Daemon) printDispute(v statement.Dispute, now time.Time) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	state := v.State
	switch {
	case v.State == "agreed":
		state = d.Paint(cli.Good, "agreed")
	case v.State == "open":
		state = fmt.Sprintf("open until %s; then %s %s stand", d.Time(v.Until, now), v.Amount, v.Unit)
	}
	told := "yes"
	if !v.Told {
		told = "not yet: it goes out when the other side is back"
	}
	pairs := [][2]string{{"lease", v.Lease}, {"with", v.Account + " (I am the " + v.Role + ")"}, {"opened by", v.By}, {"opened", d.Time(v.Opened, now)}, {"reason", cli.Clean(v.Reason)}}
	if v.TheirReason != "" {
		pairs = append(pairs, [2]string{"their reason", cli.Clean(v.TheirReason)})
	}
	return d.Pairs(append(pairs, [][2]string{
		{"state", state}, {"amount", v.Amount + " " + v.Unit}, {"I offer", orDash(v.IOffer)}, {"they offer", orDash(v.TheyOffer)}, {"who acts", d.turn(v)}, {"told", told},
	}...)...)
}
