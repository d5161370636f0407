package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/renter/control/api"
)

const searchLong = `List live offers that match a query, cheapest first. The ten best are asked whether they are alive before they are shown.

A query is conditions that must all hold, as Vast's command line words them:

  field operator value     = != < <= > >=, in [a,b], notin [a,b]

Unless it says otherwise only GPUs with a free device match: kind=cpu finds cores, kind=any both, free=any lots that are rented out too.
A field that an offer does not state matches nothing; --allow-unknown lets it pass.`

// queryHelp is what every command that takes a query says of its fields.
func queryHelp() string {
	var b strings.Builder
	b.WriteString("\n\nFields of queries and orders (other names that are taken in brackets):\n")
	for _, f := range query.Fields() {
		name := f.Name
		if len(f.Aliases) > 0 {
			name += " (" + strings.Join(f.Aliases, ", ") + ")"
		}
		fmt.Fprintf(&b, "  %-40s %s\n", name, f.Help)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (a *app) searchCommand() *cobra.Command {
	var req api.SearchRequest
	c := &cobra.Command{
		Use: "search [QUERY]...", Short: "list live offers that match a query", Long: searchLong + queryHelp(),
		Args: cobra.ArbitraryArgs,
		Example: `  gpufair search
  gpufair search kind=cpu
  gpufair search 'gpu_name=RTX_4090 num_gpus>=2 vram>=24 price<0.5 region in [eu,us]'
  gpufair search 'kind=cpu cpu_cores>=8 fp32_matmul>100' -o 'fp32_matmul-' --json`,
		RunE: func(c *cobra.Command, args []string) error {
			req.Query = strings.Join(args, " ")
			return a.search(c, req)
		},
	}
	f := c.Flags()
	f.StringVarP(&req.Order, "order", "o", "", "sort by these `fields`, the largest first with a - behind: price,fp32_matmul- (default price)")
	f.IntVarP(&req.Limit, "limit", "n", 20, "at most so many offers, up to 1000")
	f.BoolVar(&req.AllowUnknown, "allow-unknown", false, "let offers pass that do not state a field")
	f.BoolVar(&req.NoProbe, "no-probe", false, "do not ask the ten best whether they are alive")
	return c
}

func (a *app) search(c *cobra.Command, req api.SearchRequest) error {
	if req.Limit < 1 || req.Limit > 1000 {
		return cli.Usagef("give --limit a number from 1 to 1000", "--limit %d", req.Limit)
	}
	if err := checkQuery(req.Query, req.Order); err != nil {
		return err
	}
	client, err := a.connectMarket(c.Context())
	if err != nil {
		return err
	}
	found, err := client.Search(c.Context(), req)
	if err != nil {
		return explained("search", err)
	}
	if len(found.Offers) == 0 {
		next := "gpufair why, with the same query, says what refused each; fewer conditions may find something"
		switch {
		case found.Known == 0 && found.Peers > 0:
			next = "try again in a minute; gpufair peers lists who is connected, and `gpufaird status` tells each owner why nothing is offered"
		case found.Known == 0:
			next = "gpufair join STRING, with what `gpufaird invite` prints on the other side; gpufair doctor says what is missing"
		case !strings.Contains(req.Query, "kind"):
			next += "; without kind=cpu or kind=any only GPUs are searched"
		}
		return &cli.Error{Code: cli.ExitNothing, What: orElse(cli.Clean(found.Note), "no offer matches"), Next: next}
	}
	if a.JSON {
		for _, o := range found.Offers {
			if err := a.PrintJSON(o); err != nil {
				return err
			}
		}
		return nil
	}
	self, err := client.Status(c.Context())
	if err != nil {
		return explained("search", err)
	}
	if err := a.offers(found.Offers, self.Account); err != nil {
		return err
	}
	if found.Note != "" {
		a.Note("gpufair: %s", cli.Clean(found.Note))
	}
	return nil
}

// checkQuery reads query and order here, so that a slip of the pen needs no agent.
func checkQuery(q, order string) error {
	const next = "gpufair search --help shows the language"
	if _, err := query.Parse(q); err != nil {
		return cli.Fail(cli.ExitUsage, "search", err, next)
	}
	if _, err := query.ParseOrder(order); err != nil {
		return cli.Fail(cli.ExitUsage, "search", err, next)
	}
	return nil
}

// offers prints offers as a table, and marks those of this account: who runs both programs does not want to rent from itself.
func (a *app) offers(list []api.Offer, self string) error {
	now := time.Now()
	t := a.Table("OFFER", ">PRICE/h", "MODEL", ">FREE", ">CORES", ">RAM", "MEASURED", "REGION", "PROVIDER", "REACH", ">RTT", ">CREDIT", "SEEN")
	for _, o := range list {
		seen := cli.Cell{Text: "alive", Colour: cli.Good}
		if !o.Alive {
			seen = cli.Cell{Text: cli.Ago(o.Heard, now), Colour: cli.Faint}
		}
		provider := shortAccount(o.Provider)
		if o.Provider == self {
			provider += " (you)"
		}
		t.Row(o.ID, o.Price+" "+o.Unit, modelOf(o), fmt.Sprintf("%d/%d", o.Free, o.Devices), o.Cores, mib(o.MemoryMiB), measured(o, 2),
			orElse(o.Region, "-"), provider, orElse(o.Path, "-"), rtt(o), o.Credit, seen)
	}
	return t.Print()
}

func modelOf(o api.Offer) string {
	if o.VRAMMiB > 0 {
		return o.Model + " " + mib(o.VRAMMiB)
	}
	return o.Model
}

func mib(n uint64) string { return cli.Bytes(n << 20) }

// measured is the first n figures that people compare offers by.
func measured(o api.Offer, n int) string {
	var out []string
	for _, name := range []string{"fp32_matmul", "mem_copy", "fp64_matmul", "mem_triad"} {
		for _, f := range o.Figures {
			if f.Name == name && len(out) < n {
				out = append(out, f.Name+" "+f.Text)
			}
		}
	}
	return orElse(strings.Join(out, ", "), "-")
}

// shortAccount is enough of an account for people to tell two apart; show and --json print all of it.
func shortAccount(s string) string { return s[:min(len(s), 10)] }

func rtt(o api.Offer) string {
	if o.RTTMillis <= 0 {
		return "-"
	}
	return cli.Span(time.Duration(o.RTTMillis * float64(time.Millisecond)))
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show OFFER", Short: "show one offer in full: terms, measured figures and their passport, what it does not promise",
		Long: `Show one offer in full, by the id that search prints. Its benchmark passport is fetched from the provider and checked: who signed it,
when it was measured, and by what.`,
		Args: oneArg("an offer's id, as `gpufair search` prints it"),
		Example: `  gpufair show 8QmxYz1p.1
  gpufair show 8QmxYz1p.1 --json`,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.connectMarket(c.Context())
			if err != nil {
				return err
			}
			e, err := client.Offer(c.Context(), args[0])
			if err != nil {
				return explained("show offer "+cli.Clean(args[0]), err)
			}
			if a.JSON {
				return a.PrintJSON(e)
			}
			return a.explain(e)
		},
	}
}

// oneArg wants exactly one argument and says what it is.
func oneArg(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 1 && args[0] != "" {
			return nil
		}
		return cli.Usagef(c.CommandPath()+" --help", "%s: got %s, want one: %s", c.CommandPath(), cli.Count(len(args), "argument"), what)
	}
}

func (a *app) explain(e api.Explanation) error {
	o := e.Offer
	size := fmt.Sprintf("%s, %s RAM, %s disk each", cli.Count(o.Cores, "core"), mib(o.MemoryMiB), mib(o.DiskMiB))
	where := []string{}
	for _, s := range []string{o.Region, o.Arch, o.Driver} {
		if s != "" {
			where = append(where, s)
		}
	}
	rows := [][2]string{
		{"offer", o.ID},
		{"device", fmt.Sprintf("%s (%s), %d of %d free; %s", modelOf(o), o.Kind, o.Free, o.Devices, size)},
		{"price", fmt.Sprintf("%s %s per device-hour", o.Price, o.Unit)},
		{"provider", o.Provider + "\npeer " + o.Peer},
		{"machine", strings.Join(where, ", ")},
		{"heard", fmt.Sprintf("%s; offer of %s; round trip %s", cli.Ago(o.Heard, time.Now()), a.Time(o.IssuedAt, time.Now()), rtt(o))},
		{"figures", figureLines(o.Figures)},
		{"passport", a.passport(e.Passport)},
		{"terms", strings.Join(e.Terms, "\n")},
		{"beware", strings.Join(e.Warnings, "\n")},
	}
	for i := range rows {
		lines := strings.Split(rows[i][1], "\n")
		for j := range lines {
			lines[j] = cli.Clean(lines[j])
		}
		rows[i][1] = strings.Join(lines, "\n")
	}
	return a.Pairs(rows...)
}

func figureLines(list []api.Figure) string {
	lines := make([]string, len(list))
	for i, f := range list {
		lines[i] = f.Name + " " + f.Text
	}
	return orElse(strings.Join(lines, "\n"), "none")
}

func (a *app) passport(p api.Passport) string {
	if p.Error != "" {
		return p.Hash + "\nnot checked: " + p.Error
	}
	state := "its signature is the provider's, and it is valid"
	if !p.Checked {
		state = "not checked"
	}
	return fmt.Sprintf("%s\n%s\nprofile %s, measured %s by %s\n%s", p.Hash, state, p.Profile, a.Time(p.Measured, time.Now()),
		strings.Join(p.Kernels, ", "), figureLines(p.Figures))
}
