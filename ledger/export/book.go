package export

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

// place is one account in one unit, as bookkeeping programs call it.
type place struct {
	name string
	unit money.Unit
}

// book sums up what a bookkeeping program will have read so far, so that the file can end with the balances that it must come to.
type book struct {
	balances map[place]int64
	order    []place // in order of first use
	last     time.Time
}

func newBook() *book { return &book{balances: map[place]int64{}, last: epoch} }

// Days of the files. Beancount knows no year 10000, and a day must be left for the balances; a clock that was never set says 1970.
var (
	epoch  = time.Unix(0, 0).UTC()
	newest = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC)
)

const dayLayout = "2006-01-02"

// day is the UTC day of an entry.
func (b *book) day(e ledger.Entry) string {
	at := time.UnixMilli(e.Time).UTC()
	if at.Before(epoch) {
		at = epoch
	}
	if at.After(newest) {
		at = newest
	}
	if at.After(b.last) {
		b.last = at
	}
	return at.Format(dayLayout)
}

// after is the day after the last one.
func (b *book) after() string { return b.last.AddDate(0, 0, 1).Format(dayLayout) }

// post adds a posting and gives the name of its account, and whether account and unit are new here.
func (b *book) post(e ledger.Entry, p ledger.Posting) (name string, newAccount, newUnit bool, err error) {
	at := place{accountName(p.Account), p.Unit}
	was, known := b.balances[at]
	newAccount, newUnit = !known, !known
	if !known {
		for _, o := range b.order {
			newAccount, newUnit = newAccount && o.name != at.name, newUnit && o.unit != at.unit
		}
		b.order = append(b.order, at)
	}
	if b.balances[at], err = ledger.AddSigned(was, p.Amount); err != nil {
		return "", false, false, fmt.Errorf("entry %s: balance of %s: %w", e.ID.Short(), p.Account, err)
	}
	return at.name, newAccount, newUnit, nil
}

// rootName is the start of an account's name by its kind, in the classes that bookkeeping programs know, and whether accounts of the kind
// are for somebody or some method. Holds are no assets yet: they stand under equity, where they sum to zero.
func rootName(k ledger.AccountKind) (name string, of bool) {
	switch k {
	case ledger.Receivable:
		return "Assets:Receivable", true
	case ledger.Payable:
		return "Liabilities:Payable", true
	case ledger.Hold:
		return "Equity:Hold", true
	case ledger.Committed:
		return "Equity:Committed", true
	case ledger.External:
		return "Assets:External", true
	case ledger.BadDebt:
		return "Expenses:BadDebt", true
	case ledger.Pending:
		return "Equity:Pending", false
	case ledger.Income:
		return "Income:Usage", false
	case ledger.Expense:
		return "Expenses:Usage", false
	case ledger.Opening:
		return "Equity:Opening", false
	case ledger.Clearing:
		return "Equity:Clearing", false
	}
	return fmt.Sprintf("Equity:Kind%d", uint8(k)), false
}

// accountName gives an account a name that hledger and beancount both take: words of letters, digits and dashes after capitals, with
// colons between them. Two accounts never get one name, and none is above another, since beancount counts an account with those below it.
func accountName(a ledger.Account) string {
	root, of := rootName(a.Kind)
	whom := a.Method
	if !a.Peer.IsZero() {
		whom = a.Peer.String()
		if a.Method != "" {
			whom += "/" + a.Method
		}
	}
	switch {
	case whom != "" && of:
		return root + ":" + word(whom)
	case whom != "": // the books make none of these two
		return root + "-Of:" + word(whom)
	case of:
		return root + "-None"
	}
	return root
}

// word writes s, which may be a stranger's text, as one word of an account's name: small letters and digits as they are but for a first
// capital, every other byte as a dash and two hex digits. No two texts give one word.
func word(s string) string {
	var out strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z' && i == 0:
			out.WriteByte(c - 'a' + 'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			out.WriteByte(c)
		case i == 0:
			fmt.Fprintf(&out, "X--%02x", c) // two dashes: no other word has them
		default:
			fmt.Fprintf(&out, "-%02x", c)
		}
	}
	return out.String()
}

// exact writes micro-units with all six decimals: the number of decimals is what tells a bookkeeping program how exact sums must be.
func exact(micro int64) string {
	s := decimal(micro)
	whole, frac, _ := strings.Cut(s, ".")
	return whole + "." + frac + strings.Repeat("0", 6-len(frac))
}

// each calls f with every entry until one of both fails.
func each(entries iter.Seq2[ledger.Entry, error], f func(ledger.Entry) error) error {
	for e, err := range entries {
		if err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}
