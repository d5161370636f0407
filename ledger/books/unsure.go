package books

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ErrUnsure says that this ledger was restored and the other side was not asked since: it may hold newer records of ours than are here, so
// nothing is signed yet. `ledger recover` asks it; `ledger recover --forget PEER` gives it up.
var ErrUnsure = errors.New("the ledger was restored and this peer has not answered since: run `ledger recover`")

// unsure marks a lane whose newest voucher is not known for sure.
type unsure struct {
	Peer  identity.AccountID `cbor:"1,keyasint"`
	Final *money.Micro       `cbor:"2,keyasint"` // as it was before the restore
}

// Pending is a counterparty that is to be asked what this ledger lost.
type Pending struct {
	Account identity.AccountID `cbor:"1,keyasint"`
	Since   int64              `cbor:"2,keyasint"` // Unix milliseconds: the restore
	Tried   int64              `cbor:"3,keyasint"` // Unix milliseconds; 0: not yet
	Why     string             `cbor:"4,keyasint,omitempty"`
}

const (
	keyRestored = "restored" // Unix milliseconds of the newest restore
	markBatch   = 500        // records of one transaction
	maxWhy      = 200
)

func unsureKey(l ledger.Lane) []byte         { return key("un/", l[:]) }
func pendingKey(a identity.AccountID) []byte { return key("rec/", a[:]) }
func (l Lane) finished() bool                { return l.Final != nil && l.Amount >= *l.Final }
func lastAccount(k []byte) (identity.AccountID, bool) {
	var a identity.AccountID
	if len(k) < len(a) {
		return a, false
	}
	copy(a[:], k[len(k)-len(a):])
	return a, true
}

// NewEpoch makes a store that was filled from a backup, or from what was left of another store, the start of a new epoch: no number that
// was signed before is signed again. Every lane that may have gone on since is unsure, and every counterparty is to be asked. Nobody may
// have the books open over the store. known is the highest epoch that is known from elsewhere. The epoch is the time in Unix seconds, so
// that two restores of one backup do not collide; where the clock is behind what is known, one more than that (docs/adr).
func NewEpoch(ctx context.Context, store *kv.Store, dev *identity.Device, known uint32, now time.Time) (uint32, error) {
	var lanes []Lane
	peers := map[identity.AccountID]bool{}
	err := store.View(ctx, func(t *kv.Txn) error {
		own := t.Of(kv.Books)
		epoch, err := epochOf(own)
		if err != nil {
			return err
		}
		known = max(known, epoch)
		r := &Reader{txn: t, own: own}
		if err := r.eachCounterparty(func(a identity.AccountID) { peers[a] = true }); err != nil {
			return err
		}
		return r.EachLane(func(l Lane) error {
			peers[l.Channel.Peer(dev.Account())] = true
			if !l.finished() {
				lanes = append(lanes, l)
			}
			return nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("begin a new epoch: %w", err)
	}
	epoch := max(known+1, uint32(max(now.Unix(), 0)))
	err = inBatches(ctx, store, lanes, func(own kv.Tx, l Lane) error {
		l.Restored = true
		return errors.Join(save(own, laneKey(l.Lane), l), save(own, unsureKey(l.Lane), unsure{Peer: l.Channel.Peer(dev.Account()), Final: l.Final}))
	})
	if err != nil {
		return 0, fmt.Errorf("begin a new epoch: %w", err)
	}
	err = inBatches(ctx, store, slices.Collect(maps.Keys(peers)), func(own kv.Tx, a identity.AccountID) error {
		return save(own, pendingKey(a), Pending{Account: a, Since: now.UnixMilli()})
	})
	if err != nil {
		return 0, fmt.Errorf("begin a new epoch: %w", err)
	}
	err = store.Update(ctx, func(t *kv.Txn) error {
		own := t.Of(kv.Books)
		return errors.Join(save(own, []byte(keyRestored), now.UnixMilli()), save(own, []byte(keyEpoch), epoch))
	})
	if err != nil {
		return 0, fmt.Errorf("begin a new epoch: %w", err)
	}
	return epoch, nil
}

// inBatches writes something for each of list, in transactions of a bounded size: nobody uses the store yet.
func inBatches[T any](ctx context.Context, store *kv.Store, list []T, write func(kv.Tx, T) error) error {
	for batch := range slices.Chunk(list, markBatch) {
		err := store.Update(ctx, func(t *kv.Txn) error {
			for _, v := range batch {
				if err := write(t.Of(kv.Books), v); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// eachCounterparty calls f with every account that has a standing here.
func (r *Reader) eachCounterparty(f func(identity.AccountID)) error {
	for p, err := range r.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return err
		}
		if a, ok := lastAccount(p.Key); ok {
			f(a)
		}
	}
	return nil
}

// Unsure gives the mark of a lane; ok is false if its newest voucher is known.
func (r *Reader) unsure(l ledger.Lane) (unsure, bool, error) {
	return load[unsure](r.own, unsureKey(l))
}

// certain checks that a lane's newest voucher is known.
func (r *Reader) certain(l Lane) error {
	_, marked, err := r.unsure(l.Lane)
	if err == nil && marked {
		err = fmt.Errorf("lane %s: %w", l.Lane.Short(), ErrUnsure)
	}
	return err
}

// answered checks that an account has answered since the last restore.
func (r *Reader) answered(a identity.AccountID) error {
	_, pending, err := load[Pending](r.own, pendingKey(a))
	if err == nil && pending {
		err = fmt.Errorf("account %s: %w", a.Short(), ErrUnsure)
	}
	return err
}

// nextSeq is the sequence of a lane's next voucher. On a lane that was restored the first one leaves a gap that no lost voucher can be in,
// so that even a peer who kept a newer one back can never show two with one sequence.
func (r *Reader) nextSeq(l Lane) uint64 {
	if !l.Restored {
		return l.Seq + 1
	}
	return max(l.Seq+1, uint64(r.b.epoch)<<seqGap)
}

// seqGap leaves a million vouchers of each second: one is signed every ten.
const seqGap = 20

// Restored is when the ledger was last restored, zero if it never was.
func (r *Reader) Restored() (time.Time, error) {
	ms, ok, err := load[int64](r.own, []byte(keyRestored))
	if err != nil || !ok {
		return time.Time{}, err
	}
	return time.UnixMilli(ms), nil
}

// ToAsk lists who has not answered since the last restore, in the order of accounts.
func (r *Reader) ToAsk() ([]Pending, error) {
	out := []Pending{}
	for p, err := range r.own.Iterate([]byte("rec/"), nil) {
		if err != nil {
			return nil, err
		}
		var v Pending
		if err := wire.UnmarshalStrict(p.Value, &v); err != nil {
			return nil, fmt.Errorf("account to ask %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		out = append(out, v)
	}
	return out, nil
}

// UnsureLanes counts the lanes with an account of which the newest voucher is not known for sure.
func (r *Reader) UnsureLanes(a identity.AccountID) (n int, err error) {
	err = r.eachUnsure(a, func(Lane) error { n++; return nil })
	return n, err
}

// eachUnsure calls f with each lane of an account that is marked.
func (r *Reader) eachUnsure(a identity.AccountID, f func(Lane) error) error {
	for p, err := range r.own.Iterate([]byte("un/"), nil) {
		if err != nil {
			return err
		}
		var u unsure
		if err := wire.UnmarshalStrict(p.Value, &u); err != nil {
			return fmt.Errorf("unsure lane %x: %w: %w", p.Key, ErrCorrupt, err)
		}
		if u.Peer != a {
			continue
		}
		var id ledger.Lane
		copy(id[:], p.Key[len("un/"):])
		l, err := r.Lane(id)
		if err != nil {
			return err
		}
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

// NotReached notes that an account was asked and why it did not answer.
func (t *Tx) NotReached(a identity.AccountID, why string) error {
	p, ok, err := load[Pending](t.own, pendingKey(a))
	if err != nil || !ok {
		return err
	}
	p.Tried, p.Why = t.now.UnixMilli(), ledger.Cut(why, maxWhy)
	return save(t.own, pendingKey(a), p)
}

// Answered ends the wait for an account: device told everything that it has. Lanes whose newest receipt is by another device of the account
// stay unsure, and the account with them, until that one has answered; unless the account has let that one go, which signs nothing any more.
func (t *Tx) Answered(a identity.AccountID, device identity.PeerID) error {
	left := 0
	err := t.eachUnsure(a, func(l Lane) error {
		with, err := t.otherDevice(l)
		if err != nil {
			return err
		}
		if !with.IsZero() && with != device {
			if gone, err := t.LetGo(a, with); err != nil || !gone {
				left++
				return err
			}
		}
		return t.own.Delete(unsureKey(l.Lane))
	})
	if err != nil || left > 0 {
		return err
	}
	return t.own.Delete(pendingKey(a))
}

// otherDevice is the other side's device on a lane as far as it is known: the renter's signs the vouchers, the provider's the receipts.
func (r *Reader) otherDevice(l Lane) (identity.PeerID, error) {
	if l.Channel.RoleOf(r.b.self) == ledger.AsProvider {
		return l.Device, nil
	}
	return r.receiptDevice(l)
}

// Forget gives an account up: what is here counts, and nothing more is asked of it. Work goes on with it as if it had answered.
func (t *Tx) Forget(a identity.AccountID) error {
	err := t.eachUnsure(a, func(l Lane) error { return t.own.Delete(unsureKey(l.Lane)) })
	if err != nil {
		return err
	}
	return t.own.Delete(pendingKey(a))
}

// CountPending counts who is to be asked, in a store over which no books are open.
func CountPending(t *kv.Txn) (int, error) {
	list, err := (&Reader{txn: t, own: t.Of(kv.Books)}).ToAsk()
	return len(list), err
}

// lastDevice is the device of an account with which the newest lane of some was dealt, zero if none is known.
func (r *Reader) lastDevice(a identity.AccountID, of func(Lane) bool) (device identity.PeerID, err error) {
	lanes, err := r.Lanes(a)
	if err != nil {
		return device, err
	}
	slices.SortStableFunc(lanes, func(a, b Lane) int { return cmp.Compare(b.Opened, a.Opened) })
	for _, l := range lanes {
		if !of(l) {
			continue
		}
		if device, err = r.otherDevice(l); err != nil || !device.IsZero() {
			return device, err
		}
	}
	return device, nil
}
