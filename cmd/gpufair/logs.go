package main

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

func (a *app) logsCommand() *cobra.Command {
	var (
		req   api.LogsRequest
		since string
	)
	c := &cobra.Command{
		Use: "logs JOB", Short: "print a job's output, also after it has ended",
		Long: `Print what a job wrote: its stdout to stdout, its stderr to stderr. The agent keeps it on this machine, so it is there after the job
and its provider are gone. With --json each piece of output is one object: time, stream (out or err) and text, or data in base64 where the
piece is not text.`,
		Args: oneArg(jobArg),
		Example: `  gpufair logs render
  gpufair logs -f --since 10m render
  gpufair logs --tail 50 3f2a`,
		RunE: func(c *cobra.Command, args []string) error {
			var err error
			if req.Since, err = sinceTime(since, time.Now()); err != nil {
				return err
			}
			if req.Tail < 0 || req.Tail > 100_000 {
				return cli.Usagef("give --tail a number from 1 to 100000", "--tail %d", req.Tail)
			}
			client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			err = client.Logs(c.Context(), args[0], req, a.printLog)
			if c.Context().Err() != nil {
				return cli.Status(cli.ExitInterrupted) // the usual end of -f: nothing to explain
			}
			return explained("logs of job "+cli.Clean(args[0]), err)
		},
	}
	f := c.Flags()
	f.BoolVarP(&req.Follow, "follow", "f", false, "go on until the job is over")
	f.StringVar(&since, "since", "", "from this long ago (10m, 2h) or this time (2026-01-31T12:00:00Z) on")
	f.IntVar(&req.Tail, "tail", 0, "only the last `n` lines")
	return c
}

// sinceTime reads how long ago, or when.
func sinceTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := cli.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, cli.Usagef("write 10m, 2h, 1d or a time such as 2026-01-31T12:00:00Z", "--since %q is neither a time span nor a time", cli.Clean(s))
	}
	return t, nil
}

// logLine is a piece of output in --json.
type logLine struct {
	Step   string    `json:"step,omitempty"` // "log" among the events of a run
	Time   time.Time `json:"time"`
	Stream string    `json:"stream"`
	Text   string    `json:"text,omitempty"`
	Data   []byte    `json:"data,omitempty"`
}

func jsonLine(step string, l api.LogLine) logLine {
	out := logLine{Step: step, Time: l.Time.UTC(), Stream: l.Stream}
	if utf8.Valid(l.Data) {
		out.Text = string(l.Data)
	} else {
		out.Data = l.Data
	}
	return out
}

// printLog writes a piece of a job's output as it is: what a job may do to a terminal, its output may do.
func (a *app) printLog(l api.LogLine) error {
	w := a.Out
	switch {
	case a.JSON:
		return a.PrintJSON(jsonLine("", l))
	case l.Stream == "err":
		w = a.Err
	}
	if _, err := w.Write(l.Data); err != nil {
		return fmt.Errorf("print output: %w", err)
	}
	return nil
}
