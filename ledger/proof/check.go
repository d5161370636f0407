package proof

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Results of a check, as of the check of a whole ledger. Commands have an exit code for each.
const (
	OK      = "ok"
	Behind  = "behind"  // sound, but something in it shows that there is newer
	Corrupt = "corrupt" // damaged, or records that do not fit each other
	Forged  = "forged"  // a record that does not fit its signature, or signatures that contradict each other
)

// finding is what is wrong with a record.
type finding struct{ result, record, detail string }

func (f *finding) Error() string { return fmt.Sprintf("%s: %s: %s", f.result, f.record, f.detail) }

func forged(record string, err error) error { return &finding{Forged, record, err.Error()} }

func corrupt(record, format string, args ...any) error {
	return &finding{Corrupt, record, fmt.Sprintf(format, args...)}
}

// head is a checkpoint that some record carries.
type head struct {
	history.Checkpoint
	record string
}

// check is one run.
type check struct {
	f           File
	role        ledger.Role // of the account that made the file
	delegations map[wire.Hash]identity.Delegation
	head        history.Checkpoint // of the account that made the file
	heads       []head
	newest      voucher.Signed
	received    *voucher.Signed                  // newest voucher that has the receipt
	settled     map[wire.Hash]voucher.Settlement // that both signed, by id of their entry
	cleared     map[wire.Hash]money.Micro        // amounts of circles that all signed, by id of their entry
	clearedFor  money.Micro                      // as Account counts it for the lane
	paid        paid
	booked      money.Micro
	most        money.Micro // that was allowed for; 0: nothing
	corrected   money.Micro // taken off by corrections
	agreedOn    bool        // a credit note that both signed says what the lane comes to
	all         bool        // the lane's entries are all here
	minor       *finding    // does not void the figures: the first is told
	out         statement.Proof
}

// Check checks a proof file with nothing but its bytes: every signature and delegation, the vouchers' order, the rate arithmetic, the
// receipt, both signatures of settlements, and every entry against the signed log. It names the first record that is wrong. Where the
// figures do not follow from good signatures it gives none. It never fails: what is no proof file is corrupt.
func Check(raw []byte) statement.Proof {
	body, damage := ofLease.split(raw)
	if body == nil {
		return statement.Proof{Result: Corrupt, Record: "file", Detail: damage.Error()}
	}
	f, err := decode(body)
	if err != nil {
		return statement.Proof{Result: Corrupt, Record: "file", Detail: cmp.Or(damage, err).Error()}
	}
	out := f.check()
	if damage == nil {
		return out
	}
	if out.Record == "" {
		out.Record = "file"
	}
	return statement.Proof{Result: Corrupt, Record: out.Record, Detail: strings.TrimSuffix(damage.Error()+"; "+out.Detail, "; ")}
}

func (f File) check() statement.Proof {
	c := &check{f: f, role: f.Channel.RoleOf(f.Account), delegations: map[wire.Hash]identity.Delegation{}, settled: map[wire.Hash]voucher.Settlement{}, cleared: map[wire.Hash]money.Micro{}}
	var wrong *finding
	for _, step := range []func() error{c.sides, c.vouchers, c.rates, c.receipt, c.evidence, c.allowance, c.settlements, c.clearings, c.log, c.cosigned, c.entries, c.attachments, c.figures} {
		err := step()
		if err == nil {
			continue
		}
		if !errors.As(err, &wrong) {
			wrong = &finding{Corrupt, "file", err.Error()}
		}
		return statement.Proof{Result: wrong.result, Record: wrong.record, Detail: wrong.detail}
	}
	c.out.Result = OK
	if c.minor != nil {
		c.out.Result, c.out.Record, c.out.Detail = c.minor.result, c.minor.record, c.minor.detail
	}
	return c.out
}

// note keeps the first thing that is wrong but leaves the figures standing; forgery comes before age.
func (c *check) note(f *finding) {
	if c.minor == nil || c.minor.result == Behind && f.result == Forged {
		c.minor = f
	}
}

func (c *check) proven(format string, args ...any) {
	c.out.Proven = append(c.out.Proven, fmt.Sprintf(format, args...))
}

func (c *check) unproven(format string, args ...any) {
	c.out.NotProven = append(c.out.NotProven, fmt.Sprintf(format, args...))
}

// sides checks the channel, and opens the delegations.
func (c *check) sides() error {
	if err := c.f.Channel.Validate(); err != nil {
		return corrupt("channel", "%v", err)
	}
	if c.role == 0 || c.f.Lane == (ledger.Lane{}) {
		return corrupt("channel", "account %s, which made the file, is no side of it, or there is no lane", c.f.Account.Short())
	}
	return c.open()
}

// open opens the delegations.
func (c *check) open() error {
	for i, raw := range c.f.Delegations {
		d, err := identity.OpenDelegation(raw)
		if err != nil {
			return forged(fmt.Sprintf("delegation %d", i), err)
		}
		c.delegations[identity.Hash(raw)] = d
	}
	return nil
}

// allowed checks that the account of h let its device do what power says, by the delegation of that hash.
func (c *check) allowed(record string, h identity.Header, delegation wire.Hash, power identity.Powers) error {
	d, ok := c.delegations[delegation]
	if !ok {
		return corrupt(record, "the delegation %s that it names is not in the file", delegation.Short())
	}
	if err := d.Allows(h, power); err != nil {
		return forged(record, err)
	}
	return nil
}

// carries keeps the checkpoint that a record of a device carries.
func (c *check) carries(record string, note []byte, device identity.PeerID) error {
	cp, err := history.Open(note, device)
	if err != nil {
		return forged("checkpoint in "+record, err)
	}
	c.heads = append(c.heads, head{cp, record})
	return nil
}

// figures sums up.
func (c *check) figures() error {
	out := &c.out
	out.Lease, out.Renter, out.Provider = c.f.Lane.String(), c.f.Channel.Renter.String(), c.f.Channel.Provider.String()
	out.MadeBy, out.Unit = c.f.Account.String(), string(c.f.Channel.Unit)
	out.Promised, out.Sequence, out.Voucher = c.newest.Amount.String(), c.newest.Seq, c.newest.Hash.String()
	if c.received != nil {
		out.Received = c.received.Amount.String()
	}
	most, err := c.comesTo(c.newest.Amount)
	if err != nil {
		return err
	}
	least := min(c.newest.Amount-c.corrected, most)
	if c.all {
		least = c.booked
		out.Booked = c.booked.String()
	}
	if c.all && c.booked < most {
		c.unproven("that all of %v is owed: the books of account %s count %v, as for a lease that ended with a lower charge than was promised",
			c.newest.Amount, c.f.Account.Short(), c.booked)
	}
	ceiling := most
	if !c.agreedOn { // what was allowed for an absence is no more than what both agreed on afterwards
		ceiling = max(most, c.most)
	}
	low, high := c.paid.between(c.f.Lane, most)
	out.PaidAtLeast, out.PaidAtMost = low.String(), high.String()
	out.LeftAtLeast, out.LeftAtMost = (least - min(least, high)).String(), (ceiling - low).String()
	c.unproven("that no newer voucher exists: each side may hold one that raises the amount")
	c.unproven("payments that do not list this lease, such as prepaid ones")
	return nil
}
