package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/rail"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// RailConfig is what both daemons' config files say of the program that handles payments. Embed it in the table [settlement].
type RailConfig struct {
	Command   []string     `toml:"command" comment:"program that handles payments outside, with its arguments: [\"/usr/local/bin/my-invoices\"]; no shell reads them.\ndocs/settlement.md has the contract and an example. Empty: people do it by hand"`
	User      string       `toml:"user" comment:"as whom it runs if this daemon is root's; empty: nobody. Never as root"`
	TimeLimit cli.Duration `toml:"time_limit" comment:"after which it is killed, 1s to 10m"`
}

// DefaultRail is that no program is there.
func DefaultRail() RailConfig {
	return RailConfig{Command: []string{}, TimeLimit: cli.Duration(rail.DefaultTimeout)}
}

// command is the same as package rail wants it.
func (c RailConfig) command() rail.Command {
	r := rail.Command{Args: c.Command, User: c.User, Timeout: c.TimeLimit.Std()}
	if runtime.GOOS == "windows" { // where no program runs without these
		for _, name := range []string{"SystemRoot", "SystemDrive", "PATH", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP", "TMP"} {
			if v, ok := os.LookupEnv(name); ok {
				r.Env = append(r.Env, name+"="+v)
			}
		}
	}
	return r
}

// Validate says what is wrong, by key.
func (c RailConfig) Validate() error {
	if d := c.TimeLimit.Std(); d < rail.MinTimeout || d > rail.MaxTimeout {
		return cli.KeyErrorf("settlement.time_limit", "%v: want %v to %v", c.TimeLimit, cli.Duration(rail.MinTimeout), cli.Duration(rail.MaxTimeout))
	}
	if len(c.Command) == 0 {
		return nil
	}
	if err := c.command().Validate(); err != nil {
		return &cli.KeyError{Key: "settlement.command", Err: err}
	}
	return nil
}

// Check says whether the program and its user are on this machine, by key.
func (c RailConfig) Check() error {
	if len(c.Command) == 0 {
		return nil
	}
	err := c.command().Check()
	var nobody user.UnknownUserError
	switch {
	case errors.As(err, &nobody):
		return cli.KeyErrorf("settlement.user", "there is no user %q here, as whom settlement.command is to run: make it, or name another", string(nobody))
	case err != nil:
		return &cli.KeyError{Key: "settlement.command", Err: err}
	}
	return nil
}

// openBilling makes what drives the owner's program. It comes after settlements and claims.
func (b *Base) openBilling() (err error) {
	c := settle.BillingConfig{
		Network: b.Dealing, Books: b.Books, Settle: b.Settle, Claims: b.Claims, Role: b.Role, Methods: b.Methods, After: b.InvoiceAfter,
		Log: b.Log.With("part", "payments"),
	}
	if len(b.Rail.Command) > 0 {
		c.Rail = b.Rail.command()
	}
	b.Billing, err = settle.NewBilling(c)
	return err
}

// Paying is the part that drives the owner's program, and asks again for signatures that are missing.
func (b *Base) Paying() Part {
	return Part{Name: "payments", Run: func(ctx context.Context) error { return b.Billing.Run(ctx, b.deviceOf) }}
}

// maxWarnings of one kind are told at a glance; `ledger owed` and `settle list` have all.
const maxWarnings = 3

// Warnings says what of the ledger asks for its owner's attention, in lines for people: who is late, of what one was reminded, payments that
// nobody signed for, and what the program for payments can't do. now is for the ages.
func (b *Base) Warnings(ctx context.Context, now time.Time) (out []string, err error) {
	var late, waiting []string
	err = b.Books.View(ctx, func(r *books.Reader) error {
		err := r.EachDue(func(role ledger.Role, u money.Unit, peer identity.AccountID, a books.Account, m books.Reminder) error {
			since := time.UnixMilli(a.DueAt).Local().Format(time.DateOnly)
			switch {
			case role == ledger.AsProvider && a.Late:
				late = append(late, fmt.Sprintf("%s is late with a payment in %s since %s, %s sent: `ledger owed`", peer, u, since, cli.Count(m.Number, "reminder")))
			case role == ledger.AsRenter && a.Late:
				late = append(late, fmt.Sprintf("you are late with a payment in %s to %s since %s: pay, then `settle %s`", u, peer, since, peer))
			case role == ledger.AsRenter && m.Number > 0:
				late = append(late, fmt.Sprintf("%s reminded you of a payment in %s that is due since %s (%s)", peer, u, since, cli.Count(m.Number, "reminder")))
			}
			return nil
		})
		if err != nil {
			return err
		}
		return r.Unsigned(books.Proposed, identity.AccountID{}, func(id wire.Hash, s voucher.Settlement) error {
			if books.Overdue(s.Time, now) {
				waiting = append(waiting, fmt.Sprintf("%s has not signed for %v %s since %s: `settle proof %s` shows to others that you did", s.Channel.Peer(b.Books.Self()),
					s.Amount, s.Channel.Unit, time.UnixMilli(s.Time).Local().Format(time.DateOnly), id.Short()))
			}
			return nil
		})
	})
	var stuck []string
	if b.Billing != nil {
		for _, t := range b.Billing.Troubles() {
			stuck = append(stuck, t.Text())
		}
	}
	return append(append(few(late, "payments that are due"), few(waiting, "payments that nobody signed for")...), few(stuck, "payments that do not go on")...), err
}

// few are the first of the lines, and how many more there are.
func few(lines []string, what string) []string {
	if more := len(lines) - maxWarnings; more > 0 {
		return append(lines[:maxWarnings:maxWarnings], fmt.Sprintf("and %d more %s", more, what))
	}
	return lines
}
