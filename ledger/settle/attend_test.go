package settle_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// Peers are asked by themselves: at first, ten minutes after new records, at a lane's end, and when somebody says so.
func TestWitnessRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := twoKeepers(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- provider.Run(ctx) }()
		after := func(d time.Duration, want uint64, what string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if w := provider.about(renter); w.Checked != want {
				t.Errorf("%s: %d entries are checked, want %d", what, w.Checked, want)
			}
		}
		after(time.Minute, 3, "at first")
		voucherFor(renter, provider, 1, 40, 50, 60)
		after(5*time.Minute, 3, "soon after new records")
		after(10*time.Minute, 6, "long after new records")
		voucherFor(renter, provider, 1, 70, 80)
		provider.update(func(tx *books.Tx) error { _, err := tx.CloseLane(ledger.Lane{1}, 80); return err })
		after(time.Minute, 8, "after the lane's end")
		openLane(renter, provider, 2)
		voucherFor(renter, provider, 2, 10, 20)
		provider.Soon(renter.dev.Peer())
		after(time.Second, 10, "when told")

		n.Partition(renter.dev.Peer(), provider.dev.Peer())
		voucherFor(renter, provider, 2, 30, 40)
		after(time.Hour, 10, "while the peer is away")
		n.Heal(renter.dev.Peer(), provider.dev.Peer())
		n.Mesh()
		after(time.Minute, 12, "when it is back")
		var asked atomic.Int32
		renter.net.Handle(witnessProtocol, settle.WitnessLimits(), p2p.Answer(1<<16, func(context.Context, identity.PeerID, settle.Heads) (settle.Heads, error) {
			asked.Add(1)
			return settle.Heads{}, p2p.Errorf(p2p.KindBusy, "later")
		}))
		voucherFor(renter, provider, 2, 50, 60)
		after(time.Hour, 12, "while the peer is busy")
		if n := asked.Load(); n < 2 || n > 8 {
			t.Errorf("a busy peer was asked %d times in an hour", n)
		}
		renter.net.Handle(witnessProtocol, settle.WitnessLimits(), renter.Handler())
		after(2*time.Hour, 14, "when the peer has time")
		cancel()
		must(t, <-ended)
	})
}

// An older copy of a ledger learns from the first peer that connects, before anybody has new records.
func TestRestoredOlderIsToldAtOnce(t *testing.T) {
	for _, runs := range []string{"its peer", "itself"} {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := twoKeepers(t)
			engine, dir := renter.copied()
			voucherFor(renter, provider, 1, 40, 50, 60)
			must(t, provider.Ask(t.Context(), renter.dev.Peer()))
			renter.net.(*p2ptest.Node).Close()
			old := newKeeper(t, n.Join(renter.dev), renter.dev, engine, dir)
			n.Mesh()
			runner := provider
			if runs == "itself" {
				runner = old
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- runner.Run(ctx) }()
			time.Sleep(time.Minute)
			synctest.Wait()
			if err := old.books.ReadOnly(); !errors.Is(err, books.ErrBehind) {
				t.Errorf("%s runs: %v", runs, err)
			}
			cancel()
			must(t, <-ended)
		})
	}
}

// A rewritten ledger that asks is caught as well: what it learns of its own former heads it answers with its own signature.
func TestRewrittenPastAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := twoKeepers(t)
		must(t, provider.Ask(t.Context(), renter.dev.Peer()))
		forger := rewritten(t, n, renter)
		o := books.Opening{Channel: forger.books.Channel(provider.dev.Account(), money.Credit), Lane: ledger.Lane{1}, Rate: 3_600_000, Devices: 1}
		forger.update(func(tx *books.Tx) error { // of its dealings with the provider it keeps a receipt that it likes
			if _, err := tx.Promise(o); err != nil {
				return err
			}
			v, err := tx.SignVoucher(o.Lane, 1, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 1}})
			if err != nil {
				return err
			}
			if _, _, err := tx.KeepDelegation(provider.dev.Delegation()); err != nil {
				return err
			}
			var head []byte
			must(t, provider.books.View(t.Context(), func(r *books.Reader) (err error) { head, err = r.Checkpoint(); return err }))
			r, err := voucher.SignReceipt(provider.dev, voucher.Receipt{Voucher: identity.Hash(v), Checkpoint: head})
			if err != nil {
				return err
			}
			_, err = tx.RecordReceipt(r)
			return err
		})
		if err := forger.Ask(t.Context(), provider.dev.Peer()); !errors.Is(err, books.ErrBehind) {
			t.Error(err)
		}
		if w := provider.about(forger); w.Fork == nil || w.Fork.Entries != 3 {
			t.Errorf("%+v", w)
		}
	})
}

// A cosignature of a head that this ledger does not have tells it so, too.
func TestCosignedFromTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := twoKeepers(t)
		cp := history.Checkpoint{Origin: history.Origin{Peer: provider.dev.Peer(), Epoch: uint64(provider.books.Epoch())}, Size: 100}
		note, err := cp.Sign(provider.dev.SignNote)
		must(t, err)
		note, err = history.Cosign(note, provider.dev.Peer(), renter.dev.Peer(), time.Now(), renter.dev.SignCosignature)
		must(t, err)
		var got settle.Heads
		err = p2p.Call(t.Context(), renter.net, provider.dev.Peer(), witnessProtocol, settle.Heads{Head: note, Cosigned: note}, &got, 1<<16)
		var refusal *p2p.Error
		if !errors.As(err, &refusal) || refusal.Kind != p2p.KindConflict {
			t.Errorf("%+v, %v", got, err)
		}
		if err := provider.books.ReadOnly(); !errors.Is(err, books.ErrBehind) || provider.verdict() != books.ResultBehind {
			t.Errorf("%v, %s", err, provider.verdict())
		}
	})
}

// The same over sockets.
func TestWitnessOverLibp2p(t *testing.T) {
	var all []*keeper
	for range 2 {
		dev := p2ptest.Device(t)
		n, err := libp2p.New(dev, libp2p.Local("test"), nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			must(t, errors.Join(<-ended, n.Close()))
		})
		all = append(all, newKeeper(t, n, dev, &kv.Memory{}, t.TempDir()))
	}
	renter, provider := all[0], all[1]
	must(t, renter.net.Connect(t.Context(), p2p.PeerAddr{Peer: provider.dev.Peer(), Addrs: provider.net.Addrs()}))
	for lane := range byte(3) {
		openLane(renter, provider, 1+lane)
		voucherFor(renter, provider, 1+lane, 10, 20, 30, 40, 50)
	}
	for range 3 {
		must(t, provider.Ask(t.Context(), renter.dev.Peer()))
		voucherFor(renter, provider, 1, renterAmount(t, renter)+10)
	}
	if a, b := provider.about(renter), renter.about(provider); a.Checked != 17 || a.Cosigned != 17 || b.Checked != 17 || b.Cosigned != 17 {
		t.Errorf("%+v, %+v", a, b)
	}
}

func renterAmount(t *testing.T, k *keeper) (amount money.Micro) {
	t.Helper()
	must(t, k.books.View(t.Context(), func(r *books.Reader) error {
		l, err := r.Lane(ledger.Lane{1})
		amount = l.Amount
		return err
	}))
	return amount
}
