package provider

import (
	"context"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// An account that orders and does not answer can't hold the owner's devices for 30 s again and again.
func TestUnanswered(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.conf.Unanswered = 2
		must(t, r.a.Reload(r.conf))
		for n := range 2 {
			k := r.sell()
			if _, err := r.a.Sell(context.Background(), r.sale()); reason.Is(err, reason.Unanswered) != (n == 1) {
				t.Fatalf("beside lease %d, which waits: %v", n, err)
			}
			r.await(k.id, work.Ended, (work.ReadyIn+6)*time.Second)
			<-k.done
		}
		if _, err := r.a.Sell(context.Background(), r.sale()); !reason.Is(err, reason.Unanswered) {
			t.Fatalf("a third lease: %v", err)
		}
		time.Sleep(unansweredFor)
		r.paying.Store(true)
		k := r.run() // it is served again, and what it answers to does not count
		time.Sleep(20 * time.Second)
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		r.a.mu.Lock()
		defer r.a.mu.Unlock()
		if n := len(r.a.unanswered); n != 0 {
			t.Errorf("%d leases are remembered", n)
		}
	})
}

// An account costs nothing: those that never come back are forgotten, too.
func TestUnansweredIsForgotten(t *testing.T) {
	var a Agent
	now := time.Unix(1_800_000_000, 0)
	for i := range 3 * int(unansweredFor/time.Minute) {
		a.unansweredBy(identity.AccountID{byte(i)}, now.Add(time.Duration(i)*time.Minute))
	}
	if n := len(a.unanswered); n > int(unansweredFor/time.Minute)+1 {
		t.Errorf("%d leases are remembered", n)
	}
}

// A renter that signs two vouchers with one sequence gets nothing more, whatever way the second came, and the proof is kept.
func TestEquivocation(t *testing.T) {
	for name, settled := range map[string]bool{"on the lane": false, "by a settlement": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.paying.Store(true)
				k := r.run()
				time.Sleep(31 * time.Second)
				r.paying.Store(false)
				var raw []byte
				must(t, r.theirs.View(context.Background(), func(b *books.Reader) (err error) {
					raw, err = b.Voucher(ledger.Lane(k.id), 2)
					return err
				}))
				v, err := voucher.Open(raw)
				must(t, err)
				v.Amount++
				twin, err := voucher.Sign(r.renter, v.Voucher)
				must(t, err)
				if settled {
					_ = r.a.books.Update(context.Background(), func(tx *books.Tx) error { _, err := tx.AcceptVoucher(twin.Raw, v.Prev); return err })
				} else {
					must(t, k.do(context.Background(), func() error {
						k.claims++
						return k.onUp(k.a.ctx, work.LaneUp{Beat: k.beat, Voucher: twin.Raw})
					}))
				}
				r.await(k.id, work.Ended, 3*time.Second)
				rec := r.over(k.id, "equivocation")
				must(t, r.a.books.View(context.Background(), func(b *books.Reader) error {
					have, got, err := b.Fraud(ledger.Lane(k.id))
					if string(have) != string(raw) || string(got) != string(twin.Raw) {
						t.Error("the proof is not kept")
					}
					return err
				}))
				if rec.Charge > 36_000 {
					t.Errorf("charged %v", rec.Charge)
				}
			})
		})
	}
}
