// Package export writes a ledger in the formats of other people's tools. It owns what a row looks like in each format, and how a cell
// is made harmless. It refuses to know where entries come from: it takes entries or rows as values and gives bytes.
package export

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Format is a file format that [Write] knows.
type Format string

// The formats.
const (
	FormatCSV       Format = "csv"       // a line a posting; see [CSV]
	FormatJSON      Format = "json"      // an object a posting, one a line; see [JSON]
	FormatHledger   Format = "hledger"   // see [Hledger]
	FormatBeancount Format = "beancount" // see [Beancount]
)

// Formats are all of them, the default first.
func Formats() []Format { return []Format{FormatCSV, FormatJSON, FormatHledger, FormatBeancount} }

// ErrFormat says that a format is none of [Formats].
var ErrFormat = errors.New("unknown export format")

// MediaType is what HTTP calls the format.
func (f Format) MediaType() string {
	switch f {
	case FormatCSV:
		return "text/csv; charset=utf-8; header=present"
	case FormatJSON:
		return "application/jsonl"
	}
	return "text/plain; charset=utf-8"
}

// Write writes entries, which must be all of a ledger's from its first on, in order, as f. The first error of entries or of w ends it;
// what was written by then is not a whole export.
func Write(w io.Writer, f Format, entries iter.Seq2[ledger.Entry, error]) error {
	switch f {
	case FormatCSV:
		return CSV(w, Rows(entries))
	case FormatJSON:
		return JSON(w, Rows(entries))
	case FormatHledger:
		return Hledger(w, entries)
	case FormatBeancount:
		return Beancount(w, entries)
	}
	return fmt.Errorf("export as %q: %w", string(f), ErrFormat)
}

// Row is one posting of one entry. Texts may hold anything.
type Row struct {
	Time         time.Time // by the writer's clock; written in UTC to the millisecond
	EntryID      string
	Kind         string // usage, hold, settlement …
	Account      string // posted to: receivable:gf…, income, external:manual …
	Counterparty string // empty if nobody
	Lease        string // empty if none
	Unit         money.Unit
	Amount       int64 // micro-units; debit positive
	Balance      int64 // micro-units; of the account in this unit after the entry
	Note         string
}

// Rows gives a row for each posting of entries, which must be all of a ledger's from its first on, in order: the balances are summed up
// here. An error of entries, or a balance beyond an int64, ends it. It may be used once if entries may be.
func Rows(entries iter.Seq2[ledger.Entry, error]) iter.Seq2[Row, error] {
	type account struct {
		ledger.Account
		unit money.Unit
	}
	return func(yield func(Row, error) bool) {
		balances := map[account]int64{}
		for e, err := range entries {
			if err != nil {
				yield(Row{}, err)
				return
			}
			for _, p := range e.Postings {
				at := account{p.Account, p.Unit}
				sum, err := ledger.AddSigned(balances[at], p.Amount)
				if err != nil {
					yield(Row{}, fmt.Errorf("export entry %s: balance of %s: %w", e.ID.Short(), p.Account, err))
					return
				}
				balances[at] = sum
				if !yield(row(e, p, sum), nil) {
					return
				}
			}
		}
	}
}

func row(e ledger.Entry, p ledger.Posting, balance int64) Row {
	r := Row{
		Time: time.UnixMilli(e.Time), EntryID: e.ID.String(), Kind: e.Kind.String(), Account: p.Account.String(), Unit: p.Unit,
		Amount: p.Amount, Balance: balance, Note: e.Note,
	}
	if e.Peer != (identity.AccountID{}) {
		r.Counterparty = e.Peer.String()
	}
	if e.Lane != (ledger.Lane{}) {
		r.Lease = e.Lane.String()
	}
	return r
}

// header names the columns. The names and their order are a documented contract; new ones are added at the end.
func header() []string {
	return []string{"time", "entry", "kind", "account", "counterparty", "lease", "unit", "amount", "balance", "note"}
}

// timeLayout is RFC 3339 with milliseconds, always of the same width.
const timeLayout = "2006-01-02T15:04:05.000Z"

// CSV writes rows as CSV (RFC 4180: UTF-8, CRLF, a header line). Amounts are decimals of the unit with a point and at most six places;
// a spreadsheet reads them as numbers. Text that a spreadsheet would take for a formula gets an apostrophe before it, and control
// characters become spaces. The first error of rows or of w ends it; what was written by then is not a whole export.
func CSV(w io.Writer, rows iter.Seq2[Row, error]) error {
	out := csv.NewWriter(w)
	out.UseCRLF = true
	if err := out.Write(header()); err != nil {
		return fmt.Errorf("export as CSV: %w", err)
	}
	for r, err := range rows {
		if err != nil {
			return fmt.Errorf("export as CSV: %w", err)
		}
		if err := out.Write([]string{
			r.Time.UTC().Format(timeLayout), text(r.EntryID), text(r.Kind), text(r.Account), text(r.Counterparty), text(r.Lease),
			text(string(r.Unit)), decimal(r.Amount), decimal(r.Balance), text(r.Note),
		}); err != nil {
			return fmt.Errorf("export as CSV: %w", err)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("export as CSV: %w", err)
	}
	return nil
}

// decimal writes micro-units as money writes amounts, with a minus if they are below 0.
func decimal(micro int64) string {
	if micro < 0 {
		return "-" + money.Micro(uint64(^micro)+1).String() // also right for the smallest int64, which has no positive twin
	}
	return money.Micro(micro).String()
}

// text makes a cell harmless: valid UTF-8, one line, and no formula (OWASP, CSV injection). A note is a stranger's text, and the owner
// opens the file in a spreadsheet.
func text(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if first := strings.TrimLeftFunc(s, unicode.IsSpace); first != "" && strings.ContainsRune("=+-@＝＋－＠", []rune(first)[0]) {
		return "'" + s
	}
	return s
}
