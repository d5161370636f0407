package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

const awayLong = `Sign an allowance for a job that runs: what its provider meters while this machine is away, until the time is over and up to the amount, you
promise to sign for when you are back. The job then runs on without you; otherwise it is paused 30 s after the last voucher and ended two
minutes later.

The allowance counts as credit that is in use. When the agent is back it signs for what the provider claims, at most the allowance, and at
most what the time that went by costs. A later allowance can only be longer and higher: to take one back, stop the job.`

func (a *app) awayCommand() *cobra.Command {
	var span, most string
	c := &cobra.Command{
		Use: "away JOB --for TIME", Short: "let a job run on while this machine is away", Long: awayLong, Args: oneArg(jobArg),
		Example: `  gpufair away night --for 8h
  gpufair away 3fa9 --for 2h --most 0.5`,
		RunE: func(c *cobra.Command, args []string) error {
			d, err := cli.ParseDuration(span)
			if err != nil || d < time.Minute {
				return cli.Usagef("write --for 30m, 8h or 2d", "away: --for %q is no time of a minute or more", cli.Clean(span))
			}
			client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			j, err := client.Away(c.Context(), args[0], api.AwayRequest{Seconds: int(d / time.Second), Most: most})
			if err != nil {
				return explained("allow for job "+args[0], err)
			}
			if a.JSON {
				return a.PrintJSON(j)
			}
			if j.Away != nil && j.Away.Until != nil {
				a.Note("job %s runs on until %s, up to %s %s in all", shortID(j.ID), a.Time(*j.Away.Until, time.Now()), j.Away.Most, j.Unit)
				a.Note("to end the agent meanwhile: gpufair agent stop --force")
			}
			return nil
		},
	}
	c.Flags().StringVar(&span, "for", "", "the `time` that you are away, from now on")
	c.Flags().StringVar(&most, "most", "", "`amount` beyond what the job costs now (default: what the time costs, within budget and credit)")
	return c
}
