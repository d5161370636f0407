package books

import (
	"encoding/binary"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Size is how many entries the ledger has.
func (r *Reader) Size() (uint64, error) {
	h, err := r.head()
	return h.Size, err
}

// Root is the log's root.
func (r *Reader) Root() (wire.Hash, error) {
	h, err := r.head()
	return h.Root, err
}

// Entry gives an entry by its index.
func (r *Reader) Entry(index uint64) (ledger.Entry, error) {
	leaf, err := r.own.Get(key("e/", be8(index)))
	if err != nil {
		return ledger.Entry{}, fmt.Errorf("entry %d: %w", index, err)
	}
	e, err := ledger.DecodeLeaf(leaf)
	if err != nil {
		return e, fmt.Errorf("entry %d: %w: %w", index, ErrCorrupt, err)
	}
	return e, nil
}

// Entries calls f with every entry from index on, in order, until f gives false.
func (r *Reader) Entries(from uint64, f func(index uint64, e ledger.Entry) (bool, error)) error {
	for p, err := range r.own.Iterate([]byte("e/"), key("e/", be8(from))) {
		if err != nil {
			return err
		}
		if len(p.Key) != len("e/")+8 {
			return fmt.Errorf("entry %x: %w", p.Key, ErrCorrupt)
		}
		index := binary.BigEndian.Uint64(p.Key[len("e/"):])
		e, err := ledger.DecodeLeaf(p.Value)
		if err != nil {
			return fmt.Errorf("entry %d: %w: %w", index, ErrCorrupt, err)
		}
		if more, err := f(index, e); err != nil || !more {
			return err
		}
	}
	return nil
}

// EntriesOf calls f with every entry of a lane, in order.
func (r *Reader) EntriesOf(lane ledger.Lane, f func(index uint64, e ledger.Entry) error) error {
	prefix := key("le/", lane[:], []byte("/"))
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		if len(p.Key) != len(prefix)+8 {
			return fmt.Errorf("entries of lane %s: %w", lane.Short(), ErrCorrupt)
		}
		index := binary.BigEndian.Uint64(p.Key[len(prefix):])
		e, err := r.Entry(index)
		if err != nil {
			return err
		}
		if err := f(index, e); err != nil {
			return err
		}
	}
	return nil
}

// Lanes gives every lane with a counterparty.
func (r *Reader) Lanes(peer identity.AccountID) ([]Lane, error) {
	prefix := key("lp/", peer[:], []byte("/"))
	var out []Lane
	for p, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return nil, err
		}
		var id ledger.Lane
		if len(p.Key) != len(prefix)+len(id) {
			return nil, fmt.Errorf("lanes of account %s: %w", peer.Short(), ErrCorrupt)
		}
		copy(id[:], p.Key[len(prefix):])
		l, err := r.Lane(id)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// EachLane calls f with every lane.
func (r *Reader) EachLane(f func(Lane) error) error {
	for p, err := range r.own.Iterate([]byte("lane/"), nil) {
		if err != nil {
			return err
		}
		var l Lane
		if err := wire.UnmarshalStrict(p.Value, &l); err != nil {
			return fmt.Errorf("lane %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

// Voucher gives the signed bytes of a lane's voucher, nil if it is not here.
func (r *Reader) Voucher(lane ledger.Lane, seq uint64) ([]byte, error) {
	return raw(r.own, voucherKey(lane, seq))
}

// Receipt gives the signed bytes of the receipt for a voucher, nil if there is none.
func (r *Reader) Receipt(v wire.Hash) ([]byte, error) { return raw(r.own, receiptKey(v)) }

// Newest gives the newest voucher of every lane of a channel that has promised something and is not settled in full. The opening
// voucher promises nothing.
func (r *Reader) Newest(c ledger.Channel) ([][]byte, error) {
	lanes, err := r.Lanes(c.Peer(r.b.self))
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, l := range lanes {
		if !c.Covers(l.Channel) || l.Seq == 0 || l.Owed() <= l.Settled {
			continue
		}
		b, err := r.Voucher(l.Lane, l.Seq)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// Total is how this account stands with one counterparty in one unit: only amounts of it as provider and as renter, side by side.
type Total struct {
	Peer      identity.AccountID
	Unit      money.Unit
	OwedToMe  money.Micro // by vouchers, less settled
	IOwe      money.Micro // by vouchers, less settled
	HeldForMe money.Micro // on its credit with me
	HeldByMe  money.Micro // on my credit with it
	PrepaidTo money.Micro // by me to it, beyond what I owed
	PrepaidBy money.Micro // by it to me, beyond what it owed
	Received  money.Micro // settled by it in all
	Paid      money.Micro // settled by me in all
	Lanes     uint64
	LastEntry int64 // Unix milliseconds
}

// Totals gives one total for each counterparty and unit, in the order of their keys.
func (r *Reader) Totals() ([]Total, error) {
	type at struct {
		peer identity.AccountID
		unit money.Unit
	}
	found, order := map[at]*Total{}, []at{}
	for p, err := range r.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return nil, err
		}
		role, unit, size, err := splitAccountKey(p.Key)
		if err != nil {
			return nil, err
		}
		a, peer, err := decodeAccount(p, size)
		if err != nil {
			return nil, err
		}
		k := at{peer, unit}
		if found[k] == nil {
			found[k], order = &Total{Peer: peer, Unit: unit}, append(order, k)
		}
		held, err := r.held(role, unit, peer)
		if err != nil {
			return nil, err
		}
		found[k].add(role, a, held)
	}
	out := make([]Total, 0, len(order))
	for _, k := range order {
		out = append(out, *found[k])
	}
	return out, nil
}

// held is what is held on a renter's credit, by the books' balances.
func (r *Reader) held(role ledger.Role, u money.Unit, peer identity.AccountID) (money.Micro, error) {
	if role == ledger.AsProvider {
		v, err := r.Balance(u, ledger.Account{Kind: ledger.Hold, Peer: peer})
		return ledger.Positive(v), err
	}
	v, err := r.Balance(u, ledger.Account{Kind: ledger.Committed, Peer: peer})
	return ledger.Positive(-v), err
}

func (t *Total) add(role ledger.Role, a Account, held money.Micro) {
	t.Lanes += a.Lanes
	t.LastEntry = max(t.LastEntry, a.LastEntry)
	if role == ledger.AsProvider {
		t.OwedToMe, t.PrepaidBy, t.HeldForMe, t.Received = ledger.Positive(a.Owed), ledger.Positive(-a.Owed), held, a.Settled
		return
	}
	t.IOwe, t.PrepaidTo, t.HeldByMe, t.Paid = ledger.Positive(a.Owed), ledger.Positive(-a.Owed), held, a.Settled
}

// splitAccountKey reads role and unit of an account record's key and gives the length of the part before the peer.
func splitAccountKey(k []byte) (ledger.Role, money.Unit, int, error) {
	const before = len("acct/") + 1
	at := len(k) - len(identity.AccountID{})
	if at <= before || k[at-1] != '/' {
		return 0, "", 0, fmt.Errorf("account record %q: %w", k, ErrCorrupt)
	}
	return ledger.Role(k[before-1] - '0'), money.Unit(k[before : at-1]), at, nil
}
