// Package terms reads the market's signed records in a proof file: what was agreed and how it ended, in words, and whether the ledger's
// figures fit it. It stands beside the check of package proof, which knows no market, and checks only what both together say. It needs
// nothing but the file, and refuses to know who asks.
package terms

import (
	"fmt"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Check is the check of a proof file with all that is in it: [proof.Check], and beyond it the market's records in words and their
// agreement with the vouchers. It never fails: what is wrong is in the result.
func Check(raw []byte) statement.Proof {
	v := proof.Check(raw)
	if v.Lease == "" {
		return v // no figure stands
	}
	f, err := proof.Decode(raw)
	if err != nil {
		return v // it was read a moment ago
	}
	r := reading{f: f, out: v}
	for i, a := range f.Attachments {
		says, err := r.read(a)
		if err != nil {
			return wrong(proof.Corrupt, fmt.Sprintf("attachment %d (%q)", i, a.Name), err.Error())
		}
		r.out.Attachments[i].Says = says
	}
	for _, step := range []func() *statement.Proof{r.agreed, r.rated, r.ended, r.used} {
		if bad := step(); bad != nil {
			return *bad
		}
	}
	return r.out
}

// wrong is a result without figures.
func wrong(result, record, detail string) statement.Proof {
	return statement.Proof{Result: result, Record: record, Detail: detail}
}

func forged(record, format string, args ...any) *statement.Proof {
	p := wrong(proof.Forged, record, fmt.Sprintf(format, args...))
	return &p
}

// reading is a file being read.
type reading struct {
	f      proof.File
	out    statement.Proof
	offer  *market.Offer
	hash   string // of the offer
	accept *market.Accept
	lease  *market.Lease
	end    *market.End
}

// read opens one record and puts it in words.
func (r *reading) read(a proof.Attachment) (string, error) {
	switch identity.Domain(a.Name) {
	case market.DomainOffer:
		o, err := market.OpenOffer(a.Data)
		r.offer, r.hash = &o, identity.Hash(a.Data).String()
		return fmt.Sprintf("the provider's offer of %s with %s in %s", when(o.IssuedAt), cli.Count(len(o.Lots), "lot"), o.Unit), err
	case market.DomainAccept:
		x, err := market.OpenAccept(a.Data)
		r.accept = &x
		return fmt.Sprintf("the renter orders %d of lot %d at %v %s an hour each, for at most %s", x.Quantity, x.Lot, x.Rate, x.Unit, seconds(x.Term)), err
	case market.DomainLease:
		l, err := market.OpenLease(a.Data)
		r.lease = &l
		return fmt.Sprintf("the provider lets %s for that order, and holds %v of the renter's credit", cli.Count(len(l.Slots), "device"), l.Hold), err
	case market.DomainReady:
		_, err := market.OpenReady(a.Data)
		return "the renter has the lease", err
	case market.DomainRelease:
		x, err := market.OpenRelease(a.Data)
		return fmt.Sprintf("the renter gives the lease up (%s); its last beat was %d, which claimed %v", x.Reason.Clean().Code, x.Beat, x.Charge), err
	case market.DomainEnd:
		e, err := market.OpenEnd(a.Data)
		r.end = &e
		return fmt.Sprintf("the provider ends the lease (%s) at %v in all for %v of running%s", e.Reason.Clean().Code, e.Charge, millis(e.Billable), exit(e.Exit)), err
	case voucher.DomainDispute:
		d, err := voucher.OpenDispute(a.Data)
		return fmt.Sprintf("the %s disputes the lease (%q), with %v signed by both, until %s", r.side(d.Account), d.Reason, d.Amount, when(d.Until)), err
	case voucher.DomainCreditNote:
		n, err := voucher.OpenCreditNote(a.Data)
		does := "proposes"
		if !n.Proposal.IsZero() {
			does = "agrees"
		}
		return fmt.Sprintf("the %s %s that the lease comes to %v", r.side(n.Account), does, n.Amount), err
	}
	return "", nil // of a wing that this release does not know: signed, about the lease, and not read
}

// side names a side of the lease by its account.
func (r *reading) side(a identity.AccountID) string { return r.f.Channel.RoleOf(a).String() }

func when(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func seconds(s uint32) time.Duration { return time.Duration(s) * time.Second }

func millis(ms uint64) time.Duration { return time.Duration(min(ms, 1<<40)) * time.Millisecond }

func exit(e *market.Exit) string {
	switch {
	case e == nil:
		return ""
	case e.OOM:
		return ", out of memory"
	case e.Signal != "":
		return ", by signal " + e.Signal
	}
	return fmt.Sprintf(", exit code %d", e.Code)
}

// agreed checks that accept, lease, offer and channel name each other.
func (r *reading) agreed() *statement.Proof {
	c := r.f.Channel
	if a := r.accept; a != nil {
		switch {
		case a.Account != c.Renter || a.Provider != c.Provider || a.Unit != c.Unit:
			return forged("accept", "it is between other accounts, or in another unit, than the vouchers")
		case ledger.Lane(a.ID()) != r.f.Lane:
			return forged("accept", "it makes lease %s, the file is about %s", a.ID().Short(), r.f.Lane.Short())
		}
		if first, err := voucher.Open(r.f.Vouchers[0]); err == nil && a.Voucher != first.Hash {
			return forged("accept", "it names another opening voucher than the one in the file")
		}
	}
	if r.lease != nil && r.lease.Account != c.Provider {
		return forged("lease", "account %s signed it, which is not the provider", r.lease.Account)
	}
	if r.offer == nil || r.accept == nil || r.accept.Offer.String() != r.hash {
		return nil
	}
	lot, ok := r.offer.Lot(r.accept.Lot)
	switch {
	case !ok:
		return forged("accept", "the offer has no lot %d", r.accept.Lot)
	case r.accept.Rate < lot.Price:
		return forged("accept", "it says %v an hour, the offer asks %v", r.accept.Rate, lot.Price)
	}
	r.proven("the order is at the offer's price or above: %v %s an hour for each of %d devices", r.accept.Rate, r.accept.Unit, r.accept.Quantity)
	return nil
}

// rated checks that the vouchers were computed at the rate that both signed.
func (r *reading) rated() *statement.Proof {
	if r.accept == nil || len(r.f.Segments) == 0 {
		return nil
	}
	for i, s := range r.f.Segments {
		if s.Rate != r.accept.Rate || s.Devices != r.accept.Quantity {
			return forged("rate segments", "the newest voucher counts %d devices at %v an hour in segment %d, the order that account %s signed says %d at %v",
				s.Devices, s.Rate, i, r.accept.Account, r.accept.Quantity, r.accept.Rate)
		}
	}
	r.proven("every hour was counted at the agreed rate, %v: order and rate segments", r.accept.Rate)
	if term := uint64(r.accept.Term) * 1000; meter.Billable(r.f.Segments) > meter.Tolerance(term) {
		return forged("rate segments", "they come to %v, the order is for at most %s", millis(meter.Billable(r.f.Segments)), seconds(r.accept.Term))
	}
	return nil
}

// ended checks the provider's end against the rate, and says what it adds to the vouchers.
func (r *reading) ended() *statement.Proof {
	e := r.end
	if e == nil {
		return nil
	}
	if e.Account != r.f.Channel.Provider {
		return forged("end", "account %s signed it, which is not the provider", e.Account)
	}
	if r.accept != nil {
		most, err := money.Charge(r.accept.Rate, r.accept.Quantity, e.Billable)
		if err != nil || e.Charge > most {
			return forged("end", "account %s charges %v for %v, which at the agreed %v comes to %v", e.Account, e.Charge, millis(e.Billable), r.accept.Rate, most)
		}
		r.proven("the end's charge is within its own time at the agreed rate, %v for %v", most, millis(e.Billable))
	}
	promised, err := money.Parse(r.out.Promised)
	if err != nil {
		return nil // it was written a moment ago
	}
	r.cap(e.Charge)
	allowed, err := money.Parse(r.out.Allowed)
	switch {
	case e.Charge > promised && err == nil && e.Charge <= allowed:
		r.proven("the end's charge, %v, is within what account %s promised to sign for after its absence", e.Charge, r.f.Channel.Renter)
	case e.Charge < promised:
		r.proven("account %s asks for no more than %v in all: signature of its end", e.Account, e.Charge)
	case e.Charge > promised:
		r.unproven("that %v is owed, as account %s says in its end: account %s promised %v", e.Charge, e.Account, r.f.Channel.Renter, promised)
	default:
		r.proven("both sides say the same of it: the end charges what the newest voucher promises")
	}
	return nil
}

// cap says that no more is owed than the provider itself asks for.
func (r *reading) cap(charge money.Micro) {
	left, err1 := money.Parse(r.out.LeftAtMost)
	paid, err2 := money.Parse(r.out.PaidAtLeast)
	if err1 == nil && err2 == nil {
		r.out.LeftAtMost = min(left, charge-min(charge, paid)).String()
	}
}

// used puts the evidence of the newest receipt in words.
func (r *reading) used() *statement.Proof {
	if len(r.f.Evidence) == 0 {
		return nil
	}
	e, err := work.OpenEvidence(r.f.Evidence)
	if err != nil {
		return forged("evidence", "account %s signed for what can't be read: %v", r.f.Channel.Provider, err)
	}
	r.out.Evidence = fmt.Sprintf("from %s to %s, %v billed in all: %v of CPU time, %d MiB of memory", when(e.From), when(e.To), millis(e.Billable),
		millis(e.CPUMillis), e.MemoryMiB)
	if e.GPU != nil {
		r.out.Evidence += fmt.Sprintf(", GPU at %d %%, %d MiB of VRAM, %d J, %d MHz", e.GPU.Percent, e.GPU.VRAMMiB, e.EnergyJ, e.ClockMHz)
	}
	return nil
}

func (r *reading) proven(format string, args ...any) {
	r.out.Proven = append(r.out.Proven, fmt.Sprintf(format, args...))
}

func (r *reading) unproven(format string, args ...any) {
	r.out.NotProven = append(r.out.NotProven, fmt.Sprintf(format, args...))
}
