package books

import (
	"bytes"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// RecordProposal takes the other side's proposal of a settlement and keeps it as Waiting for this side's decision. The signer's
// delegation must have been kept before. A repeat gives the settlement as it stands. ErrWaiting if too many wait.
func (t *Tx) RecordProposal(proposal []byte) (wire.Hash, Settled, error) {
	s, err := t.openSettlement(proposal)
	if err != nil {
		return wire.Hash{}, Settled{}, err
	}
	return t.record(s, proposal, true)
}

// SignProposal is RecordProposal and [Tx.Countersign] in one: it does not count among those that wait.
func (t *Tx) SignProposal(proposal []byte) (wire.Hash, Settled, error) {
	s, err := t.openSettlement(proposal)
	if err != nil {
		return wire.Hash{}, Settled{}, err
	}
	id, v, err := t.record(s, proposal, false)
	if err != nil || v.State != Waiting {
		return id, v, err
	}
	if _, err := t.Countersign(id); err != nil {
		return id, v, err
	}
	v, err = t.Settlement(id)
	return id, v, err
}

// record keeps the other side's proposal.
func (t *Tx) record(s voucher.Settlement, proposal []byte, waits bool) (wire.Hash, Settled, error) {
	id := s.ID()
	if s.Account == t.b.self || !s.Proposal.IsZero() {
		return id, Settled{}, fmt.Errorf("settlement %s: %w: it is no proposal of the other side", id.Short(), ErrRole)
	}
	have, ok, err := load[Settled](t.own, settlementKey(id))
	if err != nil {
		return id, Settled{}, err
	}
	if ok {
		if !bytes.Equal(have.Proposal, proposal) {
			return id, have, fmt.Errorf("settlement %s: %w", id.Short(), ErrConflict)
		}
		return id, have, nil
	}
	if err := t.settlerNotRevoked(s.Header, s.Delegation); err != nil {
		return id, Settled{}, fmt.Errorf("settlement %s: %w", id.Short(), err)
	}
	if err := t.yield(s); err != nil {
		return id, Settled{}, err
	}
	if err := t.checkLanes(s); err != nil {
		return id, Settled{}, err
	}
	if waits {
		if err := t.checkWaiting(s.Account); err != nil {
			return id, Settled{}, err
		}
	}
	if err := t.settler(s.Checkpoint, s.Header, s.Delegation); err != nil {
		return id, Settled{}, fmt.Errorf("settlement %s: %w", id.Short(), err)
	}
	v := Settled{State: Waiting, Proposal: proposal}
	return id, v, t.saveSettled(s, v)
}

// yield makes room for the other side's proposal of a payment that this side may have proposed, too, before either knew: the payer's
// proposal takes the place of the provider's, if the amounts are the same. Else one payment could be signed twice, or never.
func (t *Tx) yield(s voucher.Settlement) error {
	have, taken, err := t.paidAs(s)
	if err != nil || !taken {
		return err
	}
	old, err := voucher.OpenSettlement(have.Proposal)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	if have.State != Proposed || s.Account != s.Channel.Renter || old.Account != t.b.self || old.Amount != s.Amount {
		return fmt.Errorf("settlement %s: %w: %q, %v, %s", s.ID().Short(), ErrPaid, s.Reference, old.Amount, have.State)
	}
	return t.end(old.ID(), Settled{Why: "the payer recorded the same payment", Dropped: true})
}

// Dealt is ErrNoDealings if the other side of c has no account here: what a stranger says of payments must cost nothing, neither disk nor a
// place among those that wait.
func (r *Reader) Dealt(c ledger.Channel) error {
	peer := c.Peer(r.b.self)
	_, ok, err := load[Account](r.own, accountKey(c.RoleOf(r.b.self), c.Unit, peer))
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s in %s", ErrNoDealings, peer.Short(), c.Unit)
	}
	return err
}

// checkWaiting checks that one more proposal of peer may wait.
func (r *Reader) checkWaiting(peer identity.AccountID) error {
	for _, limit := range []struct {
		prefix []byte
		most   int
	}{{[]byte("wait/"), maxWaiting}, {key("wait/", peer[:]), maxPeerWaiting}} {
		n := 0
		for _, err := range r.own.Iterate(limit.prefix, nil) {
			if err != nil {
				return err
			}
			n++
		}
		if n >= limit.most {
			return fmt.Errorf("%w: %d", ErrWaiting, n)
		}
	}
	return nil
}
