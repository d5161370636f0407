package export

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"

	"github.com/gpufair/gpufair/ledger"
)

// Beancount writes entries as a file that bean-check accepts: every commodity and account is opened (in 1970, so that no clock is before
// it), amounts have all six decimals, and the file ends with a balance of each account at the tolerance ~ 0, since without one beancount
// forgives a micro-unit. A transaction has the entry's UTC day, the counterparty as payee and the kind as narration; its metadata are the
// entry's id, its time and the reference, and a link ties the transactions of a lease together. The first error of entries or of w ends it.
func Beancount(w io.Writer, entries iter.Seq2[ledger.Entry, error]) error {
	out, b := bufio.NewWriter(w), newBook()
	fmt.Fprint(out, "; a gpufair ledger; amounts are exact\noption \"title\" \"gpufair ledger\"\n")
	err := each(entries, func(e ledger.Entry) error { return beancountEntry(out, b, e) })
	if err != nil {
		return fmt.Errorf("export for beancount: %w", err)
	}
	fmt.Fprintln(out)
	for _, at := range b.order {
		fmt.Fprintf(out, "%s balance %s  %s ~ 0 %s\n", b.after(), at.name, exact(b.balances[at]), at.unit)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("export for beancount: %w", err)
	}
	return nil
}

func beancountEntry(out *bufio.Writer, b *book, e ledger.Entry) error {
	var declared, postings strings.Builder
	since := epoch.Format(dayLayout)
	for _, p := range e.Postings {
		name, newAccount, newUnit, err := b.post(e, p)
		if err != nil {
			return err
		}
		if newUnit {
			fmt.Fprintf(&declared, "%s commodity %s\n", since, p.Unit)
		}
		if newAccount {
			fmt.Fprintf(&declared, "%s open %s\n", since, name)
		}
		fmt.Fprintf(&postings, "  %s  %s %s\n", name, exact(p.Amount), p.Unit)
	}
	payee := ""
	if !e.Peer.IsZero() {
		payee = e.Peer.String()
	}
	fmt.Fprintf(out, "%s\n%s * %s %s", declared.String(), b.day(e), quoted(payee), quoted(e.Kind.String()))
	if e.Lane != (ledger.Lane{}) {
		fmt.Fprintf(out, " ^lease-%s", e.Lane)
	}
	fmt.Fprintf(out, "\n  entry: %s\n  time: %s\n", quoted(e.ID.String()), quoted(time.UnixMilli(e.Time).UTC().Format(timeLayout)))
	if e.Note != "" {
		fmt.Fprintf(out, "  reference: %s\n", quoted(e.Note))
	}
	_, err := out.WriteString(postings.String())
	return err
}

// quoted writes a string of beancount's: one line of valid UTF-8 with quotes and backslashes escaped. Control characters and line
// separators become spaces.
func quoted(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
