package books

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
)

func allowanceKey(l ledger.Lane) []byte { return key("al/", l[:]) }

// allowed is the part of the exposure that an allowance holds open: what may be metered under it beyond the vouchers.
func (l Lane) allowed() money.Micro {
	if l.Lapsed || l.Closed() {
		return 0
	}
	return l.Allowed - min(l.Allowed, l.Amount)
}

// SignAllowance is the renter's promise to sign, when it is back, for what the provider meters on a lane until then, up to amount in all
// ([voucher.Allowance]). until is in Unix milliseconds. The bytes may be sent once the transaction is committed; the same terms again give
// the same bytes, and lower ones are [voucher.ErrAllowance]. Other errors: [voucher.ErrCap], and ErrConflict for a lane that has ended.
func (t *Tx) SignAllowance(id ledger.Lane, amount money.Micro, until int64) ([]byte, error) {
	l, role, err := t.laneAs(id, ledger.AsRenter)
	if err != nil {
		return nil, fmt.Errorf("sign allowance: %w", err)
	}
	rules, err := t.rules(l)
	if err != nil {
		return nil, fmt.Errorf("sign allowance: %w", err)
	}
	envelope, err := voucher.SignAllowance(t.b.config.Device, voucher.Allowance{Delegation: l.Proof, Channel: l.Channel, Lane: id, Amount: amount, Until: until})
	if err != nil {
		return nil, err
	}
	_, err = t.allow(l, role, rules, envelope)
	return envelope, err
}

// Allow is the provider's taking of an allowance: it checks it as a voucher of the lane, and what it opens against the renter's credit. A
// repeat changes nothing. Errors are those of [Tx.SignAllowance], and [*ledger.CreditError].
func (t *Tx) Allow(envelope []byte) (Lane, error) {
	a, err := voucher.OpenAllowance(envelope)
	if err != nil {
		return Lane{}, err
	}
	l, role, err := t.laneAs(a.Lane, ledger.AsProvider)
	if err != nil {
		return l, fmt.Errorf("take allowance: %w", err)
	}
	rules, err := t.rules(l)
	if err == nil {
		err = t.stillActs(rules.Powers)
	}
	if err != nil {
		return l, fmt.Errorf("take allowance: %w", err)
	}
	return t.allow(l, role, rules, envelope)
}

// allow puts an allowance on its lane.
func (t *Tx) allow(l Lane, role ledger.Role, rules voucher.Lane, envelope []byte) (Lane, error) {
	a, err := voucher.OpenAllowance(envelope)
	if err == nil {
		err = rules.Allows(a)
	}
	if err != nil {
		return l, err
	}
	switch {
	case l.Closed():
		return l, fmt.Errorf("allowance for lane %s: %w: it has ended", l.Lane.Short(), ErrConflict)
	case a.Amount == l.Allowed && a.Until == l.AllowedUntil:
		return l, nil
	case a.Amount < l.Allowed || a.Until < l.AllowedUntil || a.Amount <= l.Amount:
		return l, fmt.Errorf("allowance for lane %s: %w: %v until %d after %v until %d, with %v promised", l.Lane.Short(), voucher.ErrAllowance,
			a.Amount, a.Until, l.Allowed, l.AllowedUntil, l.Amount)
	}
	next := l
	next.Allowed, next.AllowedUntil, next.Lapsed = a.Amount, a.Until, false
	if role == ledger.AsProvider {
		if err := t.CheckCredit(l.Channel.Renter, l.Channel.Unit, next.Open()-min(next.Open(), l.Open())); err != nil {
			return l, fmt.Errorf("allowance for lane %s: %w", l.Lane.Short(), err)
		}
	}
	return next, errors.Join(t.reopenLane(role, l, next), t.own.Set(allowanceKey(l.Lane), envelope), t.saveLane(&next))
}

// reopenLane tells the counterparty's standing that a lane's open part changed.
func (t *Tx) reopenLane(role ledger.Role, was, is Lane) error {
	return t.change(role, was.Channel.Unit, was.Channel.Peer(t.b.self), func(a *Account) error { return a.reopen(was.Open(), is.Open()) })
}

// LapseAllowance ends what an allowance holds open, once its time is over; what was metered under it stays open until it is vouchered. A
// repeat, or a lane without an allowance, changes nothing.
func (t *Tx) LapseAllowance(id ledger.Lane) error {
	l, role, err := t.laneAs(id, 0)
	if err != nil || l.Lapsed || l.Allowed == 0 || l.Closed() {
		return err
	}
	next := l
	next.Lapsed = true
	return errors.Join(t.reopenLane(role, l, next), t.saveLane(&next))
}

// Allowance gives the signed bytes of a lane's newest allowance, nil if there is none.
func (r *Reader) Allowance(id ledger.Lane) ([]byte, error) { return raw(r.own, allowanceKey(id)) }

// allowance checks that a lane's allowance is the one that was signed.
func (a *audit) allowance(name string, l Lane) error {
	envelope, err := a.r.Allowance(l.Lane)
	switch {
	case err != nil:
		return err
	case envelope == nil && l.Allowed == 0:
		return nil
	case envelope == nil:
		return corrupt(name, "its allowance of %v is missing", l.Allowed)
	}
	a.checked++
	got, err := voucher.OpenAllowance(envelope)
	if err != nil {
		return forged("allowance of "+name, err)
	}
	rules, err := a.r.rules(l)
	if err == nil {
		err = rules.Allows(got)
	}
	if err != nil {
		return forged("allowance of "+name, err)
	}
	if got.Amount != l.Allowed || got.Until != l.AllowedUntil {
		return corrupt(name, "it counts an allowance of %v, %v was signed", l.Allowed, got.Amount)
	}
	return nil
}
