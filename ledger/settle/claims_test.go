package settle_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

const claimsProtocol = p2p.Protocol("/gpufair/test/claims/1.0.0")

// claims serves the conversation about claims on a side.
func (s side) claims(t *testing.T) *settle.Claims {
	t.Helper()
	c, err := settle.NewClaims(settle.ClaimsConfig{
		Network: s.net, Protocol: claimsProtocol, Books: s.books, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	must(t, err)
	s.net.Handle(claimsProtocol, settle.ClaimLimits(), c.Handler())
	return c
}

// rent sells a lane due in so many days, brings its voucher over and ends it.
func rent(t *testing.T, renter, provider side, lane byte, amount money.Micro, days uint32) ledger.Lane {
	t.Helper()
	o := books.Opening{
		Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Lane: ledger.Lane{lane}, Rate: 3_600_000, Devices: 1, DueDays: days,
	}
	var first []byte
	renter.update(t, func(tx *books.Tx) (err error) { first, err = tx.Promise(o); return err })
	provider.update(t, func(tx *books.Tx) error { _, err := tx.OpenLane(o, first, renter.dev.Delegation()); return err })
	renter.update(t, func(tx *books.Tx) error {
		_, err := tx.SignVoucher(o.Lane, amount, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	must(t, renter.Exchange(t.Context(), provider.dev.Peer(), o.Channel))
	for _, s := range []side{renter, provider} {
		s.update(t, func(tx *books.Tx) error { _, err := tx.CloseLane(o.Lane, amount); return err })
	}
	return o.Lane
}

func (s side) peerOf(context.Context, identity.AccountID) (identity.PeerID, error) {
	return s.dev.Peer(), nil
}

func (s side) owed(t *testing.T) statement.Debt {
	t.Helper()
	var out statement.Owed
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) { out, err = r.ShowOwed(); return err }))
	if len(out.Owed) != 1 {
		t.Fatalf("%d debts", len(out.Owed))
	}
	return out.Owed[0]
}

// A renter is reminded when a payment is due and weekly after it, as often over restarts of the provider's daemon, and ten times at most.
// Who is away is reminded when it is back; who has paid, never again.
func TestReminders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, nil)
		renter.claims(t)
		claims := provider.claims(t)
		rent(t, renter, provider, 1, 1000, 14)
		ended := time.Now()
		day := 24 * time.Hour
		runFor := func(d time.Duration) { // a daemon that is started, and stopped again
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			must(t, claims.Run(ctx, renter.peerOf))
			synctest.Wait()
		}
		want := func(number uint32, at time.Duration, in time.Duration) {
			t.Helper()
			for _, s := range []side{renter, provider} {
				d := s.owed(t)
				if d.Reminders != number || number > 0 && (d.RemindedAt.Before(ended.Add(at)) || d.RemindedAt.After(ended.Add(at+in))) {
					t.Fatalf("after %v as %s: %d reminders, the last at %v", time.Since(ended), d.Role, d.Reminders, d.RemindedAt)
				}
			}
		}
		runFor(13 * day)
		want(0, 0, 0)
		runFor(day + 11*time.Minute)
		want(1, 14*day, 11*time.Minute)
		for range 20 {
			runFor(time.Hour)
		}
		want(1, 14*day, 11*time.Minute)
		n.Partition(renter.dev.Peer(), provider.dev.Peer())
		runFor(8 * day)
		d := provider.owed(t)
		if d.Reminders != 1 || d.Overdue30 != "0.001" || !d.Late {
			t.Fatalf("while the renter is away: %+v", d)
		}
		n.Heal(renter.dev.Peer(), provider.dev.Peer())
		n.Mesh()
		back := time.Since(ended)
		runFor(11 * time.Minute)
		want(2, back, 11*time.Minute)
		runFor(100 * day)
		if d := renter.owed(t); d.Reminders != 10 || d.Overdue != "0.001" {
			t.Fatalf("after 100 days: %+v", d)
		}
		_, _, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Amount: 1000, Method: "manual"})
		must(t, err)
		rent(t, renter, provider, 2, 500, 7)
		ended = time.Now()
		runFor(6 * day)
		want(0, 0, 0)
		runFor(day + 11*time.Minute)
		want(1, 7*day, 11*time.Minute)
	})
}

// Nobody leaves a reminder but whom this account rented from, and only as the provider's own.
func TestReminderOfAStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		renter.claims(t)
		reminder := &books.Reminder{Number: 1, Due: 5, Sent: 6, Amount: 7}
		c := ledger.Channel{Renter: renter.dev.Account(), Provider: provider.dev.Account(), Unit: money.Credit}
		ask := func(m settle.Claim) error {
			m.Delegation = provider.dev.Delegation()
			var got settle.Reply
			return p2p.Call(t.Context(), provider.net, renter.dev.Peer(), claimsProtocol, m, &got, 1<<14)
		}
		if err := ask(settle.Claim{Channel: c, Reminder: reminder}); p2p.KindOf(err) != p2p.KindNotFound {
			t.Errorf("of a stranger: %v", err)
		}
		rent(t, renter, provider, 1, 1000, 14)
		swapped := c
		swapped.Renter, swapped.Provider = c.Provider, c.Renter
		if err := ask(settle.Claim{Channel: swapped, Reminder: reminder}); p2p.KindOf(err) != p2p.KindForbidden {
			t.Errorf("of who owes: %v", err)
		}
		for _, bad := range []books.Reminder{{Due: 5, Sent: 6, Amount: 7}, {Number: 1, Due: 5, Sent: 6}, {Number: 1, Due: 5, Sent: 4, Amount: 7}, {Number: 1 << 30, Due: 5, Sent: 6, Amount: 7}} {
			if err := ask(settle.Claim{Channel: c, Reminder: &bad}); p2p.KindOf(err) != p2p.KindBadRequest {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		if d := renter.owed(t); d.Reminders != 0 {
			t.Fatalf("%+v", d)
		}
		must(t, ask(settle.Claim{Channel: c, Reminder: reminder}))
		if d := renter.owed(t); d.Reminders != 1 {
			t.Fatalf("%+v", d)
		}
		if errors.Is(ask(settle.Claim{Channel: c}), books.ErrRole) {
			t.Error("an empty claim")
		}
	})
}

func (s side) dispute(t *testing.T, lane ledger.Lane) (d books.Dispute) {
	t.Helper()
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) { d, err = r.Dispute(lane); return err }))
	return d
}

// Whoever opens the dispute, both sides end with the same newest voucher and its receipt, each other's record, and after both said the
// same amount the same credit note: by themselves, whenever they are connected.
func TestDisputeIsExchanged(t *testing.T) {
	for _, byRenter := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := world(t, nil)
			renterClaims, providerClaims := renter.claims(t), provider.claims(t)
			go renterClaims.Run(t.Context(), provider.peerOf)
			go providerClaims.Run(t.Context(), renter.peerOf)
			lane := rent(t, renter, provider, 1, 600, 14)
			from, to := provider, renter
			if byRenter {
				from, to = renter, provider
			}
			n.Partition(renter.dev.Peer(), provider.dev.Peer())
			from.update(t, func(tx *books.Tx) error { _, err := tx.OpenDispute(lane, "slow", 14*dayMs); return err })
			time.Sleep(time.Hour)
			if from.dispute(t, lane).Told {
				t.Fatal("told over a cut line")
			}
			n.Heal(renter.dev.Peer(), provider.dev.Peer())
			n.Mesh()
			time.Sleep(15 * time.Minute)
			synctest.Wait()
			if d := to.dispute(t, lane); string(d.Theirs) != string(from.dispute(t, lane).Mine) || !from.dispute(t, lane).Told {
				t.Fatalf("not told: %+v", d)
			}
			for _, offer := range []struct {
				side
				amount money.Micro
			}{{from, 500}, {to, 300}, {from, 300}} {
				offer.update(t, func(tx *books.Tx) error { return tx.OfferCredit(lane, offer.amount) })
				time.Sleep(15 * time.Minute)
				synctest.Wait()
			}
			for _, s := range []side{renter, provider} {
				if d := s.dispute(t, lane); d.Agreed == nil || *d.Agreed != 300 || !d.Told {
					t.Fatalf("%+v", d)
				}
			}
			same(t, renter, provider, 300, 0)
		})
	}
}

const dayMs = int64(24 * time.Hour / time.Millisecond)

// The provider opens a dispute before the renter's newest voucher came: the exchange brings it, with a receipt.
func TestDisputeBringsTheNewestVoucher(t *testing.T) {
	for _, byRenter := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			_, renter, provider := world(t, nil)
			renterClaims, providerClaims := renter.claims(t), provider.claims(t)
			c := owe(t, renter, provider, 1, 600)
			must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
			lane := ledger.Lane{1}
			renter.update(t, func(tx *books.Tx) error {
				_, err := tx.SignVoucher(lane, 900, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: 900}})
				return err
			})
			from, claims, to := provider, providerClaims, renter
			if byRenter {
				from, claims, to = renter, renterClaims, provider
			}
			from.update(t, func(tx *books.Tx) error { _, err := tx.OpenDispute(lane, "slow", 14*dayMs); return err })
			for range 2 { // a repeat changes nothing
				must(t, claims.Dispute(t.Context(), to.dev.Peer(), lane))
			}
			must(t, renter.books.View(t.Context(), func(r *books.Reader) error {
				l, err := r.Lane(lane)
				if l.Missing() != 0 {
					t.Errorf("the renter has no receipt: %+v", l)
				}
				return err
			}))
			same(t, renter, provider, 900, 0)
		})
	}
}

// Strangers leave nothing: whoever claims nothing is refused before its delegation is kept.
func TestEmptyClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		provider.claims(t)
		ask := settle.Claim{Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Delegation: renter.dev.Delegation()}
		var got settle.Reply
		if err := p2p.Call(t.Context(), renter.net, provider.dev.Peer(), claimsProtocol, ask, &got, 1<<16); p2p.KindOf(err) != p2p.KindBadRequest {
			t.Error(err)
		}
		must(t, provider.books.View(t.Context(), func(r *books.Reader) error {
			kept, err := r.HasDelegation(renter.dev.DelegationHash())
			if kept {
				t.Error("the delegation of a stranger was kept")
			}
			return err
		}))
	})
}
