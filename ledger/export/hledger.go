package export

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
)

// Hledger writes entries as a journal that `hledger check --strict` accepts: every commodity and account is declared, amounts have all
// six decimals, and the journal ends with an assertion of each account's balance, which hledger checks to the micro-unit. A transaction
// has the entry's UTC day, its kind and counterparty, and as tags the entry's id, its time, lease and reference. The file is plain
// ASCII, since hledger reads others only under some locales; in references, what is not a letter, a digit or one of " -._/#+=@" is
// percent-encoded. The first error of entries or of w ends it.
func Hledger(w io.Writer, entries iter.Seq2[ledger.Entry, error]) error {
	out, b := bufio.NewWriter(w), newBook()
	fmt.Fprint(out, "; a gpufair ledger; amounts are exact\ndecimal-mark .\n")
	err := each(entries, func(e ledger.Entry) error { return hledgerEntry(out, b, e) })
	if err != nil {
		return fmt.Errorf("export for hledger: %w", err)
	}
	if len(b.order) > 0 {
		fmt.Fprintf(out, "\n%s * balances by gpufair's own sums\n", b.after())
	}
	for _, at := range b.order {
		fmt.Fprintf(out, "    %s  0.000000 %s = %s %s\n", at.name, at.unit, exact(b.balances[at]), at.unit)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("export for hledger: %w", err)
	}
	return nil
}

func hledgerEntry(out *bufio.Writer, b *book, e ledger.Entry) error {
	var declared, postings strings.Builder
	for _, p := range e.Postings {
		name, newAccount, newUnit, err := b.post(e, p)
		if err != nil {
			return err
		}
		if newUnit {
			fmt.Fprintf(&declared, "commodity 1000.000000 %s\n", p.Unit)
		}
		if newAccount {
			fmt.Fprintf(&declared, "account %s\n", name)
		}
		fmt.Fprintf(&postings, "    %s  %s %s\n", name, exact(p.Amount), p.Unit)
	}
	fmt.Fprintf(out, "%s\n%s * %s", declared.String(), b.day(e), e.Kind)
	if !e.Peer.IsZero() {
		fmt.Fprintf(out, " %s", e.Peer)
	}
	fmt.Fprintf(out, "\n    ; entry:%s\n    ; time:%s\n", e.ID, time.UnixMilli(e.Time).UTC().Format(timeLayout))
	if e.Lane != (ledger.Lane{}) {
		fmt.Fprintf(out, "    ; lease:%s\n", e.Lane)
	}
	if e.Note != "" {
		fmt.Fprintf(out, "    ; reference:%s\n", percent(e.Note))
	}
	_, err := out.WriteString(postings.String())
	return err
}

// percent encodes (RFC 3986, 2.1) each byte that could end, split or change the meaning of a tag's value: a reference is a stranger's text.
func percent(s string) string {
	var out strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(" -._/#+=@", c) >= 0:
			out.WriteByte(c)
		default:
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}
