package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

const jobArg = "a job's id, the start of it, or its name: `gpufair ps` lists them"

func (a *app) psCommand() *cobra.Command {
	var all, quiet bool
	c := &cobra.Command{
		Use: "ps", Aliases: []string{"jobs"}, Short: "list your jobs",
		Long: "List the jobs that have not ended, newest first; with --all also those that have.",
		Example: `  gpufair ps
  gpufair ps -a --json
  gpufair stop $(gpufair ps -q)      # if there is one`,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			list, err := client.Jobs(c.Context(), all)
			if err != nil {
				return explained("list jobs", err)
			}
			switch {
			case a.JSON:
				for _, j := range list.Jobs {
					if err := a.PrintJSON(j); err != nil {
						return err
					}
				}
				return nil
			case quiet:
				for _, j := range list.Jobs {
					fmt.Fprintln(a.Out, shortID(j.ID))
				}
				return nil
			}
			return a.jobTable(list.Jobs)
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "ended ones too")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return c
}

func (a *app) jobTable(jobs []api.Job) error {
	now := time.Now()
	t := a.Table("JOB", "NAME", "STATE", "DEVICE", "PROVIDER", "ORDERED", ">RAN", ">COST", ">BUDGET", "RESULTS")
	for _, j := range jobs {
		t.Row(shortID(j.ID), orElse(j.Name, j.Image), stateCell(j), device(j), shortAccount(j.Provider), a.Time(j.Agreed, now), ran(j),
			j.Cost+" "+j.Unit, j.Budget, resultsOf(j))
	}
	return t.Print()
}

// shortID is what people type of a job's id.
func shortID(id string) string { return id[:min(len(id), 12)] }

func device(j api.Job) string {
	if j.Devices > 1 {
		return fmt.Sprintf("%d x %s", j.Devices, j.Model)
	}
	return j.Model
}

func ran(j api.Job) string {
	if j.Started == nil {
		return "-"
	}
	return cli.Span(seconds(j.Seconds))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// stateCell is a job's state with how it ended.
func stateCell(j api.Job) cli.Cell {
	c := cli.Cell{Text: j.State, Colour: cli.Good}
	switch {
	case j.State != "ended":
		if j.Suspected {
			c = cli.Cell{Text: j.State + ", provider silent", Colour: cli.Warn}
		}
	case j.Exit != nil && *j.Exit == api.Exit{}:
		c = cli.Cell{Text: "exit 0", Colour: cli.Plain}
	case j.Exit != nil:
		c = cli.Cell{Text: exitText(*j.Exit), Colour: cli.Bad}
	default:
		c = cli.Cell{Text: "ended: " + orElse(j.Reason, "never ran"), Colour: cli.Bad}
	}
	return c
}

// exitText is how a job's process ended.
func exitText(e api.Exit) string {
	switch {
	case e.OOM:
		return "out of memory"
	case e.Signal != "":
		return "killed by " + e.Signal
	}
	return fmt.Sprintf("exit %d", e.Code)
}

func resultsOf(j api.Job) string {
	switch j.Results {
	case "complete":
		return j.Output
	case "partial":
		return j.Output + " (partial)"
	case "kept":
		return "kept: gpufair results " + shortID(j.ID) + " --output DIR"
	}
	return orElse(j.Results, "-")
}

func (a *app) stopCommand() *cobra.Command {
	var req api.SignalRequest
	c := &cobra.Command{
		Use: "stop JOB", Aliases: []string{"kill"}, Short: "stop a job as docker does, or release its lease at once",
		Long: `Stop a job: it gets SIGTERM, and SIGKILL if it has not ended within its stop time. Its results come home as if it had ended by itself.
A job that does not run yet, and any job with --release, is let go of at once: what was fetched so far is kept, the meter stops.
--signal sends one signal and nothing else.`,
		Args: oneArg(jobArg),
		Example: `  gpufair stop render
  gpufair stop 3f2a --release
  gpufair stop render --signal SIGUSR1`,
		RunE: func(c *cobra.Command, args []string) error {
			if req.Signal != "" && req.Release {
				return cli.Usagef("give one of them", "--signal and --release exclude each other")
			}
			req.Signal = signalName(req.Signal)
			client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			j, err := client.Signal(c.Context(), args[0], req)
			if err != nil {
				return explained("stop job "+cli.Clean(args[0]), err)
			}
			if a.JSON {
				return a.PrintJSON(j)
			}
			switch {
			case req.Release:
				a.Note("gpufair: the lease of job %s is released", shortID(j.ID))
			case req.Signal != "":
				a.Note("gpufair: job %s got %s", shortID(j.ID), req.Signal)
			case j.Started == nil:
				a.Note("gpufair: job %s did not run yet: its lease is released", shortID(j.ID))
			default:
				a.Note("gpufair: job %s got SIGTERM; SIGKILL follows if it has not ended within its stop time, then its results come home: "+
					"`gpufair logs -f %s` follows it", shortID(j.ID), shortID(j.ID))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&req.Release, "release", false, "give the lease up at once, without waiting for the job")
	c.Flags().StringVarP(&req.Signal, "signal", "s", "", "send this `signal` only, such as SIGUSR1")
	return c
}

// signalName is a signal as the provider knows it: "int" and "INT" are SIGINT.
func signalName(s string) string {
	if s == "" {
		return ""
	}
	if s = strings.ToUpper(s); !strings.HasPrefix(s, "SIG") {
		s = "SIG" + s
	}
	return s
}

func (a *app) resultsCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "results JOB", Short: "say where a job's results lie, or copy them to another folder",
		Long: `Say where the results of an ended job lie: what it wrote to /out, or of a job that was cut off, what had come home by then. With
--output they are copied to another folder, which must not exist.`,
		Args: oneArg(jobArg),
		Example: `  gpufair results render
  gpufair results render --output ./again`,
		RunE: func(c *cobra.Command, args []string) error {
			req := api.ResultsRequest{}
			var err error
			if output != "" {
				if req.Output, err = newFolder(output); err != nil {
					return err
				}
			}
			client, err := a.connect(c.Context())
			if err != nil {
				return err
			}
			err = client.Results(c.Context(), args[0], req, func(e api.RunEvent) error {
				switch {
				case e.Error != nil:
					return cli.Fail(cli.ExitFailure, "results", fmt.Errorf("%s", cli.Clean(e.Error.Detail)), cli.Clean(e.Error.Next))
				case e.Job == nil:
					return nil
				case a.JSON:
					return a.PrintJSON(e.Job)
				case e.Job.Results == "partial":
					a.Note("gpufair: the job was cut off: this is what had come home by then")
				}
				_, err := fmt.Fprintln(a.Out, e.Job.Output)
				return err
			})
			return explained("results of job "+cli.Clean(args[0]), err)
		},
	}
	c.Flags().StringVar(&output, "output", "", "copy them to this new `folder`")
	return c
}
