package books

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/disk/disktest"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// stepped is a side whose wall clock is set anew, forward or back by days, each time its daemon starts, and on which hours pass unseen while
// it runs, as in a suspended machine. A life is a bubble of its own, in each of which the clock begins at the same time: so what a life
// writes may be from after what the next one takes for now.
type stepped struct {
	dev    *identity.Device
	engine *kv.Memory
	disk   *disktest.Disk // without faults, and without waiting for a real one
}

func newStepped(tb testing.TB) stepped {
	return stepped{dev: newDevice(tb), engine: &kv.Memory{}, disk: disktest.New(rand.New(rand.NewPCG(1, 3)).IntN)}
}

// live opens the ledger at hours past the bubble's beginning, does f, and looks at all that is judged by the clock; now and then it verifies.
func (s *stepped) live(t *testing.T, rt *rapid.T, f func(*party)) {
	hours, asleep := rapid.IntRange(0, 2000).Draw(rt, "hours"), rapid.IntRange(0, 100).Draw(rt, "asleep")
	verify := rapid.IntRange(0, 3).Draw(rt, "verify") == 3
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Duration(hours) * time.Hour)
		store, err := kv.Open(t.Context(), s.engine, schema)
		must(t, err)
		b, err := Open(t.Context(), Config{
			Dir: "simulated", Disk: s.disk, Store: store, Device: s.dev, Limits: testLimits, Log: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		must(t, b.ReadOnly())
		p := &party{Books: b, tb: t, dev: s.dev}
		time.Sleep(time.Duration(asleep) * time.Hour)
		f(p)
		p.looked()
		if verify {
			p.verified(ResultOK)
		}
		must(t, p.Close())
	})
	if t.Failed() {
		rt.FailNow()
	}
}

// looked asks for all that is judged by the clock.
func (p *party) looked() {
	p.view(func(r *Reader) error {
		if _, err := r.ShowLedger(); err != nil {
			return err
		}
		return r.eachStanding(func(role ledger.Role, u money.Unit, peer identity.AccountID, a Account) error {
			left, err := a.ended()
			if err != nil {
				return err
			}
			amount, since, due, err := r.Billable(role, u, peer)
			if err == nil && (amount > ledger.Positive(left) || amount > 0 && (since > due || since == 0)) {
				err = fmt.Errorf("billable %v of %v since %d, due %d", amount, left, since, due)
			}
			return err
		})
	})
}

// dealings are a renter's with a provider, and the simple model of them.
type dealings struct {
	t                *testing.T
	rt               *rapid.T
	renter, provider stepped
	lanes            []ledger.Lane
	amounts          map[ledger.Lane]money.Micro
	ended            map[ledger.Lane]bool
	owed             int64
	paid             int
}

func (d *dealings) channel(p *party) ledger.Channel {
	return ledger.Channel{Renter: d.renter.dev.Account(), Provider: d.provider.dev.Account(), Unit: money.Credit, Epoch: p.Epoch()}
}

// trusted does what asks for credit at the provider. By its clock a payment may be late; then the renter pays all, and it must do.
func (d *dealings) trusted(f func(*Tx) error) {
	late := false
	try := func() {
		d.provider.live(d.t, d.rt, func(p *party) {
			err := p.Update(p.tb.Context(), f)
			if late = errors.Is(err, ledger.ErrLate) && d.owed > 0; !late {
				must(p.tb, err)
			}
		})
	}
	if try(); late {
		d.pay(money.Micro(d.owed))
		try()
	}
}

func (d *dealings) sell() {
	var o Opening
	var first []byte
	d.renter.live(d.t, d.rt, func(p *party) {
		o = Opening{Channel: d.channel(p), Lane: ledger.Lane{byte(len(d.lanes) + 1)}, Rate: perMs, Devices: 1, Hold: 50, DueDays: uint32(len(d.lanes) % 40)}
		p.update(func(tx *Tx) (err error) { first, err = tx.Promise(o); return err })
	})
	d.trusted(func(tx *Tx) error { _, err := tx.OpenLane(o, first, d.renter.dev.Delegation()); return err })
	d.lanes = append(d.lanes, o.Lane)
}

func (d *dealings) pick() (lane ledger.Lane, ok bool) {
	if len(d.lanes) == 0 {
		return lane, false
	}
	lane = rapid.SampledFrom(d.lanes).Draw(d.rt, "lane")
	return lane, !d.ended[lane]
}

func (d *dealings) tick() {
	lane, ok := d.pick()
	if !ok {
		return
	}
	more := money.Micro(rapid.Uint64Range(1, 100).Draw(d.rt, "more"))
	amount := d.amounts[lane] + more
	var raw, receipt []byte
	d.renter.live(d.t, d.rt, func(p *party) {
		p.update(func(tx *Tx) (err error) {
			raw, err = tx.SignVoucher(lane, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}})
			return err
		})
	})
	d.trusted(func(tx *Tx) error {
		a, err := tx.AcceptVoucher(raw, wire.Hash{1})
		receipt = a.Receipt
		return err
	})
	d.renter.live(d.t, d.rt, func(p *party) {
		p.update(func(tx *Tx) error { _, err := tx.RecordReceipt(receipt); return err })
	})
	d.amounts[lane], d.owed = amount, d.owed+int64(more)
}

func (d *dealings) end() {
	lane, ok := d.pick()
	if !ok {
		return
	}
	for _, side := range []*stepped{&d.renter, &d.provider} {
		side.live(d.t, d.rt, func(p *party) {
			p.update(func(tx *Tx) error { _, err := tx.CloseLane(lane, d.amounts[lane]); return err })
		})
	}
	d.ended[lane] = true
}

func (d *dealings) settle() { d.pay(money.Micro(rapid.Uint64Range(1, 150).Draw(d.rt, "paid"))) }

func (d *dealings) pay(amount money.Micro) {
	d.paid++
	var id wire.Hash
	var proposal, counter []byte
	d.renter.live(d.t, d.rt, func(p *party) {
		p.update(func(tx *Tx) (err error) {
			c := d.channel(p)
			c.Epoch = 0
			id, proposal, err = tx.Propose(Payment{Channel: c, Amount: amount, Method: "bank", Reference: fmt.Sprint("transfer ", d.paid)})
			return err
		})
	})
	d.provider.live(d.t, d.rt, func(p *party) {
		p.update(func(tx *Tx) (err error) {
			if _, _, err = tx.RecordProposal(proposal); err == nil {
				counter, err = tx.Countersign(id)
			}
			return err
		})
	})
	d.renter.live(d.t, d.rt, func(p *party) {
		p.update(func(tx *Tx) error { _, err := tx.RecordCounter(counter); return err })
	})
	d.owed -= int64(amount)
}

// TestClockSteps: wall clocks that jump forward and back by days between any two records, each side's by itself, move no money: every record
// is taken, both ledgers verify, and both sides owe what a simple model without a clock says.
func TestClockSteps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := &dealings{t: t, rt: rt, renter: newStepped(t), provider: newStepped(t), amounts: map[ledger.Lane]money.Micro{}, ended: map[ledger.Lane]bool{}}
		for _, two := range [][2]*stepped{{&d.renter, &d.provider}, {&d.provider, &d.renter}} {
			two[0].live(t, rt, func(p *party) {
				p.update(func(tx *Tx) error { _, _, err := tx.KeepDelegation(two[1].dev.Delegation()); return err })
			})
		}
		d.sell()
		acts := []func(){d.sell, d.tick, d.tick, d.end, d.end, d.settle}
		for range rapid.IntRange(2, 12).Draw(rt, "deeds") {
			acts[rapid.IntRange(0, len(acts)-1).Draw(rt, "deed")]()
		}
		for _, view := range []struct {
			side *stepped
			role ledger.Role
			peer identity.AccountID
		}{{&d.renter, ledger.AsRenter, d.provider.dev.Account()}, {&d.provider, ledger.AsProvider, d.renter.dev.Account()}} {
			view.side.live(t, rt, func(p *party) {
				p.view(func(r *Reader) error {
					a, err := r.Account(view.role, money.Credit, view.peer)
					if err == nil && a.Owed != d.owed {
						err = fmt.Errorf("as %s it owes %d, the model says %d", view.role, a.Owed, d.owed)
					}
					return err
				})
				p.verified(ResultOK)
			})
		}
	})
}
