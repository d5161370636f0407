package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/control/api"
	"github.com/gpufair/gpufair/renter/image"
)

const runLong = `Run a container image on somebody else's machine, from the search to the results: find the cheapest offer that matches the query, show
what it costs, buy it, push image and inputs, run the command, follow its output, bring home what it wrote to /out, and pay.

IMAGE is a file or folder on this machine: an OCI archive, a docker archive (docker save, podman save) or an OCI layout. Or it is the name of a
public image in a registry, with docker:// before it or not, which the provider pulls if its owner pulls from there (gpufair show). What stands
behind -- is the command; without it the image's own runs. --input becomes /in, what the job leaves in /out becomes --output.

--budget is the most that the job may cost, ever: the lease ends when it is used up. Without it you are asked, or off a terminal an hour of
the offer's price is the cap. Before you pay you see the offer, what is held, and how long budget and credit last.

--max-price PRICE asks the cheapest offers that match, up to eight, for a quote and takes the best: a firm price of at most that, which an owner may
set below the own price. All answer within 3 seconds; who does not quote says why. With --buy nobody is asked: the first fit at its price, if that is
no more. Without --max-price the first fit is bought at its price, whatever it is.

--bid PRICE bids in a sealed auction of --offer, where its owner sells so; docs/auctions.md has the rules. The best bid gets the lease and pays
what it bid. It takes about half a minute, and a bid binds: one that was sent is opened even if you stop the job, and a lease that it wins is
let go then. The agent must run until the result, or the hold is lost. It keeps the auction's file, for gpufair auction verify.

Ctrl-C: before the order is sent it just ends, and nothing is held. While the job is prepared it lets the lease go. While the job runs the
first one goes to the job, as in docker, the second releases the lease, the third leaves at once; the agent goes on without this command.

The exit code is the job's own, 128 + N if signal N killed it; 125 if gpufair could not run it, 127 if the image has no such command, 130
if you stopped it before the order was sent.`

// runFlags is what the person typed.
type runFlags struct {
	req    api.RunRequest
	env    []string
	labels []string
	memory string
	term   string
	wait   string
	away   string
	detach bool
	yes    bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use: "run IMAGE [flags] [-- COMMAND...]", Short: "run an image on somebody else's machine: find, buy, push, run, follow, bring home, pay",
		Long: runLong,
		Args: cobra.ArbitraryArgs,
		Example: `  gpufair run render.tar -q kind=cpu --input scene --output pictures -- render /in/scene.json /out
  gpufair run train.tar -q 'gpu_name=RTX_4090 price<0.5' --budget 2 -e EPOCHS=3
  gpufair run job.tar --offer 8QmxYz1p.1 --dry-run
  gpufair run job.tar -q 'vram>=24' --max-price 0.40 --budget 2           # the best of several quotes
  gpufair run job.tar --offer 8QmxYz1p.1 --bid 0.35 --budget 2            # by a sealed bid
  gpufair run -d --name night job.tar -q kind=cpu --budget 1 --term 8h    # prints the job's id`,
		RunE: func(c *cobra.Command, args []string) error { return failedRun(a.run(c, f, args)) },
	}
	a.runFlags(c, &f)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return failedRun(c.Root().FlagErrorFunc()(c, err)) })
	return c
}

func (a *app) runFlags(c *cobra.Command, f *runFlags) {
	fl := c.Flags()
	fl.StringVarP(&f.req.Query, "query", "q", "", "which offer, as in `search`; only GPUs unless it says kind=cpu")
	fl.StringVarP(&f.req.Order, "order", "o", "", "which of them first, as in `search` (default price)")
	fl.StringVar(&f.req.Offer, "offer", "", "this offer's `id`, in place of a query")
	fl.StringVar(&f.req.Bid, "bid", "", "bid this `price` per device-hour in a sealed auction of --offer, in place of buying at its price")
	fl.StringVar(&f.req.MaxPrice, "max-price", "", "pay at most this `price` per device-hour: offers that match are asked for quotes, and the best is taken")
	fl.BoolVar(&f.req.Buy, "buy", false, "ask for no quotes: buy the first offer that matches at its price (the default without --max-price)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set `KEY=value` in the job; KEY alone takes the value from here")
	fl.StringVarP(&f.req.Dir, "workdir", "w", "", "`folder` in the container to start in")
	fl.StringVarP(&f.req.User, "user", "u", "", "`user` in the container")
	fl.StringVar(&f.req.Input, "input", "", "`folder` or file that becomes /in")
	fl.StringVar(&f.req.Output, "output", "", "new `folder` for what the job leaves in /out (default ./gpufair-NAME)")
	fl.StringVar(&f.req.Budget, "budget", "", "the most that the job may cost, such as 0.5")
	fl.StringVar(&f.term, "term", "", "end the lease after this `time`, such as 2h (default: when the budget is used up)")
	fl.StringVar(&f.away, "away", "", "let the job run on for this `time` from its start although this machine is away; see gpufair away --help")
	fl.StringVar(&f.req.AwayMost, "away-most", "", "`amount` that --away may cost (default: what the time costs, within budget and credit)")
	fl.IntVar(&f.req.Devices, "devices", 1, "how many devices of the offer")
	fl.StringVar(&f.memory, "memory", "", "memory that the job may use, such as 4GiB (default: the offer's)")
	fl.StringVar(&f.req.Name, "name", "", "a `name` for the job, for ps, logs and stop")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "put `key=value` on the job")
	fl.BoolVarP(&f.detach, "detach", "d", false, "print the job's id once the lease is signed, and leave the rest to the agent")
	fl.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	fl.BoolVar(&f.req.DryRun, "dry-run", false, "show what would be bought, and stop")
	fl.StringVar(&f.wait, "stop-wait", "", "`time` that the job gets to end after SIGTERM (default: the provider's)")
}

// failedRun gives errors of run the codes that can't be the job's: see docs/cli.md.
func failedRun(err error) error {
	code := cli.CodeOf(err)
	var status cli.Status
	if err == nil || errors.As(err, &status) || code >= cli.ExitRun {
		return err
	}
	var e *cli.Error
	if errors.As(err, &e) {
		return cli.Fail(cli.ExitRun, e.What, e.Why, e.Next)
	}
	return cli.Fail(cli.ExitRun, "run", err, "")
}

// run is the whole journey.
func (a *app) run(c *cobra.Command, f runFlags, args []string) error {
	if err := f.read(c, args); err != nil {
		return err
	}
	if err := f.check(c.Context()); err != nil {
		return err
	}
	client, err := a.connectMarket(c.Context())
	if err != nil {
		return err
	}
	if err := outputIsFree(c.Context(), client, f.req.Output); err != nil {
		return err
	}
	if err := a.budget(c.Context(), client, &f); err != nil {
		return err
	}
	if f.req.DryRun {
		return a.dryRun(c.Context(), client, f.req)
	}
	if a.asks(f) {
		if err := a.confirm(c.Context(), client, &f); err != nil {
			return err
		}
	}
	if err := c.Context().Err(); err != nil {
		return interruptedEarly(err)
	}
	interrupts, stop := cli.Interrupts()
	defer stop()
	run := newFollower(a, client, f.req, f.detach, interrupts)
	run.quietPlan = a.asks(f) // it was shown to be confirmed
	return run.follow(context.WithoutCancel(c.Context()))
}

// asks reports whether a person can and wants to be asked.
func (a *app) asks(f runFlags) bool { return a.InTTY && a.ErrTTY && !f.yes && !a.JSON }

var jobName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// read makes a request of flags and arguments.
func (f *runFlags) read(c *cobra.Command, args []string) error {
	dash := c.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	}
	switch {
	case dash == 0:
		return cli.Usagef("gpufair run IMAGE -- COMMAND; gpufair run --help", "run: which image?")
	case dash > 1:
		return cli.Usagef(fmt.Sprintf("put -- before the command: gpufair run %s -- %s", cli.Clean(args[0]), cli.Clean(strings.Join(args[1:], " "))),
			"run: takes one image, but got also %q", cli.Clean(args[1]))
	case f.req.Offer != "" && (f.req.Query != "" || f.req.Order != ""):
		return cli.Usagef("give one of them", "run: --offer and --query or --order exclude each other")
	case f.req.Bid != "" && f.req.Offer == "":
		return cli.Usagef("gpufair run IMAGE --offer ID --bid "+cli.Clean(f.req.Bid)+"; gpufair search shows ids", "run: --bid needs --offer: a sealed bid is for one offer")
	case f.req.Bid != "" && (f.req.MaxPrice != "" || f.req.Buy):
		return cli.Usagef("a bid is a price already", "run: --bid excludes --max-price and --buy")
	case f.req.Name != "" && !jobName.MatchString(f.req.Name):
		return cli.Usagef("letters, digits and _.- make a name, up to 63", "run: --name %q", cli.Clean(f.req.Name))
	case f.req.Devices < 1:
		return cli.Usagef("give --devices 1 or more", "run: --devices %d", f.req.Devices)
	}
	if err := checkQuery(f.req.Query, f.req.Order); err != nil {
		return err
	}
	f.req.Command = args[dash:]
	if err := f.measures(); err != nil {
		return err
	}
	if err := f.pairs(); err != nil {
		return err
	}
	return f.paths(args[0])
}

// measures reads times, sizes and amounts.
func (f *runFlags) measures() error {
	for _, t := range []struct {
		flag, text string
		into       *int
	}{{"--term", f.term, &f.req.Term}, {"--stop-wait", f.wait, &f.req.StopWait}, {"--away", f.away, &f.req.Away}} {
		if t.text == "" {
			continue
		}
		d, err := cli.ParseDuration(t.text)
		if err != nil || d < time.Second {
			return cli.Usagef("write 90s, 30m, 8h or 2d", "run: %s %q is no time of a second or more", t.flag, cli.Clean(t.text))
		}
		*t.into = int(d / time.Second)
	}
	if f.memory != "" {
		n, err := cli.ParseBytes(f.memory)
		if err != nil || n < 1<<20 {
			return cli.Usagef("write 512MiB or 4GiB", "run: --memory %q is no size of a MiB or more", cli.Clean(f.memory))
		}
		f.req.Memory = n >> 20
	}
	for _, p := range [][2]string{{"--bid", f.req.Bid}, {"--max-price", f.req.MaxPrice}} {
		if r, err := money.ParseRate(p[1]); p[1] != "" && (err != nil || r == 0) {
			return cli.Usagef("write a price above 0 per device-hour, in the offer's unit, such as 0.35", "run: %s %q is no price", p[0], cli.Clean(p[1]))
		}
	}
	if f.req.Budget != "" {
		switch m, err := money.Parse(f.req.Budget); {
		case errors.Is(err, money.ErrOverflow):
			return cli.Usagef(fmt.Sprintf("write %v or less, in the offer's unit", money.Max), "run: --budget %q is too large", cli.Clean(f.req.Budget))
		case err != nil || m == 0:
			return cli.Usagef("write an amount above 0 in the offer's unit, such as 0.5", "run: --budget %q is no amount", cli.Clean(f.req.Budget))
		}
	}
	return nil
}

// pairs reads --env and --label.
func (f *runFlags) pairs() error {
	for _, e := range f.env {
		name, _, given := strings.Cut(e, "=")
		if name == "" {
			return cli.Usagef("write KEY=value, or KEY to take the value from here", "run: --env %q", cli.Clean(e))
		}
		if !given {
			v, ok := os.LookupEnv(name)
			if !ok {
				continue // as docker does
			}
			e = name + "=" + v
		}
		f.req.Env = append(f.req.Env, e)
	}
	for _, l := range f.labels {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return cli.Usagef("write key=value", "run: --label %q", cli.Clean(l))
		}
		if f.req.Labels == nil {
			f.req.Labels = map[string]string{}
		}
		f.req.Labels[k] = v
	}
	return nil
}

// paths makes paths absolute: the agent stands in another folder.
func (f *runFlags) paths(imagePath string) (err error) {
	_, err = os.Stat(imagePath)
	ref, ok := image.Reference(imagePath)
	switch {
	case err == nil || !errors.Is(err, os.ErrNotExist):
		f.req.Image, err = filepath.Abs(imagePath)
	case ok:
		f.req.Image, err = ref, nil
	default: // said of what was typed
		err = cli.Fail(cli.ExitUsage, "run: image "+cli.Clean(imagePath), image.Missing(imagePath), takes)
	}
	if err != nil {
		return err
	}
	if f.req.Input != "" {
		if f.req.Input, err = filepath.Abs(f.req.Input); err != nil {
			return err
		}
	}
	if f.req.Output == "" {
		name := f.req.Name
		if name == "" { // the job's id is not known before it is bought
			var salt [2]byte
			if _, err := rand.Read(salt[:]); err != nil {
				return err
			}
			base, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f.req.Image), ".tar"), ":") // of a registry's name, before its tag
			base, _, _ = strings.Cut(base, "@")
			name = base + "-" + hex.EncodeToString(salt[:])
		}
		f.req.Output = "gpufair-" + name
	}
	f.req.Output, err = newFolder(f.req.Output)
	return err
}

// newFolder is the absolute path of a folder that does not exist yet.
func newFolder(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(abs); err == nil {
		return "", cli.Usagef("name a folder that does not exist, so that nothing is overwritten", "output folder %s exists", path)
	}
	if info, err := os.Stat(filepath.Dir(abs)); err != nil || !info.IsDir() {
		return "", cli.Usagef("make it first: mkdir -p "+filepath.Dir(abs), "output folder %s: its parent is no folder", path)
	}
	return abs, nil
}

// takes is what to do about a wrong image.
const takes = "gpufair run takes what `docker save`, `podman save` or `buildah push NAME oci-archive:FILE` write, and names of images in registries"

// check looks at the files here, before an agent or a provider is asked.
func (f *runFlags) check(ctx context.Context) error {
	var img renter.Image
	var err error
	if !strings.HasPrefix(f.req.Image, renter.FromRegistry) { // that is the agent's to ask, once it knows the platform
		img, err = image.Opener{}.Open(ctx, f.req.Image, "linux/"+runtime.GOARCH)
	}
	switch {
	case img == nil && err == nil:
	case err == nil:
		err = img.Close()
	case errors.Is(err, image.ErrPlatform):
		err = nil // an offer may be of the platform that it is for
	}
	if err != nil {
		return cli.Fail(cli.ExitUsage, "run", err, takes)
	}
	if f.req.Input != "" {
		if _, err := os.Stat(f.req.Input); err != nil {
			return cli.Fail(cli.ExitUsage, "run: --input", err, "name a folder or a file")
		}
	}
	return nil
}

// outputIsFree makes sure that no job that runs will write to the same folder: it is made only when results arrive.
func outputIsFree(ctx context.Context, c api.Client, output string) error {
	list, err := c.Jobs(ctx, false)
	if err != nil {
		return explained("run", err)
	}
	for _, j := range list.Jobs {
		if j.Output == output {
			return cli.Usagef("name another folder", "output folder %s is to hold the results of job %s", output, shortID(j.ID))
		}
	}
	return nil
}
