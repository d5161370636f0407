package verbs

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
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
			return d.printOwed(v.Owed, time.Now())
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
		{">NOT DUE", func(o statement.Debt) string { return o.NotDue }}, {">DUE NOW", func(o statement.Debt) string { return o.Due }},
		{">1-30 D", func(o statement.Debt) string { return o.Overdue30 }}, {">31-60 D", func(o statement.Debt) string { return o.Overdue60 }},
		{">61-90 D", func(o statement.Debt) string { return o.Overdue90 }}, {">OVER 90 D", func(o statement.Debt) string { return o.Overdue }},
		{">PREPAID", func(o statement.Debt) string { return o.Prepaid }}, {">WRITTEN OFF", func(o statement.Debt) string { return o.WrittenOff }},
	} {
		if slices.ContainsFunc(list, func(o statement.Debt) bool { return c.amount(o) != "0" }) {
			columns = append(columns, column{c.header, func(o statement.Debt) any { return c.amount(o) }})
		}
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
