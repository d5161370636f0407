package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/terms"
	"github.com/gpufair/gpufair/ledger/statement"
)

// ledgerOwed is the verb `ledger owed`.
func (d *Daemon) ledgerOwed() *cobra.Command {
	return &cobra.Command{
		Use: "owed", Short: "what is owed, since when, and what is overdue",
		Long: "A lease's debt is due after its end, by the terms of its offer (`settlement.due_days` of the owner's settings). Payments settle the\n" +
			"oldest debts first. A day after its due time a payment is late: until it comes, the account gets no credit. The owner's daemon\n" +
			"reminds the renter's agent at the due time and then weekly, whenever both are connected.",
		Example: fmt.Sprintf("  %s ledger owed\n  %s ledger owed --json", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[statement.Owed](cmd.Context(), d, "show what is owed", "/ledger/owed")
			if err != nil {
				return err
			}
			if d.JSON {
				for _, o := range v.Owed {
					if err := d.PrintJSON(o); err != nil {
						return err
					}
				}
				return nil
			}
			now := time.Now()
			for _, t := range v.Troubles {
				d.Note("settlement.command can't %s of %s: %s (%s, again %s)", t.What, t.Account, cli.Clean(t.Error), cli.Count(t.Tries, "try"), d.Time(t.Next, now))
			}
			d.noteInvoices(v.Owed, now)
			return d.printOwed(v.Owed, now)
		},
	}
}

// printOwed prints one table for what I am owed and one for what I owe.
func (d *Daemon) printOwed(list []statement.Debt, now time.Time) error {
	if len(list) == 0 {
		d.Note("nobody owes anything")
	}
	printed := false
	for _, part := range []struct{ role, who string }{{"provider", "OWES ME"}, {"renter", "I OWE"}} {
		of := slices.DeleteFunc(slices.Clone(list), func(o statement.Debt) bool { return o.Role != part.role })
		if len(of) == 0 {
			continue
		}
		if printed {
			fmt.Fprintln(d.Out)
		}
		printed = true
		if err := d.owedTable(part.who, of, now).Print(); err != nil {
			return err
		}
	}
	return nil
}

// noteInvoices says how to pay what came as an invoice.
func (d *Daemon) noteInvoices(list []statement.Debt, now time.Time) {
	for _, o := range list {
		i := o.Invoice
		if o.Role != "renter" || i == nil || i.State != "open" {
			continue
		}
		how := ""
		if i.Pay != "" {
			how = ", to " + cli.Clean(i.Pay)
		}
		d.Note("%s asks for %s %s by %s%s, due %s. Once it is paid: `%s settle %s --amount %s --method %s --reference %s`", o.Account, i.Amount, o.Unit, cli.Clean(i.Method),
			how, d.maybe(i.DueAt, now), d.Name, o.Account, i.Amount, quote(i.Method), quote(i.Reference))
	}
}

// quote is a word for a shell's command line.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(cli.Clean(s), "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// invoice is the newest invoice in a cell.
func invoice(o statement.Debt) any {
	switch {
	case o.Trouble != "":
		return cli.Cell{Text: "stuck", Colour: cli.Bad}
	case o.Invoice == nil:
		return "-"
	}
	return strings.TrimSpace(o.Invoice.Reference + " " + o.Invoice.State)
}

// owedTable has a column of an age only if something is that old.
func (d *Daemon) owedTable(who string, list []statement.Debt, now time.Time) *cli.Table {
	type column struct {
		header string
		cell   func(statement.Debt) any
	}
	columns := []column{
		{who, func(o statement.Debt) any { return o.Account }},
		{">OWED", func(o statement.Debt) any { return o.Owed }},
		{"UNIT", func(o statement.Debt) any { return o.Unit }},
		{"SINCE", func(o statement.Debt) any { return d.maybe(o.Since, now) }},
		{"DUE", func(o statement.Debt) any { return due(o, d.maybe(o.DueAt, now)) }},
	}
	for _, c := range []struct {
		header string
		amount func(statement.Debt) string
	}{
		{">NOT DUE", func(o statement.Debt) string { return o.NotDue }},
		{">DUE NOW", func(o statement.Debt) string { return o.Due }},
		{">1-30 D", func(o statement.Debt) string { return o.Overdue30 }},
		{">31-60 D", func(o statement.Debt) string { return o.Overdue60 }},
		{">61-90 D", func(o statement.Debt) string { return o.Overdue90 }},
		{">OVER 90 D", func(o statement.Debt) string { return o.Overdue }},
		{">PREPAID", func(o statement.Debt) string { return o.Prepaid }},
		{">WRITTEN OFF", func(o statement.Debt) string { return o.WrittenOff }},
	} {
		if slices.ContainsFunc(list, func(o statement.Debt) bool { return c.amount(o) != "0" }) {
			columns = append(columns, column{c.header, func(o statement.Debt) any { return c.amount(o) }})
		}
	}
	if slices.ContainsFunc(list, func(o statement.Debt) bool { return o.Invoice != nil || o.Trouble != "" }) {
		columns = append(columns, column{"INVOICE", invoice})
	}
	columns = append(columns, column{"LAST PAID", func(o statement.Debt) any { return d.maybe(o.LastPayment, now) }},
		column{">REMINDED", func(o statement.Debt) any { return o.Reminders }})
	var headers []string
	for _, c := range columns {
		headers = append(headers, c.header)
	}
	tab := d.Table(headers...)
	for _, o := range list {
		var cells []any
		for _, c := range columns {
			cells = append(cells, c.cell(o))
		}
		tab.Row(cells...)
	}
	return tab
}

// due is when a debt is due, for people.
func due(o statement.Debt, at string) any {
	if o.Late {
		return cli.Cell{Text: at + " late", Colour: cli.Bad}
	}
	return at
}

// maybe is a time that may not be, for people.
func (d *Daemon) maybe(t *time.Time, now time.Time) string {
	if t == nil {
		return "-"
	}
	return d.Time(*t, now)
}

// noteDue says on stderr what of the ledger asks for attention: payments that I am late with or was reminded of.
func (d *Daemon) noteDue(list []statement.Debt, now time.Time) {
	for _, o := range list {
		switch {
		case o.Role == "renter" && o.Late:
			d.Note("you are late with a payment to %s since %s: no provider lends to whom is late. Pay, then `%s settle %s`", o.Account,
				d.maybe(o.DueAt, now), d.Name, o.Account)
		case o.Role == "renter" && o.Reminders > 0:
			d.Note("%s reminded you of a payment that is due since %s (%s)", o.Account, d.maybe(o.DueAt, now), cli.Count(o.Reminders, "reminder"))
		case o.Role == "provider" && o.Late:
			d.Note("%s is late since %s: `%s ledger owed`", o.Account, d.maybe(o.DueAt, now), d.Name)
		}
	}
}

// leaseOr wants a lease, or with the account's flag none.
func leaseOr(account *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *account == "" {
			return exactly("the id of a lease, or the start of one", 1)(cmd, args)
		}
		if len(args) > 0 {
			return cli.Usagef("give one of them", "a lease and --account together")
		}
		return nil
	}
}

// proveDebt writes a folder with the proof of each unpaid lease of an account.
func (d *Daemon) proveDebt(ctx context.Context, account, folder string) error {
	v, err := get[statement.Claim](ctx, d, "prove the debt of "+short(account), "/ledger/accounts/"+url.PathEscape(account)+"/unpaid")
	if err != nil {
		return err
	}
	if len(v.Leases) == 0 {
		return cli.Fail(cli.ExitNotFound, "prove the debt of "+short(account), errNothingUnpaid, "`ledger owed` shows who owes what")
	}
	if folder == "" {
		folder = "debt-" + short(account)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return cli.Fail(cli.ExitSystem, "write the proof of a debt", err, "give with -o the name of a folder that is not there yet")
	}
	tab := d.Table("LEASE", "I AM THE", ">UNPAID", "UNIT", "SINCE", "DUE", "PROOF", "FILE")
	worst := "ok"
	for _, l := range v.Leases {
		raw, err := d.fetchProof(ctx, "prove lease "+l.Lease, leaseProof(l.Lease))
		if err != nil {
			return err
		}
		file := filepath.Join(folder, "lease-"+short(l.Lease)+".proof")
		if err := writeNew(file, raw); err != nil {
			return cli.Fail(cli.ExitSystem, "write the proof of lease "+short(l.Lease), err, "")
		}
		result := terms.Check(raw).Result
		if result != "ok" {
			worst = result
		}
		now := time.Now()
		tab.Row(short(l.Lease), l.Role, l.Amount, l.Unit, d.Time(l.Since, now), d.Time(l.DueAt, now), result, file)
		if d.JSON {
			if err := d.PrintJSON(l); err != nil {
				return err
			}
		}
	}
	d.Note("wrote %s into %s; who gets them runs on each: %s ledger verify FILE", cli.Count(len(v.Leases), "proof"), cli.Clean(folder), d.Name)
	if d.JSON {
		return verdict(worst)
	}
	if err := tab.Print(); err != nil {
		return err
	}
	return verdict(worst)
}

var errNothingUnpaid = errors.New("no lease with that account is unpaid")

// ledgerWriteOff is the verb `ledger write-off`.
func (d *Daemon) ledgerWriteOff() *cobra.Command {
	var req statement.WriteOffRequest
	c := &cobra.Command{
		Use: "write-off ACCOUNT", Short: "give up hope for what an account owes on leases that have ended", Args: exactly("an account", 1),
		Long: "It becomes a bad debt: it counts against the limit for all strangers, and the account gets no credit. The account still owes it, and is\n" +
			"not told: when it pays after all, the ledger takes as much of the write-off back. `ledger proof --account` proves the debt to others.\n" +
			"While some of it is not due yet this is refused but with --force.",
		Example: fmt.Sprintf("  %s ledger write-off gf… --reason 'no answer since May'", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Account = args[0]
			v, err := send[statement.WriteOff](cmd.Context(), d, "write off what "+short(args[0])+" owes", http.MethodPost, "/ledger/write-off", req)
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			return d.Pairs([2]string{"account", v.Account}, [2]string{"written off", v.Amount + " " + v.Unit}, [2]string{"reason", cli.Clean(v.Reason)})
		},
	}
	c.Flags().StringVar(&req.Reason, "reason", "", "why, for your own ledger")
	c.Flags().StringVar(&req.Unit, "unit", "", "unit of the debt (default that of the settings)")
	c.Flags().BoolVar(&req.Force, "force", false, "although some of it is not due yet")
	return c
}
