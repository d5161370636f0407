package settle

import (
	"context"
	"errors"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Handler answers other peers.
func (s *Service) Handler() p2p.Handler {
	return p2p.Answer(maxMessage, func(ctx context.Context, from identity.PeerID, a Ask) (Answer, error) {
		if err := s.authorize(from, a); err != nil {
			return Answer{}, err
		}
		if err := s.mayChange(a); err != nil {
			return Answer{}, err
		}
		out := Answer{Delegation: s.c.Books.Device().Delegation()}
		if a.changes() {
			err := s.c.Books.Update(ctx, func(t *books.Tx) error { return s.apply(t, a, &out) })
			if len(a.Proposal) > 0 && (errors.Is(err, books.ErrNoDealings) || errors.Is(err, identity.ErrPower)) {
				// The answer will never be another: a word that ends the proposal over there, and costs nothing here.
				return Answer{Delegation: out.Delegation, State: books.Refused, Why: ledger.Cut(err.Error(), voucher.MaxReference)}, nil
			}
			if err != nil {
				return Answer{}, toPeer(err)
			}
		}
		if a.Channel.RoleOf(s.c.Books.Self()) == ledger.AsRenter {
			if err := s.addNewest(ctx, a, &out); err != nil {
				return Answer{}, err
			}
		}
		return out, nil
	})
}

func (a Ask) changes() bool {
	return len(a.Vouchers) > 0 || len(a.Proposal) > 0 || len(a.Counter) > 0 || a.Refused != nil
}

// mayChange refuses what a device asks for that its account has let go. It may still read.
func (s *Service) mayChange(a Ask) error {
	if s.c.Revoked == nil || !a.changes() {
		return nil
	}
	d, err := identity.OpenDelegation(a.Delegation)
	if err == nil {
		err = s.c.Revoked(d)
	}
	if err != nil {
		return p2p.Errorf(p2p.KindForbidden, "%v", err)
	}
	return nil
}

// authorize checks that the peer is a device of the channel's other side.
func (s *Service) authorize(from identity.PeerID, a Ask) error {
	if len(a.Vouchers) > maxVouchers {
		return p2p.Errorf(p2p.KindBadRequest, "at most %d vouchers in one message", maxVouchers)
	}
	return onSide(s.c.Books.Self(), from, a.Channel, a.Delegation)
}

// apply does what a asks, in one transaction.
func (s *Service) apply(t *books.Tx, a Ask, out *Answer) error {
	if len(a.Vouchers) > 0 {
		if a.Channel.RoleOf(s.c.Books.Self()) != ledger.AsProvider {
			return books.ErrRole
		}
		var refused error
		if out.Receipts, refused = takeVouchers(t, a.Channel, a.Vouchers); refused != nil {
			out.Why = ledger.Cut(refused.Error(), voucher.MaxReference)
		}
	}
	if len(a.Proposal) > 0 || len(a.Counter) > 0 {
		_, _, err := t.KeepDelegation(a.Delegation)
		if err == nil {
			err = t.HeardFrom(a.Delegation)
		}
		if err != nil {
			return err
		}
	}
	if len(a.Proposal) > 0 {
		if err := s.propose(t, a, out); err != nil {
			return err
		}
	}
	if len(a.Counter) > 0 {
		id, err := t.RecordCounter(a.Counter)
		if err != nil {
			return err
		}
		v, err := t.Settlement(id)
		if err != nil {
			return err
		}
		out.State = v.State
	}
	if a.Refused != nil {
		return s.refused(t, a, out)
	}
	return nil
}

// propose keeps the proposal and says what this side thinks of it.
func (s *Service) propose(t *books.Tx, a Ask, out *Answer) error {
	terms, err := voucher.OpenSettlement(a.Proposal)
	if err != nil {
		return err
	}
	if terms.Channel != a.Channel {
		return p2p.Errorf(p2p.KindBadRequest, "the settlement is of another channel")
	}
	if err := t.Dealt(terms.Channel); err != nil {
		return err
	}
	decision, err := s.c.Decide(t.Reader, s.c.Books.Self(), terms)
	if err != nil {
		return err
	}
	if decision == Accept && !s.maySign(terms.Account) {
		decision = Wait
	}
	take := t.RecordProposal
	if decision == Accept {
		take = t.SignProposal
	}
	id, v, err := take(a.Proposal)
	if err != nil {
		return err
	}
	if v.State == books.Waiting && decision == Refuse {
		if err := t.Refuse(id, "by its rules"); err != nil {
			return err
		}
		if v, err = t.Settlement(id); err != nil {
			return err
		}
	}
	out.State, out.Counter, out.Why = v.State, v.Counter, v.Why
	return nil
}

// refused takes the other side's no to a proposal of ours.
func (s *Service) refused(t *books.Tx, a Ask, out *Answer) error {
	v, err := t.Settlement(a.Refused.ID)
	if err != nil {
		return err
	}
	terms, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return err
	}
	if terms.Channel != a.Channel || terms.Account != s.c.Books.Self() {
		return books.ErrRole
	}
	out.State = books.Refused
	return t.Refused(a.Refused.ID, a.Refused.Why)
}

// addNewest adds the renter's newest vouchers from Skip on.
func (s *Service) addNewest(ctx context.Context, a Ask, out *Answer) error {
	if a.changes() {
		return nil
	}
	return s.c.Books.View(ctx, func(r *books.Reader) error {
		all, err := r.Newest(a.Channel)
		if err != nil {
			return err
		}
		all = all[min(uint64(a.Skip), uint64(len(all))):]
		out.More = len(all) > maxVouchers
		out.Vouchers = all[:min(len(all), maxVouchers)]
		return nil
	})
}

// toPeer gives an error of the books the kind that the peer may see. What is left is this program's own fault, which its log holds: nothing
// that a peer can bring about at will may be left, or it fills the log.
func toPeer(err error) error {
	var known *p2p.Error
	kind := p2p.KindConflict
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, books.ErrReadOnly), errors.Is(err, kv.ErrReadOnly), errors.Is(err, books.ErrUnsure):
		kind = p2p.KindUnavailable
	case errors.Is(err, books.ErrWaiting):
		kind = p2p.KindBusy
	case errors.Is(err, books.ErrNoSettlement), errors.Is(err, books.ErrNoLane):
		kind = p2p.KindNotFound
	case errors.Is(err, books.ErrDelegation), errors.Is(err, books.ErrRole), errors.Is(err, books.ErrNoDealings), errors.Is(err, identity.ErrPower):
		kind = p2p.KindForbidden
	case errors.Is(err, wire.ErrFormat), errors.Is(err, identity.ErrSignature), errors.Is(err, voucher.ErrSettlement),
		errors.Is(err, history.ErrCheckpoint), errors.Is(err, ledger.ErrChannel):
		kind = p2p.KindBadRequest
	case errors.Is(err, books.ErrDiffer), errors.Is(err, books.ErrPaid), errors.Is(err, books.ErrConflict), errors.Is(err, voucher.ErrTerms),
		errors.Is(err, books.ErrUnsettled), errors.Is(err, money.ErrOverflow), errors.Is(err, books.ErrRefused):
	default:
		return err
	}
	return p2p.Errorf(kind, "%s", ledger.Cut(err.Error(), 500))
}
