package books

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Prove gathers what shows a third person what a lane came to (spec: ledger, Rules). attached are the agents' own records of it; one whose
// signer's delegation is not here is left out, since nobody could check it. Errors: ErrNoLane, and ErrDelegation if the delegation of
// a record of money is not here.
func (r *Reader) Prove(id ledger.Lane, attached []proof.Attachment) (proof.File, error) {
	l, err := r.Lane(id)
	if err != nil {
		return proof.File{}, fmt.Errorf("prove: %w", err)
	}
	g := &gathering{r: r, f: proof.File{Account: r.b.self, Channel: l.Channel, Lane: id}, sizes: map[uint64]bool{}}
	if g.head, err = r.head(); err != nil {
		return g.f, err
	}
	if g.f.Checkpoint, err = r.Checkpoint(); err != nil {
		return g.f, err
	}
	for _, step := range []func(Lane) error{g.vouchers, g.receipt, g.segments, g.away, g.settlements, g.clearings, g.cosigned, g.entries, g.extensions} {
		if err := step(l); err != nil {
			return g.f, fmt.Errorf("prove lane %s: %w", id.Short(), err)
		}
	}
	if err := g.delegation(r.b.config.Device.DelegationHash()); err != nil {
		return g.f, err
	}
	disputed, err := r.disputeProofs(id)
	if err != nil {
		return g.f, err
	}
	for _, a := range append(disputed, attached...) {
		if h, err := a.Delegation(); err == nil && g.delegation(h) == nil && len(g.f.Attachments) < proof.MaxAttachments {
			g.f.Attachments = append(g.f.Attachments, a)
		}
	}
	return g.f, nil
}

// gathering is a proof file in the making.
type gathering struct {
	r       *Reader
	f       proof.File
	head    head
	sizes   map[uint64]bool // of this log, for which records carry checkpoints
	indexes []uint64        // of the entries
}

// delegation puts a delegation into the file, once.
func (g *gathering) delegation(h wire.Hash) error {
	b, err := raw(g.r.own, delegationKey(h))
	if err != nil {
		return err
	}
	if own := g.r.b.config.Device; h == own.DelegationHash() {
		b = own.Delegation()
	}
	if b == nil {
		return fmt.Errorf("%w: %s", ErrDelegation, h.Short())
	}
	if !slices.ContainsFunc(g.f.Delegations, func(have []byte) bool { return bytes.Equal(have, b) }) {
		g.f.Delegations = append(g.f.Delegations, b)
	}
	return nil
}

// signed notes what a record needs beside itself: its delegation, and the extension of its checkpoint if that is of this log.
func (g *gathering) signed(h identity.Header, delegation wire.Hash, checkpoint []byte) error {
	if cp, err := history.Open(checkpoint, g.r.b.config.Device.Peer()); err == nil && cp.Origin.Epoch == uint64(g.r.b.epoch) &&
		h.Device == g.r.b.config.Device.Peer() {
		g.sizes[cp.Size] = true
	}
	return g.delegation(delegation)
}

// vouchers takes the opening voucher, the newest with a receipt, the newest, and two with one sequence if there are.
func (g *gathering) vouchers(l Lane) error {
	var all [][]byte
	for _, seq := range []uint64{0, l.Receipts, l.Seq} {
		b, err := g.r.Voucher(l.Lane, seq)
		if err != nil {
			return err
		}
		all = append(all, b)
	}
	have, got, err := g.r.Fraud(l.Lane)
	if err != nil {
		return err
	}
	all = append(all, have, got)
	seqs := map[string]uint64{}
	for _, b := range all {
		if b == nil || slices.ContainsFunc(g.f.Vouchers, func(o []byte) bool { return bytes.Equal(o, b) }) {
			continue
		}
		v, err := voucher.Open(b)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrForged, err)
		}
		if err := g.signed(v.Header, v.Delegation, v.Checkpoint); err != nil {
			return err
		}
		seqs[string(b)], g.f.Vouchers = v.Seq, append(g.f.Vouchers, b)
	}
	slices.SortStableFunc(g.f.Vouchers, func(a, b []byte) int { return cmp.Compare(seqs[string(a)], seqs[string(b)]) })
	return nil
}

// receipt takes the newest receipt.
func (g *gathering) receipt(l Lane) error {
	v, err := g.r.Voucher(l.Lane, l.Receipts)
	if err != nil || v == nil {
		return err
	}
	if g.f.Receipt, err = g.r.Receipt(identity.Hash(v)); err != nil || g.f.Receipt == nil {
		return err
	}
	got, err := voucher.OpenReceipt(g.f.Receipt)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	return g.signed(got.Header, got.Delegation, got.Checkpoint)
}

// segments takes the newest voucher's rate segments, if they are here.
func (g *gathering) segments(l Lane) error {
	s, ok, err := load[segments](g.r.own, key("seg/", l.Lane[:]))
	if ok && s.Voucher == l.Voucher {
		g.f.Segments = s.Segments
	}
	return err
}

// settlements takes the newest payments that list the lane and that nobody refused.
func (g *gathering) settlements(l Lane) error {
	type one struct {
		terms voucher.Settlement
		kept  Settled
	}
	var all []one
	err := g.r.Settlements(func(_ wire.Hash, s voucher.Settlement, v Settled) error {
		if v.State != Refused && s.Channel.Covers(l.Channel) && slices.ContainsFunc(s.Lanes, func(a voucher.LaneAmount) bool { return a.Lane == l.Lane }) {
			all = append(all, one{s, v})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(a.kept.Changed, b.kept.Changed) })
	if n := len(all) - proof.MaxSettlements; n > 0 {
		g.f.Older.Settlements, all = uint64(n), all[n:]
	}
	for _, s := range all {
		g.f.Settlements = append(g.f.Settlements, proof.Settlement{Proposal: s.kept.Proposal, Counter: s.kept.Counter})
		if err := g.signed(s.terms.Header, s.terms.Delegation, s.terms.Checkpoint); err != nil {
			return err
		}
		if s.kept.State != Signed {
			continue
		}
		c, err := voucher.OpenSettlement(s.kept.Counter)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrForged, err)
		}
		if err := g.signed(c.Header, c.Delegation, c.Checkpoint); err != nil {
			return err
		}
		at, err := g.r.entryAt(ledger.EntryID(ledger.KindSettlement, s.terms.ID()))
		if err != nil {
			return err
		}
		g.indexes = append(g.indexes, at)
	}
	return nil
}

// cosigned takes the newest head of this log that the other side cosigned.
func (g *gathering) cosigned(l Lane) error {
	kept, got, ok, err := g.r.newestCosigned(l.Channel.Peer(g.r.b.self))
	if err != nil || !ok {
		return err
	}
	g.f.Cosigned, g.sizes[got.Size] = &proof.Cosigned{By: kept.by, Note: got.Note}, true
	return g.delegation(kept.Proof)
}

// entries takes the lane's newest entries and those of its settlements, each with its inclusion proof.
func (g *gathering) entries(l Lane) error {
	var lane []uint64
	if err := g.r.EntriesOf(l.Lane, func(i uint64, _ ledger.Entry) error { lane = append(lane, i); return nil }); err != nil {
		return err
	}
	if n := len(lane) - proof.MaxEntries; n > 0 {
		g.f.Older.Entries, lane = uint64(n), lane[n:]
	}
	g.indexes = append(g.indexes, lane...)
	slices.Sort(g.indexes)
	for _, i := range g.indexes {
		e, err := g.entry(i)
		if err != nil {
			return err
		}
		g.f.Entries = append(g.f.Entries, *e)
	}
	return nil
}

// extensions shows that the log still begins as the records' checkpoints say.
func (g *gathering) extensions(Lane) error {
	for size := range g.sizes {
		if size == 0 || size >= g.head.Size {
			continue // nothing to show, or the check says that the ledger is behind
		}
		p, err := history.ProveConsistency(g.r.hashes(), size, g.head.Size)
		if err != nil {
			return err
		}
		g.f.Extensions = append(g.f.Extensions, proof.Extension{Size: size, Proof: proof.Hashes(p)})
	}
	slices.SortFunc(g.f.Extensions, func(a, b proof.Extension) int { return cmp.Compare(a.Size, b.Size) })
	return nil
}
