package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

const whyLong = `Say why offers do not match a query: those that come nearest first, and which conditions refuse each. It reads the agent's own book of
live offers and asks nobody; gpufair search asks.

First come the offers that the fewest conditions refuse, and among those the ones that are least off. Above them each condition says how many
offers it refuses, and how many would match without it.

A query is written as for gpufair search, whose --help lists the fields. Exit codes: 0 it was explained, also if offers match; 7 no offer is known.`

func (a *app) whyCommand() *cobra.Command {
	var req api.WhyRequest
	c := &cobra.Command{
		Use: "why QUERY...", Short: "say which conditions of a query refuse the offers that come nearest", Long: whyLong,
		Args: cobra.ArbitraryArgs,
		Example: `  gpufair why 'gpu_ram>=80 price<1'
  gpufair why 'kind=cpu cpu_cores>=8 price<0.2' --limit 3
  gpufair why 'gpu_name=RTX_4090 num_gpus>=4' --json | jq '.conditions'`,
		RunE: func(c *cobra.Command, args []string) error {
			req.Query = strings.Join(args, " ")
			return a.why(c, req)
		},
	}
	c.Flags().IntVar(&req.Limit, "limit", 10, "show at most `n` offers")
	c.Flags().BoolVar(&req.AllowUnknown, "allow-unknown", false, "let a field pass that an offer does not state")
	return c
}

func (a *app) why(c *cobra.Command, req api.WhyRequest) error {
	if req.Limit < 1 || req.Limit > 1000 {
		return cli.Usagef("give --limit a number from 1 to 1000", "--limit %d", req.Limit)
	}
	if err := checkQuery(req.Query, ""); err != nil {
		return err
	}
	client, err := a.connectMarket(c.Context())
	if err != nil {
		return err
	}
	r, err := client.Why(c.Context(), req)
	if err != nil {
		return explained("why", err)
	}
	if r.Known == 0 {
		return &cli.Error{
			Code: cli.ExitNothing, What: orElse(cli.Clean(r.Note), "no offer is known"),
			Next: "gpufair peers lists who is connected; gpufair doctor says what is missing",
		}
	}
	if a.JSON {
		return a.PrintJSON(r)
	}
	return a.whyTables(r)
}

// whyTables shows what each condition refuses, and then the offers that come nearest.
func (a *app) whyTables(r api.WhyResult) error {
	counts := a.Table("CONDITION", ">REFUSES", ">ALONE")
	for _, c := range r.Conditions {
		counts.Row(c.Condition, fmt.Sprintf("%d of %d", c.Refuses, r.Known), c.Alone)
	}
	if err := counts.Print(); err != nil {
		return err
	}
	if len(r.Nearest) > 0 {
		if _, err := fmt.Fprintln(a.Out); err != nil {
			return err
		}
		near := a.Table("OFFER", ">PRICE/h", "MODEL", ">FREE", "REFUSED BY")
		for _, n := range r.Nearest {
			o := n.Offer
			cells := []any{o.ID, o.Price + " " + o.Unit, modelOf(o), fmt.Sprintf("%d/%d", o.Free, o.Devices)}
			for _, m := range n.Refused {
				near.Row(append(cells, m.Text)...)
				cells = []any{"", "", "", ""}
			}
		}
		if err := near.Print(); err != nil {
			return err
		}
	}
	switch r.Matches {
	case 0:
	case 1:
		a.Note("gpufair: 1 offer matches: gpufair search shows it")
	default:
		a.Note("gpufair: %d offers match: gpufair search shows them", r.Matches)
	}
	return nil
}
