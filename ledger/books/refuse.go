package books

import (
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Refuse is this side's no to a settlement that is not signed by both. A proposal of its own it may drop as long as that was surely never
// sent; after that it is ErrGiven: the other side can sign it at any time, and it counts then. A repeat changes nothing; one that both have
// signed is ErrConflict.
func (t *Tx) Refuse(id wire.Hash, why string) error {
	v, own, err := t.refusable(id)
	switch {
	case err != nil || v.State == Refused:
		return err
	case !own:
		return t.end(id, Settled{Why: why})
	case v.Held != t.b.epoch:
		return fmt.Errorf("refuse settlement %s: %w", id.Short(), ErrGiven)
	}
	return t.end(id, Settled{Why: "it was never sent", Dropped: true})
}

// Refused takes the other side's no to a proposal of this account. A repeat changes nothing; one that both have signed is ErrConflict, and
// the other side's own proposal ErrRole.
func (t *Tx) Refused(id wire.Hash, why string) error {
	v, own, err := t.refusable(id)
	if err == nil && !own {
		err = fmt.Errorf("settlement %s: %w: it is the other side's own proposal", id.Short(), ErrRole)
	}
	if err != nil || v.State == Refused {
		return err
	}
	return t.end(id, Settled{Why: why})
}

// refusable finds a settlement that may be refused, or was; own says that this account proposed it.
func (t *Tx) refusable(id wire.Hash) (v Settled, own bool, err error) {
	if v, err = t.Settlement(id); err != nil {
		return v, false, err
	}
	if v.State == Signed {
		return v, false, fmt.Errorf("refuse settlement %s: %w: both have signed it", id.Short(), ErrConflict)
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return v, false, fmt.Errorf("%w: %w", ErrForged, err)
	}
	return v, s.Account == t.b.self, nil
}

// end makes a settlement a refused one.
func (t *Tx) end(id wire.Hash, how Settled) error {
	v, err := t.Settlement(id)
	if err != nil {
		return err
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	v.State, v.Why, v.Dropped, v.Held = Refused, ledger.Cut(how.Why, voucher.MaxReference), how.Dropped, 0
	return t.saveSettled(s, v)
}

// Sending notes that a settlement is about to leave this machine: from now on it can't be dropped. The bytes may be sent once the
// transaction is committed.
func (t *Tx) Sending(id wire.Hash) error {
	v, err := t.Settlement(id)
	if err != nil || v.Held == 0 {
		return err
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	v.Held = 0
	return t.saveSettled(s, v)
}

// refusedBy says who said no: "me" or "other"; empty if nobody did.
func refusedBy(self identity.AccountID, s voucher.Settlement, v Settled) string {
	switch {
	case v.State != Refused:
		return ""
	case v.Dropped || s.Account != self:
		return "me"
	}
	return "other"
}
