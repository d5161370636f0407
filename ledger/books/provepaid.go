package books

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/wire"
)

// entryAt gives the place of an entry in the log.
func (r *Reader) entryAt(id wire.Hash) (uint64, error) {
	at, err := raw(r.own, key("id/", id[:]))
	if err == nil && len(at) != 8 {
		err = fmt.Errorf("entry %s: %w", id.Short(), ErrCorrupt)
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(at), nil
}

// clearings takes the newest circles of debts that cleared a part of the lane.
func (g *gathering) clearings(l Lane) error {
	var all []Netted
	parts := map[wire.Hash]voucher.LaneAmount{}
	err := g.r.Clearings(func(id wire.Hash, v Netted) error {
		at := slices.IndexFunc(v.Lanes, func(a voucher.LaneAmount) bool { return a.Lane == l.Lane })
		if v.State == netting.Cleared && at >= 0 {
			all, parts[id] = append(all, v), v.Lanes[at]
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b Netted) int { return cmp.Compare(a.Changed, b.Changed) })
	if n := len(all) - proof.MaxClearings; n > 0 {
		g.f.OlderClear, all = uint64(n), all[n:]
	}
	for _, v := range all {
		id, err := v.Terms.ID()
		if err != nil {
			return err
		}
		c := proof.Clearing{Terms: v.Terms, Part: parts[id].Amount}
		for _, s := range v.Said {
			c.Words = append(c.Words, s.Word)
		}
		at, err := g.r.entryAt(ledger.EntryID(ledger.KindNetting, id, l.Channel.AllEpochs().ID()))
		if err != nil {
			return err
		}
		g.f.Clearings, g.indexes = append(g.f.Clearings, c), append(g.indexes, at)
	}
	return nil
}

// ProvePayment gathers what shows a third person who signed for a payment. Errors: ErrNoSettlement, and ErrDelegation if the delegation of
// a signature is not here.
func (r *Reader) ProvePayment(id wire.Hash) (proof.Payment, error) {
	v, err := r.Settlement(id)
	if err != nil {
		return proof.Payment{}, fmt.Errorf("prove: %w", err)
	}
	p, err := r.provePayment(id, v)
	if err != nil {
		return p, fmt.Errorf("prove settlement %s: %w", id.Short(), err)
	}
	return p, nil
}

func (r *Reader) provePayment(id wire.Hash, v Settled) (p proof.Payment, err error) {
	p = proof.Payment{Account: r.b.self, Settlement: proof.Settlement{Proposal: v.Proposal, Counter: v.Counter}}
	g := &gathering{r: r, sizes: map[uint64]bool{}}
	if g.head, err = r.head(); err != nil {
		return p, err
	}
	if p.Checkpoint, err = r.Checkpoint(); err != nil {
		return p, err
	}
	for _, raw := range [][]byte{v.Proposal, v.Counter} {
		if len(raw) == 0 {
			continue
		}
		s, err := voucher.OpenSettlement(raw)
		if err != nil {
			return p, fmt.Errorf("%w: %w", ErrForged, err)
		}
		if err := g.signed(s.Header, s.Delegation, s.Checkpoint); err != nil {
			return p, err
		}
	}
	if err := g.delegation(r.b.config.Device.DelegationHash()); err != nil {
		return p, err
	}
	if v.State == Signed {
		at, err := r.entryAt(ledger.EntryID(ledger.KindSettlement, id))
		if err != nil {
			return p, err
		}
		if p.Entry, err = g.entry(at); err != nil {
			return p, err
		}
	}
	err = g.extensions(Lane{})
	p.Delegations, p.Extensions = g.f.Delegations, g.f.Extensions
	return p, err
}

// entry gives the entry in a place of the log, with its inclusion proof.
func (g *gathering) entry(at uint64) (*proof.Entry, error) {
	leaf, err := g.r.own.Get(key("e/", be8(at)))
	if err != nil {
		return nil, fmt.Errorf("entry %d: %w", at, err)
	}
	path, err := history.ProveInclusion(g.r.hashes(), g.head.Size, at)
	return &proof.Entry{Index: at, Leaf: leaf, Proof: proof.Hashes(path)}, err
}
