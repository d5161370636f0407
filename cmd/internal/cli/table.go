package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Colour is an ANSI colour of a table's cell.
type Colour string

// The colours, with one meaning each everywhere.
const (
	Plain Colour = ""
	Good  Colour = "\x1b[32m"
	Warn  Colour = "\x1b[33m"
	Bad   Colour = "\x1b[31m"
	Faint Colour = "\x1b[2m"
	Bold  Colour = "\x1b[1m"

	reset = "\x1b[0m"
)

// Paint colours text if stdout is a terminal that wants it. Cells of a [Table] are painted by [Cell] instead, or columns shift.
func (t *Terminal) Paint(c Colour, text string) string {
	if !t.Color || c == Plain || text == "" {
		return text
	}
	return string(c) + text + reset
}

// Cell is a table's cell with a colour.
type Cell struct {
	Text   string
	Colour Colour
}

// Table collects rows and prints them aligned. Columns whose header starts with ">" (not shown) are right-aligned, as numbers are.
type Table struct {
	t       *Terminal
	headers []string
	right   []bool
	rows    [][]Cell
}

// Table starts a table with these headers.
func (t *Terminal) Table(headers ...string) *Table {
	tab := &Table{t: t}
	for _, h := range headers {
		name, right := strings.CutPrefix(h, ">")
		tab.headers, tab.right = append(tab.headers, name), append(tab.right, right)
	}
	return tab
}

// Row adds a row: a [Cell] or anything that fmt.Sprint prints, one for each header. Control characters, which a stranger's text may
// carry, are shown as "?".
func (tab *Table) Row(cells ...any) {
	row := make([]Cell, len(tab.headers))
	for i := range min(len(cells), len(row)) {
		c, ok := cells[i].(Cell)
		if !ok {
			c = Cell{Text: fmt.Sprint(cells[i])}
		}
		c.Text = Clean(c.Text)
		row[i] = c
	}
	tab.rows = append(tab.rows, row)
}

// Len is the number of rows so far.
func (tab *Table) Len() int { return len(tab.rows) }

// Print writes the table to stdout; an empty one writes its headers only.
func (tab *Table) Print() error {
	header := make([]Cell, len(tab.headers))
	for i, h := range tab.headers {
		header[i] = Cell{Text: h, Colour: Bold}
	}
	all := append([][]Cell{header}, tab.rows...)
	width := make([]int, len(tab.headers))
	for _, row := range all {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c.Text))
		}
	}
	w := bufio.NewWriter(tab.t.Out)
	for _, row := range all {
		for i, c := range row {
			if i > 0 {
				fmt.Fprint(w, "  ")
			}
			// Padded before it is painted: an escape sequence has no width, which text/tabwriter does not know.
			fmt.Fprint(w, tab.t.Paint(c.Colour, pad(c.Text, width[i], tab.right[i], i == len(row)-1)))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

func pad(s string, width int, right, last bool) string {
	gap := strings.Repeat(" ", width-utf8.RuneCountInString(s))
	switch {
	case right:
		return gap + s
	case last: // no trailing spaces
		return s
	default:
		return s + gap
	}
}

// Clean replaces control characters, so that a stranger's text cannot drive a person's terminal. Tabs and newlines count as control.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\u202e' || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// PrintJSON writes v to stdout as one line of JSON.
func (t *Terminal) PrintJSON(v any) error { return writeJSON(t.Out, v) }

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// Pairs prints a list of "name  value" lines, aligned: what `show` and `status` are made of.
func (t *Terminal) Pairs(pairs ...[2]string) error {
	width := 0
	for _, p := range pairs {
		width = max(width, utf8.RuneCountInString(p[0]))
	}
	for _, p := range pairs {
		name := t.Paint(Faint, pad(p[0], width, false, false))
		if _, err := fmt.Fprintf(t.Out, "%s  %s\n", name, indent(p[1], strings.Repeat(" ", width+2))); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

// Note writes one line to stderr: what a person, but no script, wants to know.
func (t *Terminal) Note(format string, args ...any) { fmt.Fprintf(t.Err, format+"\n", args...) }

// indent puts prefix before every line but the first.
func indent(s, prefix string) string {
	return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+prefix)
}
