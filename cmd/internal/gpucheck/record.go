package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpufair/gpufair/benchmark"
)

// record is what was seen of one card. Nothing in it tells which of all cards of its kind it is, or whose: it is made to be published.
type record struct {
	Checked time.Time          `json:"checked"`
	Driver  string             `json:"driver"`
	CUDA    string             `json:"cuda"`
	Card    benchmark.GPU      `json:"card"`
	Kernels []kernel           `json:"kernels"`
	Reports []benchmark.Report `json:"reports"`
	NotRun  []string           `json:"not_run,omitempty"`
	Wrong   []string           `json:"wrong,omitempty"`

	uuid string
}

func newRecord(g benchmark.GPUs, card benchmark.GPU) *record {
	r := &record{Checked: time.Now().UTC().Truncate(time.Second), Driver: g.Driver, CUDA: g.CUDA, Card: card, uuid: card.UUID}
	r.Card.UUID, r.Card.Device, r.Card.PCIAddress, r.Card.Processes, r.Card.Slices = "", [32]byte{}, "", nil, nil
	return r
}

// slug makes a file's name of a card's: "NVIDIA GeForce RTX 4090" is "nvidia-geforce-rtx-4090".
func slug(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	if len(words) == 0 {
		return "card"
	}
	return strings.Join(words, "-")
}

// write makes the two files of a card: path.json and path.md.
func (r *record) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".json", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".md", []byte(r.text()), 0o644)
}

// text is the record for people.
func (r *record) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# %s: what was measured\n", plain(r.Card.Name))
	line("By `make gpu-check` on %s, driver %s, CUDA %s, power limit %d W. Kernels of gpufair, by the machine's own word.\n",
		r.Checked.Format(time.DateOnly), plain(r.Driver), plain(r.CUDA), r.Card.PowerLimitMW/1000)
	for _, w := range r.Wrong {
		line("- **wrong**: %s", plain(w))
	}
	for _, n := range r.NotRun {
		line("- not run: %s", plain(n))
	}
	line("\n## Kernels against the same code on the CPU\n\n| kernel | worst difference | limit | |\n|---|---|---|---|")
	for _, k := range r.Kernels {
		switch {
		case k.Absent:
			line("| %s | - | - | not run by this card or driver |", k.Name)
		case k.Wrong:
			line("| %s | %.3g | %.3g | **wrong** |", k.Name, k.Worst, k.Limit)
		default:
			line("| %s | %.3g | %.3g | agrees |", k.Name, k.Worst, k.Limit)
		}
	}
	for _, report := range r.Reports {
		line("\n## Profile %s, in %v\n", report.Profile, report.Finished.Sub(report.Started).Round(time.Second))
		line("| figure | median | p5 | p95 | spread | MHz | W | °C | link | slowed by | work |\n|---|---|---|---|---|---|---|---|---|---|---|")
		for _, m := range report.Measurements {
			line("%s", row(m))
		}
		for _, s := range append(report.Skipped, report.Unread...) {
			line("\n- %s", plain(s))
		}
	}
	return b.String()
}

// row is a figure in the table; "-" is what the card did not tell.
func row(m benchmark.Measurement) string {
	info, _ := benchmark.Info(m.Figure)
	c := benchmark.Conditions{}
	slowed := "-"
	if m.Conditions != nil {
		c = *m.Conditions
		slowed = (c.Reasons &^ benchmark.ReasonIdle).String()
	}
	spread := m.Stats.Percent()
	if m.Stats.Unstable {
		spread += " unstable"
	}
	link := "-"
	if c.PCIeGen > 0 && c.PCIeWidth > 0 {
		link = fmt.Sprintf("gen %d x%d", c.PCIeGen, c.PCIeWidth)
	}
	return "| " + strings.Join([]string{
		m.Figure.String(), info.Format(m.Stats.Median), info.Format(m.Stats.P5), info.Format(m.Stats.P95), spread,
		told(c.SMClockMHz), told(c.PowerMW / 1000), told(c.TempMaxC), link, slowed, plain(m.Size),
	}, " | ") + " |"
}

func told(v uint32) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprint(v)
}

// plain keeps what a driver said from being more than words in a table.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == '|' || c == '<' || c == '`' {
			return ' '
		}
		return c
	}, s)
}
