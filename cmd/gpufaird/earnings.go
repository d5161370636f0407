package main

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/verbs"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/provider/control/api"
)

func earningsCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	var since, by, svg string
	var asCSV bool
	c := &cobra.Command{
		Use: "earnings", Short: "what was earned by day, card or renter, and what became of it", Args: cobra.NoArgs,
		Long: "Earned is what renters signed for, less credits. Of that, settled was paid (payments settle the oldest leases first), open is still\n" +
			"owed, and written off was given up. A row is of one unit: amounts of different units are never added.",
		Example: "  gpufaird earnings\n  gpufaird earnings --since 7d --by card\n  gpufaird earnings --by renter --csv > renters.csv\n  gpufaird earnings --svg month.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			if by != byDay && by != byCard && by != byRenter {
				return cli.Usagef("give --by day, --by card or --by renter", "--by %q", by)
			}
			c, err := client(d)
			if err != nil {
				return err
			}
			e, err := c.Earnings(cmd.Context(), from, by)
			if err != nil {
				return d.Explain("show earnings", err)
			}
			if svg != "" {
				write := func(f *os.File) error { _, err := f.Write(chart(e)); return err }
				if err := disk.Replace(svg, 0o644, write); err != nil {
					return cli.Fail(cli.ExitSystem, "write the chart", err, "give --svg the name of a file that can be written")
				}
				p.Note("wrote %s", cli.Clean(svg))
			}
			switch {
			case p.JSON:
				return p.PrintJSON(e)
			case asCSV:
				return writeEarnings(p, e)
			}
			return printEarnings(p, e)
		},
	}
	c.Flags().StringVar(&since, "since", "30d", "a `time` ago such as 12h, 7d or 4w, or a day such as 2026-11-01")
	c.Flags().StringVar(&by, "by", byDay, "a row for each day, card or renter")
	c.Flags().BoolVar(&asCSV, "csv", false, "as CSV")
	c.Flags().StringVar(&svg, "svg", "", "write a chart to this `file`, too")
	return c
}

// parseSince reads how long ago, or a day; days begin at local midnight.
func parseSince(text string, now time.Time) (time.Time, error) {
	if day, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return day, nil
	}
	for suffix, days := range map[string]int{"d": 1, "w": 7} {
		number, ok := strings.CutSuffix(text, suffix)
		if n, err := strconv.Atoi(number); ok && err == nil && n >= 0 && n <= 100_000 {
			return startOfDay(now).AddDate(0, 0, -n*days), nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, cli.Usagef("give 12h, 7d, 4w or 2026-11-01", "--since %q", text)
}

func printEarnings(p *cli.Program, e api.Earnings) error {
	if len(e.Rows) == 0 {
		p.Note("nothing was earned since %s", p.Time(e.Since, time.Now()))
		return nil
	}
	most := map[string]money.Micro{}
	for _, r := range e.Rows {
		most[r.Unit] = max(most[r.Unit], micro(r.Earned))
	}
	tab := p.Table(strings.ToUpper(e.By), ">EARNED", ">SETTLED", ">OPEN", ">WRITTEN OFF", "UNIT", ">LEASES", "")
	for _, r := range e.Rows {
		name := r.Key
		if e.By == byCard {
			name = strings.TrimSpace(r.Name + " " + r.Key[:min(len(r.Key), 12)])
		}
		tab.Row(name, r.Earned, r.Settled, r.Open, r.WrittenOff, r.Unit, r.Leases, bar(micro(r.Earned), most[r.Unit]))
	}
	for _, t := range e.Totals {
		tab.Row("in all", t.Earned, t.Settled, t.Open, t.WrittenOff, t.Unit, t.Leases, "")
	}
	return tab.Print()
}

// micro reads an amount that the daemon wrote; 0 for what is none.
func micro(text string) money.Micro {
	m, err := money.Parse(text)
	if err != nil {
		return 0
	}
	return m
}

// barWidth is the longest bar, in cells of eighths.
const barWidth = 24

// bar draws value against most, in eighths of a cell.
func bar(value, most money.Micro) string {
	eighths := int(share(value, most) * barWidth * 8)
	out := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		out += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return out
}

// share is value of most, for drawing only.
func share(value, most money.Micro) float64 {
	if most == 0 {
		return 0
	}
	return float64(value) / float64(most)
}

// writeEarnings writes rows as CSV (RFC 4180).
func writeEarnings(p *cli.Program, e api.Earnings) error {
	w := csv.NewWriter(p.Out)
	w.UseCRLF = true
	rows := [][]string{{e.By, "name", "unit", "leases", "earned", "settled", "open", "written_off"}}
	for _, r := range e.Rows {
		rows = append(rows, []string{r.Key, r.Name, r.Unit, strconv.Itoa(r.Leases), r.Earned, r.Settled, r.Open, r.WrittenOff})
	}
	return w.WriteAll(rows)
}

// Sizes of the chart, in pixels.
const (
	chartLabel = 190
	chartBar   = 560
	chartRow   = 22
)

// chart draws rows as an SVG file: a bar of three parts for each row, and a scale of its own for each unit.
func chart(e api.Earnings) []byte {
	most := map[string]money.Micro{}
	for _, r := range e.Rows {
		most[r.Unit] = max(most[r.Unit], micro(r.Earned))
	}
	var out bytes.Buffer
	width, height := chartLabel+chartBar+170, 60+chartRow*len(e.Rows)
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(&out, 10, 20, fmt.Sprintf("earned by %s since %s", e.By, e.Since.Local().Format(time.DateOnly)))
	parts := []struct {
		name, colour string
		of           func(api.Earned) string
	}{
		{"settled", "#2a7f4f", func(r api.Earned) string { return r.Settled }},
		{"open", "#e0a030", func(r api.Earned) string { return r.Open }},
		{"written off", "#b03a3a", func(r api.Earned) string { return r.WrittenOff }},
	}
	for i, p := range parts {
		x := chartLabel + i*110
		fmt.Fprintf(&out, `<rect x="%d" y="30" width="12" height="12" fill="%s"/>`+"\n", x, p.colour)
		text(&out, x+18, 40, p.name)
	}
	for i, r := range e.Rows {
		y, x := 52+i*chartRow, float64(chartLabel)
		label := r.Key
		if r.Name != "" {
			label = r.Name
		}
		text(&out, 10, y+13, label[:min(len(label), 28)])
		for _, p := range parts {
			w := share(micro(p.of(r)), most[r.Unit]) * chartBar
			fmt.Fprintf(&out, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", x, y, w, chartRow-6, p.colour)
			x += w
		}
		text(&out, int(x)+6, y+13, r.Earned+" "+r.Unit)
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

// text writes a label, whatever is in it.
func text(out *bytes.Buffer, x, y int, s string) {
	fmt.Fprintf(out, `<text x="%d" y="%d">`, x, y)
	_ = xml.EscapeText(out, []byte(strings.ToValidUTF8(cli.Clean(s), "?"))) // a buffer takes everything
	out.WriteString("</text>\n")
}
