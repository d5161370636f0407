package verbs

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/statement"
)

// linesShown is how many intervals people are shown, the newest; 60 are ten minutes of running.
const linesShown = 60

func (d *Daemon) ledgerStatement() *cobra.Command {
	var intervals, asCSV bool
	var last int
	c := &cobra.Command{
		Use: "statement LEASE", Short: "what a lease cost, interval by interval, and whose signatures prove it", Args: exactly("the id of a lease, or the start of one", 1),
		Long: "Each line is the time between two claims, 10 s of running: what was billed of it and why not all, what its voucher promised, whether the\n" +
			"receipt for that voucher is here and names this very evidence, and what the job used. The amounts sum up to the newest voucher's.\n" +
			"With --json it prints the lease as one object; with --json and --intervals an interval a line.",
		Example: fmt.Sprintf("  %s ledger statement 3fa9\n  %s ledger statement 3fa9 --intervals --json\n  %s ledger statement 3fa9 --csv > lease.csv", d.Name, d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case last < 0:
				return cli.Usagef("give 0 for all", "--last %d: want 0 or more", last)
			case asCSV:
				w := csv.NewWriter(d.Out)
				if err := w.Write(csvHead); err != nil {
					return err
				}
				if err := d.eachInterval(cmd.Context(), args[0], func(v statement.Interval) error { return w.Write(csvRow(v)) }); err != nil {
					return err
				}
				w.Flush()
				return w.Error()
			case intervals && d.JSON:
				return d.eachInterval(cmd.Context(), args[0], func(v statement.Interval) error { return d.PrintJSON(v) })
			case intervals:
				return d.printIntervals(cmd.Context(), args[0], last)
			}
			return d.printStatement(cmd.Context(), args[0], last)
		},
	}
	c.Flags().BoolVar(&intervals, "intervals", false, "only the intervals; with --json one a line")
	c.Flags().BoolVar(&asCSV, "csv", false, "only the intervals, as CSV")
	c.Flags().IntVar(&last, "last", linesShown, "how many of the intervals people are shown, the newest; 0: all")
	return c
}

func (d *Daemon) printStatement(ctx context.Context, lease string, last int) error {
	v, err := get[statement.Statement](ctx, d, "statement of lease "+lease, "/ledger/leases/"+url.PathEscape(lease))
	if err != nil {
		return err
	}
	if d.JSON {
		return d.PrintJSON(v)
	}
	err = d.Pairs([2]string{"lease", v.Lease}, [2]string{"with", v.Account + " (I am the " + v.Role + ")"},
		[2]string{"amount", v.Amount + " " + v.Unit}, [2]string{"voucher", fmt.Sprintf("%s, number %d", v.Voucher, v.Sequence)},
		[2]string{"receipt", orDash(v.Receipt)}, [2]string{"signed by", orDash(strings.Join(v.Signed, "\n"))},
		[2]string{"settled", map[bool]string{true: "yes", false: "no"}[v.Settled]})
	if err != nil {
		return err
	}
	fmt.Fprintln(d.Out)
	if err := d.printIntervals(ctx, lease, last); err != nil {
		return err
	}
	fmt.Fprintln(d.Out)
	tab := d.Table(">INDEX", "TIME", "KIND", ">AMOUNT", "UNIT")
	for _, e := range v.Entries {
		tab.Row(e.Index, d.Time(e.Time, time.Now()), e.Kind, e.Amount, e.Unit)
	}
	return tab.Print()
}

// pageOfIntervals is the most that the API gives at once. The ledger walks a lease from its start for each page, so small ones cost more.
const pageOfIntervals = 10_000

// eachInterval asks for a lease's intervals, page by page.
func (d *Daemon) eachInterval(ctx context.Context, lease string, f func(statement.Interval) error) error {
	for skip := 0; ; {
		page, err := get[statement.Intervals](ctx, d, "statement of lease "+lease,
			fmt.Sprintf("/ledger/leases/%s/intervals?skip=%d&limit=%d", url.PathEscape(lease), skip, pageOfIntervals))
		if err != nil {
			return err
		}
		for _, v := range page.Intervals {
			if err := f(v); err != nil {
				return err
			}
		}
		skip += len(page.Intervals)
		if !page.More || len(page.Intervals) == 0 {
			return nil
		}
	}
}

// printIntervals prints the newest intervals, and which events started and ended the charge.
func (d *Daemon) printIntervals(ctx context.Context, lease string, last int) error {
	var newest []statement.Interval
	var first, end *statement.Interval
	all := 0
	err := d.eachInterval(ctx, lease, func(v statement.Interval) error {
		all++
		if first == nil && v.BillableMs > 0 {
			first = &v
		}
		if v.State == "ended" {
			end = &v
		}
		newest = append(newest, v)
		if last > 0 && len(newest) > 2*last { // now and then, and not each time
			newest = append(newest[:0], newest[len(newest)-last:]...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if last > 0 {
		newest = newest[max(len(newest)-last, 0):]
	}
	var pairs [][2]string
	if first != nil {
		pairs = append(pairs, [2]string{"charge began", d.second(first.From) + ": the job ran, and its lane was open"})
	}
	if end != nil {
		pairs = append(pairs, [2]string{"charge ended", d.second(end.To) + ": " + orDash(cli.Clean(end.Why))})
	}
	if err := d.Pairs(pairs...); err != nil {
		return err
	}
	tab := d.Table("FROM", ">FOR", ">BILLED", "STATE", "WHY", ">RATE", ">AMOUNT", ">IN ALL", ">VOUCHER", "RECEIPT", "EVIDENCE", ">CPU", ">MEM", ">GPU", ">VRAM", ">J", ">MHZ")
	for _, v := range newest {
		tab.Row(d.second(v.From), length(v), millis(v.BillableMs), orDash(v.State), orDash(why(v)), v.Rate, v.Amount, v.Cumulative, number(v.Voucher),
			yes(v.Receipt), v.Evidence, cpu(v), mib(v.MemoryMiB), percent(v.GPUPercent), vram(v), number(v.EnergyJ), number(uint64(v.ClockMHz)))
	}
	if n := all - len(newest); n > 0 {
		d.Note("%s before these; --last 0 shows all", cli.Count(n, "interval"))
	}
	return tab.Print()
}

// second is a time to the second, whatever day it is of.
func (d *Daemon) second(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.In(d.Zone).Format(time.DateTime)
}

func length(v statement.Interval) string {
	if v.From.IsZero() || v.To.IsZero() {
		return "-"
	}
	return v.To.Sub(v.From).Round(100 * time.Millisecond).String()
}

func millis(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }

func why(v statement.Interval) string {
	if v.Away {
		return strings.TrimPrefix(v.Why+", allowance", ", ")
	}
	return v.Why
}

func number(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func yes(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }

// cpu is how many percent of one core the job's processes ran in the billed time.
func cpu(v statement.Interval) string {
	if v.BillableMs <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", v.CPUMs*100/uint64(v.BillableMs))
}

func mib(n uint64) string {
	if n == 0 {
		return "-"
	}
	return cli.Bytes(n << 20)
}

func percent(p *uint32) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%d%%", *p)
}

func vram(v statement.Interval) string {
	if v.VRAMMiB == nil {
		return "-"
	}
	return cli.Bytes(*v.VRAMMiB << 20)
}

// csvHead is the first line of --csv: the JSON names, which are never renamed.
var csvHead = []string{
	"from", "to", "billable_ms", "billable_total_ms", "state", "why", "rate", "devices", "metered", "amount", "cumulative", "voucher", "receipt", "evidence",
	"away", "cpu_ms", "memory_mib", "gpu_percent", "vram_mib", "energy_j", "clock_mhz",
}

func csvRow(v statement.Interval) []string {
	some := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano)
	}
	gpu, vram := "", ""
	if v.GPUPercent != nil {
		gpu = strconv.FormatUint(uint64(*v.GPUPercent), 10)
	}
	if v.VRAMMiB != nil {
		vram = strconv.FormatUint(*v.VRAMMiB, 10)
	}
	return []string{
		at(v.From), at(v.To), strconv.FormatInt(v.BillableMs, 10), strconv.FormatUint(v.BillableTotalMs, 10), v.State, cli.Clean(v.Why), v.Rate,
		strconv.FormatUint(uint64(v.Devices), 10), v.Metered, v.Amount, v.Cumulative, some(v.Voucher), strconv.FormatBool(v.Receipt), v.Evidence,
		strconv.FormatBool(v.Away), strconv.FormatUint(v.CPUMs, 10), strconv.FormatUint(v.MemoryMiB, 10), gpu, vram, some(v.EnergyJ), some(uint64(v.ClockMHz)),
	}
}
