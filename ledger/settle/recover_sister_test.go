package settle_test

import (
	"context"
	"crypto/ed25519"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// sisters are PCs of one account, each with a ledger of its own.
func sisters(t *testing.T, n *p2ptest.Net, count int) (out []side) {
	t.Helper()
	_, account, err := ed25519.GenerateKey(nil)
	must(t, err)
	for range count {
		_, key, err := ed25519.GenerateKey(nil)
		must(t, err)
		raw, err := identity.Delegate(account, identity.PeerID(key.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
		must(t, err)
		dev, err := identity.NewDevice(key, raw)
		must(t, err)
		s := side{dev: dev, net: n.Join(dev)}
		store, err := kv.Open(t.Context(), &kv.Memory{}, kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}})
		must(t, err)
		s.books, err = books.Open(t.Context(), books.Config{
			Dir: t.TempDir(), Store: store, Device: dev, Log: quiet,
			Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 30, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
		})
		must(t, err)
		t.Cleanup(func() { s.books.Close() })
		must(t, s.books.KeepOwn(t.Context()))
		s.Service, err = settle.New(settle.Config{Network: s.net, Protocol: protocol, Books: s.books, Decide: always(settle.Accept)})
		must(t, err)
		s.net.Handle(protocol, settle.Limits(), s.Handler())
		out = append(out, s)
	}
	return out
}

// trade rents lanes of 1000 each, from a number on, and brings everything over.
func trade(t *testing.T, renter, provider side, from, lanes byte) {
	t.Helper()
	c := renter.books.Channel(provider.dev.Account(), money.Credit)
	for i := range lanes {
		o := books.Opening{Channel: c, Lane: ledger.Lane{from + i, 1}, Rate: 3_600_000, Devices: 1}
		var first, second []byte
		renter.update(t, func(tx *books.Tx) (err error) {
			if first, err = tx.Promise(o); err == nil {
				second, err = tx.SignVoucher(o.Lane, 1000, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 1000}})
			}
			return err
		})
		var receipt []byte
		provider.update(t, func(tx *books.Tx) error {
			_, err := tx.OpenLane(o, first, renter.dev.Delegation())
			if err == nil {
				var got books.Accepted
				got, err = tx.AcceptVoucher(second, wire.Hash{})
				receipt = got.Receipt
			}
			return err
		})
		renter.update(t, func(tx *books.Tx) error {
			_, _, err := tx.KeepDelegation(provider.dev.Delegation())
			if err == nil {
				_, err = tx.RecordReceipt(receipt)
			}
			return err
		})
	}
}

// pay settles a part of a debt.
func (s side) pay(t *testing.T, provider side, amount money.Micro) {
	t.Helper()
	c := s.books.Channel(provider.dev.Account(), money.Credit)
	_, state, err := s.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: amount, Method: "manual"})
	if err != nil || state != books.Signed {
		t.Fatal(state, err)
	}
}

// TestRecoverOnlyOwn: of two devices of an account that both traded with an owner, the one whose ledger was lost gets its own leases and
// payments back, and none of its sister's, in either role and however often it asks. What stays out is counted, and is no lie of the owner's.
func TestRecoverOnlyOwn(t *testing.T) {
	for name, role := range map[string]ledger.Role{"renter": ledger.AsRenter, "provider": ledger.AsProvider} {
		synctest.Test(t, func(t *testing.T) {
			n := p2ptest.NewNet(t)
			pcs, other := sisters(t, n, 2), newSide(t, n, 1<<30, always(settle.Accept))
			n.Mesh()
			sell := func(pc side, from, lanes byte) {
				if role == ledger.AsRenter {
					trade(t, pc, other, from, lanes)
				} else {
					trade(t, other, pc, from, lanes)
				}
			}
			sell(pcs[0], 10, 2)
			sell(pcs[1], 20, 6)
			if role == ledger.AsRenter {
				pcs[0].pay(t, other, 500)
				pcs[1].pay(t, other, 700)
			}
			before := pcs[0].account(t, role, other)
			other.recovery(t)
			back := pcs[0].lost(t, true)
			r := back.recovery(t, other)
			for range 2 {
				f, err := r.Ask(t.Context(), other.dev.Peer())
				if err != nil || f.Skipped < 6 {
					t.Errorf("%s: %+v, %v", name, f, err)
				}
				if a := back.account(t, role, other); a.Owed != before.Owed || a.Settled != before.Settled || a.Lanes != 2 {
					t.Errorf("%s: %+v, it was %+v", name, a, before)
				}
			}
			skipped := back.skipped(t)
			if len(skipped) != 1 || skipped[pcs[1].dev.Peer()] != 6 {
				t.Errorf("%s: %v stayed out", name, skipped)
			}
			back.sound(t)
		})
	}
}

func (s side) skipped(t *testing.T) (out map[identity.PeerID]int) {
	t.Helper()
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) { out, err = r.Skipped(); return err }))
	return out
}

func (s side) sound(t *testing.T) {
	t.Helper()
	v, err := s.books.Verify(t.Context())
	must(t, err)
	if v.Result != books.ResultOK {
		t.Errorf("%+v", v)
	}
}

// TestTakeLostDevice: a PC is lost with its ledger. A new PC of the account, with the words and nothing else, takes its leases over when it is
// told to, and not before; the third PC's stay in that one's ledger.
func TestTakeLostDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := p2ptest.NewNet(t)
		pcs, owner := sisters(t, n, 3), newSide(t, n, 1<<30, always(settle.Accept))
		trade(t, pcs[0], owner, 10, 3)
		trade(t, pcs[1], owner, 20, 1)
		n.Mesh()
		pcs[0].pay(t, owner, 500)
		owner.recovery(t)
		back := pcs[2]
		r := back.recovery(t, owner)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if a := back.account(t, ledger.AsRenter, owner); a.Lanes != 0 {
			t.Errorf("before anybody said so: %+v", a)
		}
		must(t, r.Take(t.Context(), pcs[0].dev.Peer()))
		time.Sleep(time.Minute)
		synctest.Wait()
		if a := back.account(t, ledger.AsRenter, owner); a.Lanes != 3 || a.Owed != 2500 || a.Settled != 500 {
			t.Errorf("taken over: %+v", a)
		}
		if got := back.skipped(t); len(got) != 1 || got[pcs[1].dev.Peer()] != 1 {
			t.Errorf("%v stayed out", got)
		}
		if err := r.Take(t.Context(), back.dev.Peer()); err == nil {
			t.Error("a device takes itself over")
		}
		back.sound(t)
		cancel()
		must(t, <-done)
	})
}

// TestTakeWhatStayedOut: what stayed out of a restored ledger is asked for again when its device is taken over.
func TestTakeWhatStayedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := p2ptest.NewNet(t)
		pcs, owner := sisters(t, n, 2), newSide(t, n, 1<<30, nil)
		n.Mesh()
		trade(t, pcs[0], owner, 10, 1)
		trade(t, pcs[1], owner, 20, 2)
		owner.recovery(t)
		back := pcs[0].lost(t, true)
		r := back.recovery(t, owner)
		_, err := r.AskAll(t.Context())
		must(t, err)
		if got := back.skipped(t); got[pcs[1].dev.Peer()] != 2 {
			t.Errorf("%v stayed out", got)
		}
		must(t, r.Take(t.Context(), pcs[1].dev.Peer()))
		got, err := r.AskAll(t.Context())
		if err != nil || len(got) != 1 || got[0].Leases != 2 || got[0].Skipped != 0 {
			t.Errorf("%+v, %v", got, err)
		}
		if a := back.account(t, ledger.AsRenter, owner); a.Lanes != 3 || a.Owed != 3000 {
			t.Errorf("taken over: %+v", a)
		}
		if got := back.skipped(t); len(got) != 0 {
			t.Errorf("%v stayed out still", got)
		}
		back.sound(t)
	})
}
