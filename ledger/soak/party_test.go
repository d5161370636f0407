package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

const (
	perMs = 3_600_000 // micro-units per device-hour: one per millisecond
	hold  = 5_000

	floor   = 8 << 20 // of free space: these disks are small
	ballast = 2 << 20
)

// party is one account's ledger, opened as the daemons open theirs.
type party struct {
	*books.Books
	store *kv.Store
}

// place is where a party keeps what it has.
type place struct {
	keys    string // identity
	data    string // store and ledger
	ballast uint64 // 0: as much as the small disks of these tests allow
}

func (p place) device() (*identity.Device, error) {
	dev, _, err := identity.LoadOrCreate(p.keys, time.Unix(1_800_000_000, 0))
	return dev, err
}

var schema = kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}

// open opens a ledger that must be whole: one that is read-only is an error.
func open(ctx context.Context, p place) (*party, error) {
	got, err := openAny(ctx, p)
	if err != nil {
		return nil, err
	}
	if err := got.ReadOnly(); err != nil {
		return nil, errors.Join(err, got.close())
	}
	return got, nil
}

func openAny(ctx context.Context, p place) (*party, error) {
	dev, err := p.device()
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	db, err := badger.Open(ctx, badger.Config{Dir: filepath.Join(p.data, "badger"), FreeFloor: floor, Ballast: cmp.Or(p.ballast, ballast), Log: quiet})
	if err != nil {
		return nil, err
	}
	store, err := kv.Open(ctx, db, schema)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	b, err := books.Open(ctx, books.Config{
		Dir: filepath.Join(p.data, "ledger"), Store: store, Device: dev, Log: quiet,
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: money.Max / 4, StrangersTotal: money.Max / 4}},
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &party{Books: b, store: store}, nil
}

func (p *party) close() error { return errors.Join(p.Close(), p.store.Close()) }

// request is what the renter says to the provider; one of its parts is set.
type request struct {
	Hello    []byte         // the renter's delegation
	Opening  *books.Opening // with First
	First    []byte         // opening voucher
	Voucher  []byte
	Final    *ended
	Proposal []byte
}

type ended struct {
	Lane   ledger.Lane
	Charge money.Micro
}

// reply is the provider's answer.
type reply struct {
	Err        string
	Delegation []byte
	Receipt    []byte
	Counter    []byte
}

// call is a way to reach the provider.
type call func(request) (reply, error)

// said tells the parent what is durable now.
type said func(format string, args ...any)

// answer is the provider's part of every request. All of them may be repeated.
func answer(ctx context.Context, p *party, q request, say said) (a reply) {
	err := p.Update(ctx, func(tx *books.Tx) error {
		switch {
		case q.Hello != nil:
			a.Delegation = p.Device().Delegation()
			_, _, err := tx.KeepDelegation(q.Hello)
			return err
		case q.Opening != nil:
			_, err := tx.OpenLane(*q.Opening, q.First, q.Voucher)
			return err
		case q.Voucher != nil:
			v, err := voucher.Open(q.Voucher)
			if err != nil {
				return err
			}
			if l, err := tx.Lane(v.Lane); err == nil && !l.Closed() && v.Amount > l.Metered {
				if err := tx.Meter(v.Lane, v.Amount); err != nil {
					return err
				}
			}
			got, err := tx.AcceptVoucher(q.Voucher, wire.Hash{1})
			a.Receipt = got.Receipt
			return err
		case q.Final != nil:
			_, err := tx.CloseLane(q.Final.Lane, q.Final.Charge)
			return err
		}
		id, _, err := tx.RecordProposal(q.Proposal)
		if err == nil {
			a.Counter, err = tx.Countersign(id)
		}
		return err
	})
	if err != nil {
		return reply{Err: err.Error()}
	}
	if q.Voucher != nil && q.Opening == nil {
		v, err := voucher.Open(q.Voucher)
		if err != nil {
			return reply{Err: err.Error()}
		}
		say("taken %x %d %d", v.Lane[:], v.Seq, uint64(v.Amount))
	}
	return a
}

// renter is the renter's part.
type renter struct {
	*party
	peer identity.AccountID
	ask  call
	say  said
}

// hello lets both keep each other's delegation, and learns who the provider is.
func hello(ctx context.Context, p *party, ask call) (identity.AccountID, error) {
	a, err := ask(request{Hello: p.Device().Delegation()})
	if err != nil {
		return identity.AccountID{}, err
	}
	var d identity.Delegation
	err = p.Update(ctx, func(tx *books.Tx) (err error) {
		d, _, err = tx.KeepDelegation(a.Delegation)
		return err
	})
	return d.Account, err
}

func (r renter) opening(id ledger.Lane) books.Opening {
	return books.Opening{Channel: r.Channel(r.peer, money.Credit), Lane: id, Rate: perMs, Devices: 1, Hold: hold}
}

// resume brings a lane to the provider as it is here: its opening, its newest voucher and its end.
func (r renter) resume(ctx context.Context, id ledger.Lane) (l books.Lane, err error) {
	var first []byte
	err = r.Update(ctx, func(tx *books.Tx) (err error) {
		first, err = tx.Promise(r.opening(id))
		return err
	})
	if err != nil {
		return l, err
	}
	o := r.opening(id)
	if _, err := r.ask(request{Opening: &o, First: first, Voucher: r.Device().Delegation()}); err != nil {
		return l, err
	}
	var newest []byte
	err = r.View(ctx, func(v *books.Reader) error {
		if l, err = v.Lane(id); err == nil && l.Seq > 0 {
			newest, err = v.Voucher(id, l.Seq)
		}
		return err
	})
	if err == nil && newest != nil {
		err = r.bring(ctx, id, l.Seq, newest)
	}
	if err == nil && l.Closed() {
		_, err = r.ask(request{Final: &ended{id, *l.Final}})
	}
	return l, err
}

// bring delivers a voucher and keeps its receipt.
func (r renter) bring(ctx context.Context, id ledger.Lane, seq uint64, v []byte) error {
	a, err := r.ask(request{Voucher: v})
	if err != nil {
		return err
	}
	err = r.Update(ctx, func(tx *books.Tx) error {
		_, err := tx.RecordReceipt(a.Receipt)
		return err
	})
	if err == nil {
		r.say("receipted %x %d", id[:], seq)
	}
	return err
}

// tick promises more on a lane and brings it.
func (r renter) tick(ctx context.Context, id ledger.Lane, more money.Micro) error {
	var v []byte
	var l books.Lane
	err := r.Update(ctx, func(tx *books.Tx) (err error) {
		if l, err = tx.Lane(id); err != nil {
			return err
		}
		amount := l.Amount + more
		if v, err = tx.SignVoucher(id, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}}); err != nil {
			return err
		}
		l, err = tx.Lane(id)
		return err
	})
	if err != nil {
		return err
	}
	r.say("signed %x %d %d", id[:], l.Seq, uint64(l.Amount))
	return r.bring(ctx, id, l.Seq, v)
}

// end ends a lane with what was promised.
func (r renter) end(ctx context.Context, id ledger.Lane) error {
	var l books.Lane
	err := r.Update(ctx, func(tx *books.Tx) (err error) {
		if l, err = tx.Lane(id); err != nil {
			return err
		}
		l, err = tx.CloseLane(id, l.Amount)
		return err
	})
	if err == nil {
		_, err = r.ask(request{Final: &ended{id, *l.Final}})
	}
	return err
}

// pay proposes a payment and brings it.
func (r renter) pay(ctx context.Context, amount money.Micro, reference string) error {
	var proposal []byte
	err := r.Update(ctx, func(tx *books.Tx) (err error) {
		_, proposal, err = tx.Propose(books.Payment{
			Channel: r.Channel(r.peer, money.Credit), Amount: amount, Method: "manual", Reference: reference,
		})
		return err
	})
	if err != nil {
		return err
	}
	return r.bringPayment(ctx, proposal)
}

func (r renter) bringPayment(ctx context.Context, proposal []byte) error {
	a, err := r.ask(request{Proposal: proposal})
	if err != nil {
		return err
	}
	var id wire.Hash
	err = r.Update(ctx, func(tx *books.Tx) (err error) {
		id, err = tx.RecordCounter(a.Counter)
		return err
	})
	if err == nil {
		r.say("paid %x 0", id[:])
	}
	return err
}

// reconnect brings everything to the provider that may not have reached it, as both sides do when they meet again.
func (r renter) reconnect(ctx context.Context) error {
	var lanes []ledger.Lane
	var proposals [][]byte
	err := r.View(ctx, func(v *books.Reader) error {
		err := v.EachLane(func(l books.Lane) error {
			lanes = append(lanes, l.Lane)
			return nil
		})
		return errors.Join(err, v.Settlements(func(_ wire.Hash, _ voucher.Settlement, s books.Settled) error {
			if s.State == books.Proposed {
				proposals = append(proposals, s.Proposal)
			}
			return nil
		}))
	})
	if err != nil {
		return err
	}
	for _, id := range lanes {
		if _, err := r.resume(ctx, id); err != nil {
			return fmt.Errorf("lane %s: %w", id.Short(), err)
		}
	}
	for _, p := range proposals {
		if err := r.bringPayment(ctx, p); err != nil {
			return fmt.Errorf("payment: %w", err)
		}
	}
	return nil
}
