package books

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// HeadEpoch is the epoch of the head note in a ledger's folder; ok is false if there is none that device signed.
func HeadEpoch(dir string, device identity.PeerID) (epoch uint32, ok bool) {
	folder, err := existing(dir)
	if err != nil {
		return 0, false
	}
	note, ok, err := readHead(folder)
	if err != nil || !ok {
		return 0, false
	}
	cp, err := history.Open([]byte(note.Checkpoint), device)
	if err != nil {
		return 0, false
	}
	return uint32(cp.Origin.Epoch), true
}

// existing gives a ledger's folder, and makes none.
func existing(dir string) (disk.Disk, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return disk.Open(dir)
}

// ReplayInto puts what the journals in a ledger's folder have beyond a store into it, as far as they follow on without a gap, and gives how
// many transactions that were. Nobody may have the ledger open; the journals stay as they are.
func ReplayInto(ctx context.Context, dir string, store *kv.Store) (n int, err error) {
	folder, err := existing(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	records, _, err := readJournals(folder)
	if err != nil {
		return 0, err
	}
	var seq uint64
	err = store.View(ctx, func(t *kv.Txn) (err error) {
		seq, _, err = load[uint64](t.Of(kv.Books), []byte(keySeq))
		return err
	})
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		if r.Seq <= seq {
			continue
		}
		if r.Seq != seq+1 {
			break
		}
		if err := store.Update(ctx, func(t *kv.Txn) error { return t.Replay(r.Writes) }); err != nil {
			return n, fmt.Errorf("replay transaction %d: %w", r.Seq, err)
		}
		seq, n = r.Seq, n+1
	}
	return n, nil
}

// Salvaged is what could be taken over from a damaged ledger.
type Salvaged struct {
	Lanes, Settlements int // clearings that count are among the settlements
	Lost               int // records that can't be read, or that no check bears out
}

// Salvage takes over into b, a new ledger, what reads of a damaged one: every signed record is checked as if a peer gave it back, and the
// entries are made anew from them. Evidence, changes of account keys, revocations, proofs against others, the newest invoices and the limits
// that the owner set by hand come along. What was booked without a signature of the other side (a write-off) does not.
func (b *Books) Salvage(ctx context.Context, from *kv.Store) (out Salvaged, err error) {
	err = from.View(ctx, func(t *kv.Txn) error {
		old := &Reader{b: b, txn: t, own: t.Of(kv.Books)}
		for _, take := range []func(context.Context, *Reader, *Salvaged) error{
			b.salvageLanes, b.salvageTrails, b.salvageSettlements, b.salvageClearings, b.salvageKeys, b.salvageProofs, b.salvageBills, b.salvageLimits,
		} {
			if err := take(ctx, old, &out); err != nil {
				return err
			}
		}
		return nil
	})
	return out, err
}

func (b *Books) salvageLanes(ctx context.Context, old *Reader, out *Salvaged) error {
	for p, err := range old.own.Iterate([]byte("lane/"), nil) {
		if err != nil {
			return err
		}
		l, _, err := load[Lane](old.own, p.Key)
		var c LaneCopy
		if err == nil {
			c, err = old.CopyLane(l)
		}
		if err == nil {
			err = b.Update(ctx, func(t *Tx) error {
				_, err := t.adoptLane(l.Channel.Peer(b.self), c, &Terms{Hold: l.Hold, DueDays: l.DueDays}, true)
				return err
			})
		}
		if err := out.count(&out.Lanes, err); err != nil {
			return err
		}
	}
	return nil
}

// salvageTrails takes over what lies between the first and the last voucher of each lane, and the evidence.
func (b *Books) salvageTrails(ctx context.Context, old *Reader, out *Salvaged) error {
	var peers []identity.AccountID
	err := b.View(ctx, func(r *Reader) error {
		return r.eachCounterparty(func(a identity.AccountID) { peers = append(peers, a) })
	})
	if err != nil {
		return err
	}
	for _, peer := range peers {
		for {
			var lane ledger.Lane
			var place []byte
			var more bool
			err := b.View(ctx, func(r *Reader) (err error) { lane, place, more, err = r.Wanted(peer); return err })
			if err != nil {
				return err
			}
			if !more {
				break
			}
			page, next, err := old.Trail(peer, lane, place)
			if err == nil {
				err = b.Update(ctx, func(t *Tx) error { return t.AdoptTrail(lane, page, next) })
			}
			if err == nil {
				continue
			}
			kept := 0
			if err := out.count(&kept, err); err != nil {
				return err
			}
			if err := b.Update(ctx, func(t *Tx) error { return t.ForgetTrail(lane) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// count counts one record, and gives an error only of the new ledger.
func (s *Salvaged) count(n *int, err error) error {
	switch {
	case errors.Is(err, ErrReadOnly), errors.Is(err, kv.ErrReadOnly), errors.Is(err, ErrUnknownOutcome):
		return err
	case err != nil:
		s.Lost++
	default:
		*n++
	}
	return nil
}

func (b *Books) salvageSettlements(ctx context.Context, old *Reader, out *Salvaged) error {
	for p, err := range old.own.Iterate([]byte("set/"), nil) {
		if err != nil {
			return err
		}
		v, s, err := decodeSettled(p)
		ok := false
		var c SettledCopy
		if err == nil {
			c, ok, err = old.CopySettlement(s, v)
		}
		if err == nil && ok {
			err = b.Update(ctx, func(t *Tx) error {
				_, err := t.takeSettlement(s.Channel.Peer(b.self), c, true)
				return err
			})
		}
		if err := out.count(&out.Settlements, err); err != nil {
			return err
		}
	}
	return nil
}

// salvageClearings takes over the clearings that count: without them, what they cleared would be owed again. No other need come: one that
// this side had agreed to counts when its signatures come, and is not refused before ([Reader.sureOf]).
func (b *Books) salvageClearings(ctx context.Context, old *Reader, out *Salvaged) error {
	for p, err := range old.own.Iterate([]byte("net/"), nil) {
		if err != nil {
			return err
		}
		var v Netted
		err := wire.UnmarshalStrict(p.Value, &v)
		if err == nil && v.State != netting.Cleared {
			continue
		}
		if err == nil {
			err = b.Update(ctx, func(t *Tx) error { return t.takeClearing(v) })
		}
		if err := out.count(&out.Settlements, err); err != nil {
			return err
		}
	}
	return nil
}

// takeClearing books a clearing that a ledger of this account kept as one that counts.
func (t *Tx) takeClearing(v Netted) error {
	if err := v.Terms.Validate(); err != nil {
		return err
	}
	id, err := v.Terms.ID()
	if err != nil {
		return err
	}
	c, err := hear(netting.Clearing{Terms: v.Terms}, v.Words())
	if err != nil {
		return err
	}
	if c.State != netting.Cleared || v.Terms.Side(v.Self).Account() != t.b.self {
		return fmt.Errorf("take over clearing %s: %w", id.Short(), ErrCopy)
	}
	return t.saveClearing(id, Netted{Self: v.Self, Also: v.Also}, c)
}

// salvageKeys takes over what is known of account keys and of devices that were let go: without it, one of those would be believed again. Each
// record stands by its own signatures, so each is taken as it is, whatever is known of the account beside it; they come after all that was
// signed under older keys.
func (b *Books) salvageKeys(ctx context.Context, old *Reader, out *Salvaged) error {
	for _, kind := range []struct {
		prefix string
		check  func(kv.Pair) error
	}{{"ky/", soundChanges}, {"fk/", soundTwoKeys}, {"rv/", soundRevocation}, {"own/", soundOwn}} {
		if err := b.salvageAll(ctx, old, out, kind.prefix, kind.check); err != nil {
			return err
		}
	}
	return nil
}

// salvageAll takes over the records under a prefix that a check bears out.
func (b *Books) salvageAll(ctx context.Context, old *Reader, out *Salvaged, prefix string, check func(kv.Pair) error) error {
	for p, err := range old.own.Iterate([]byte(prefix), nil) {
		if err != nil {
			return err
		}
		kept := 0
		if err = check(p); err == nil {
			err = b.Update(ctx, func(t *Tx) error { return t.own.Set(p.Key, p.Value) })
		}
		if err := out.count(&kept, err); err != nil {
			return err
		}
	}
	return nil
}

func soundChanges(p kv.Pair) error {
	account, ok := lastAccount(p.Key)
	if !ok || !bytes.Equal(p.Key, keysKey(account)) {
		return fmt.Errorf("changes of a key %x: %w", p.Key, ErrCorrupt)
	}
	var c identity.Chain
	if err := wire.UnmarshalStrict(p.Value, &c); err != nil {
		return err
	}
	_, err := c.Key(account)
	return err
}

func soundTwoKeys(p kv.Pair) error {
	var v TwoKeys
	if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
		return err
	}
	if !bytes.Equal(p.Key, twoKeysKey(v.Account)) {
		return fmt.Errorf("proof against account %s: %w", v.Account.Short(), ErrCorrupt)
	}
	return v.Check()
}

func soundRevocation(p kv.Pair) error {
	v, err := identity.OpenRevocation(p.Value)
	if err == nil && !bytes.Equal(p.Key, revocationKey(v.Account, v.Device)) {
		err = fmt.Errorf("revocation of device %s: %w", v.Device.Short(), ErrCorrupt)
	}
	return err
}

func soundOwn(p kv.Pair) error {
	var v ownDevice
	if _, err := deviceOf(bytes.TrimPrefix(p.Key, []byte("own/"))); err != nil {
		return err
	}
	return wire.UnmarshalStrict(p.Value, &v)
}

// salvageProofs takes over the proofs that a device signed two vouchers with one sequence, or two histories: nobody else may have them.
func (b *Books) salvageProofs(ctx context.Context, old *Reader, out *Salvaged) error {
	if err := b.salvageAll(ctx, old, out, "fraud/", soundFraud); err != nil {
		return err
	}
	return b.salvageAll(ctx, old, out, "fork/", soundFork)
}

func soundFraud(p kv.Pair) error {
	var v fraud
	if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
		return err
	}
	return v.check(bytes.TrimPrefix(p.Key, []byte("fraud/")))
}

func soundFork(p kv.Pair) error {
	device, err := deviceOf(bytes.TrimPrefix(p.Key, []byte("fork/")))
	if err != nil {
		return err
	}
	var v forked
	if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
		return err
	}
	_, _, err = history.Fork(v.Have, v.Got, device)
	return err
}

// salvageBills takes over the newest invoices: without them, a second one would be asked for, or paid, beside the first.
func (b *Books) salvageBills(ctx context.Context, old *Reader, out *Salvaged) error {
	return b.salvageAll(ctx, old, out, "bill/", soundBill)
}

func soundBill(p kv.Pair) error {
	role, unit, _, err := splitAccountKey(key("acct/", bytes.TrimPrefix(p.Key, []byte("bill/")))) // its name is that of the standing
	if err != nil {
		return err
	}
	if err := unit.Validate(); err != nil || role != ledger.AsProvider && role != ledger.AsRenter {
		return errors.Join(fmt.Errorf("invoice %q: %w", p.Key, ErrCorrupt), err)
	}
	var v Bill
	if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
		return err
	}
	switch v.State {
	case BillAsked, BillClosed: // there may be no invoice of it
		return nil
	case BillOpen, BillPaying, BillPaid:
		return v.validate()
	}
	return fmt.Errorf("invoice %q: state %d: %w", p.Key, v.State, ErrCorrupt)
}

// salvageLimits takes over the limits that the owner set by hand.
func (b *Books) salvageLimits(ctx context.Context, old *Reader, out *Salvaged) error {
	for p, err := range old.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return err
		}
		_, unit, size, err := splitAccountKey(p.Key)
		if err != nil {
			out.Lost++
			continue
		}
		a, peer, err := decodeAccount(p, size)
		if err != nil {
			out.Lost++
			continue
		}
		if a.ByHand == nil {
			continue
		}
		if err := b.Update(ctx, func(t *Tx) error { return t.SetLimit(peer, unit, a.ByHand) }); err != nil {
			return err
		}
	}
	return nil
}
