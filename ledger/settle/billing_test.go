package settle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/rail"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// bank is a way of paying, behind the programs of both sides.
type bank struct {
	mu       sync.Mutex
	asked    map[rail.Action]int
	invoices map[string]string                       // key to reference
	paid     map[string]string                       // reference to amount
	payments map[string]int                          // by key
	wrong    func(rail.Request) (rail.Answer, error) // nil: it works
}

func newBank() *bank {
	return &bank{asked: map[rail.Action]int{}, invoices: map[string]string{}, paid: map[string]string{}, payments: map[string]int{}}
}

// Do fulfils settle.Rail.
func (b *bank) Do(_ context.Context, r rail.Request) (rail.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[r.Action]++
	if b.wrong != nil {
		if a, err := b.wrong(r); err != nil || a.State != "" {
			return a, err
		}
	}
	switch r.Action {
	case rail.Invoice:
		if b.invoices[r.Key] == "" {
			b.invoices[r.Key] = fmt.Sprintf("INV-%d", len(b.invoices)+1)
		}
		return rail.Answer{State: rail.Open, Reference: b.invoices[r.Key], Method: "bank", Pay: "account 7"}, nil
	case rail.Pay:
		if r.Pay != "account 7" {
			return rail.Answer{State: rail.Refused, Why: "no such account"}, nil
		}
		b.paid[r.Reference] = r.Amount
		b.payments[r.Key] = 1
		return rail.Answer{State: rail.Paid}, nil
	}
	if amount := b.paid[r.Reference]; amount != "" {
		return rail.Answer{State: rail.Paid, Amount: amount}, nil
	}
	return rail.Answer{State: rail.Open}, nil
}

// made gives how many invoices there are, how many payments, and what was paid for a reference.
func (b *bank) made(reference string) (invoices, payments int, paid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.invoices), len(b.payments), b.paid[reference]
}

// come is money that came in otherwise.
func (b *bank) come(reference, amount string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[reference] = amount
}

// billing runs the billing of a side until the test's context ends.
func (s side) billing(t *testing.T, role ledger.Role, r settle.Rail, peer side) *settle.Billing {
	t.Helper()
	c := settle.BillingConfig{
		Network: s.net, Books: s.books, Settle: s.Service, Claims: s.claims(t), Role: role, Rail: r, Methods: []string{"bank", "wire"}, After: time.Hour,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	b, err := settle.NewBilling(c)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { must(t, b.Run(ctx, peer.peerOf)) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return b
}

func (s side) bill(t *testing.T, role ledger.Role, peer side) (b books.Bill) {
	t.Helper()
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) {
		b, _, err = r.Bill(role, money.Credit, peer.dev.Account())
		return err
	}))
	return b
}

func (s side) settlements(t *testing.T) (out []statement.Settlement) {
	t.Helper()
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) { out, err = r.ShowSettlements(); return err }))
	return out
}

// pass lets time go by until everybody waits again.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Both sides have a program: an invoice is made an hour after the lease ended, paid once, and both sign for it with its reference. The next
// lease makes another.
func TestBillingByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		renter.billing(t, ledger.AsRenter, b, provider)
		provider.billing(t, ledger.AsProvider, b, renter)
		rent(t, renter, provider, 1, 1000, 14)
		pass(30 * time.Minute)
		if n, _, _ := b.made(""); n != 0 {
			t.Fatal("an invoice came at once")
		}
		pass(time.Hour)
		same(t, renter, provider, 0, 1000)
		rent(t, renter, provider, 2, 1000, 14) // the same amount again is another payment
		pass(3 * time.Hour)
		same(t, renter, provider, 0, 2000)
		if invoices, payments, paid := b.made("INV-2"); invoices != 2 || payments != 2 || paid != "0.001" {
			t.Errorf("%d invoices, %d payments, %q for the second", invoices, payments, paid)
		}
		for _, s := range []side{renter, provider} {
			signed := 0
			for _, v := range s.settlements(t) {
				if v.State == "refused" { // both saw the payment in the same minute: the payer's word stands
					continue
				}
				if signed++; v.State != "signed" || !strings.HasPrefix(v.Reference, "INV-") || v.Method != "bank" || len(v.Signed) != 2 {
					t.Errorf("%+v", v)
				}
			}
			if signed != 2 {
				t.Errorf("%d settlements", signed)
			}
		}
	})
}

// The renter pays by hand: the owner's program finds the money, and the owner's daemon signs first, or after the renter's word for it.
func TestBillingFindsMoney(t *testing.T) {
	for name, tell := range map[string]bool{"and the renter says nothing": false, "and the renter says so": true} {
		synctest.Test(t, func(t *testing.T) {
			_, renter, provider := world(t, nil)
			b := newBank()
			renter.billing(t, ledger.AsRenter, nil, provider)
			provider.billing(t, ledger.AsProvider, b, renter)
			rent(t, renter, provider, 1, 1000, 14)
			pass(2 * time.Hour)
			bill := renter.bill(t, ledger.AsRenter, provider)
			if bill.State != books.BillOpen || bill.Reference != "INV-1" || bill.Pay != "account 7" || bill.Amount != 1000 {
				t.Fatalf("%s: %+v", name, bill)
			}
			if tell {
				_, state, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{
					Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Amount: 1000, Method: "bank", Reference: "INV-1",
				})
				must(t, err)
				if state != books.Proposed {
					t.Fatalf("%s: %s without a look at the bank", name, state)
				}
				pass(3 * time.Hour)
				same(t, renter, provider, 1000, 0)
			}
			b.come("INV-1", "0.001")
			pass(3 * time.Hour)
			same(t, renter, provider, 0, 1000)
			if got := provider.bill(t, ledger.AsProvider, renter); got.State != books.BillPaid {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
}

// What a program has found is signed and told at once: the renter, who does not ask again here, has both signatures with it.
func TestBillingTellsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		provider.billing(t, ledger.AsProvider, b, renter)
		c := owe(t, renter, provider, 1, 1000)
		pay := func(reference string) {
			t.Helper()
			_, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "bank", Reference: reference})
			must(t, err)
		}
		pay("transfer 9")
		b.come("transfer 9", "0.001")
		pass(2 * time.Minute)
		same(t, renter, provider, 0, 1000)
		rent(t, renter, provider, 2, 1000, 14)
		pass(2 * time.Hour)
		pay("INV-1")
		b.come("INV-1", "0.001")
		pass(time.Hour)
		same(t, renter, provider, 0, 2000)
	})
}

// A payment with the renter's own reference, without any invoice, is signed for when the owner's program finds it.
func TestBillingChecksClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		renter.billing(t, ledger.AsRenter, nil, provider)
		provider.billing(t, ledger.AsProvider, b, renter)
		c := owe(t, renter, provider, 1, 1000)
		_, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1500, Method: "bank", Reference: "transfer 9"})
		must(t, err)
		pass(time.Hour)
		same(t, renter, provider, 1000, 0)
		b.come("transfer 9", "0.001") // less than it says
		pass(time.Hour)
		same(t, renter, provider, 1000, 0)
		b.come("transfer 9", "0.0015")
		pass(3 * time.Hour)
		same(t, renter, provider, -500, 1500)
	})
}

// One payment is confirmed once by the program, whoever claims it, under which method, and whether an invoice has its reference; the rest
// waits for a person.
func TestBillingConfirmsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, nil)
		other := newSide(t, n, 0, nil)
		n.Mesh()
		b := newBank()
		billing := provider.billing(t, ledger.AsProvider, b, renter)
		c, others := owe(t, renter, provider, 1, 1000), other.books.Channel(provider.dev.Account(), money.Credit)
		rent(t, other, provider, 2, 1000, 14)
		claim := func(s side, c ledger.Channel, method, reference string) wire.Hash {
			t.Helper()
			id, _, err := s.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: method, Reference: reference})
			must(t, err)
			return id
		}
		b.come("transfer 9", "0.001")
		claim(renter, c, "bank", "transfer 9")
		pass(time.Hour)
		again := claim(renter, c, "wire", "transfer 9")
		claim(other, others, "bank", "transfer 9")
		pass(2 * time.Hour) // an invoice to the other is open
		b.come("INV-1", "0.001")
		claim(renter, c, "wire", "INV-1")
		pass(time.Hour)
		b.mu.Lock()
		asked := b.asked[rail.Check]
		b.wrong = func(r rail.Request) (rail.Answer, error) {
			if r.Method == "cash" {
				asked = -1
			}
			return rail.Answer{}, nil
		}
		b.mu.Unlock()
		b.come("note 5", "0.001")
		claim(renter, c, "cash", "note 5")
		pass(3 * time.Hour)
		b.mu.Lock()
		if asked < 0 {
			t.Error("the program was asked about a method that the owner does not take")
		}
		b.mu.Unlock()
		signed := map[string]int{}
		for _, s := range provider.settlements(t) {
			if s.State == "signed" || s.State == "proposed" {
				signed[s.Reference]++
			}
		}
		if len(signed) != 2 || signed["transfer 9"] != 1 || signed["INV-1"] != 1 {
			t.Errorf("signed: %v", signed)
		}
		if got := provider.bill(t, ledger.AsProvider, other); got.State != books.BillPaid {
			t.Errorf("%+v", got)
		}
		lines := billing.Troubles()
		for _, x := range lines {
			if !strings.Contains(x.Err, "waits for you") || !strings.Contains(x.Err, books.ErrPaid.Error()) {
				t.Error(x.Text())
			}
		}
		if len(lines) != 3 {
			t.Errorf("%d lines: %+v", len(lines), lines)
		}
		must(t, provider.Accept(t.Context(), again)) // a person may
	})
}

// Of a payment that a renter claims the program must say the amount: else it may have read only the reference.
func TestBillingClaimNeedsAmount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		b.wrong = func(rail.Request) (rail.Answer, error) { return rail.Answer{State: rail.Paid}, nil }
		billing := provider.billing(t, ledger.AsProvider, b, renter)
		c := owe(t, renter, provider, 1, 1000)
		_, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "bank", Reference: "transfer 9"})
		must(t, err)
		pass(time.Hour)
		same(t, renter, provider, 1000, 0)
		if got := billing.Troubles(); len(got) != 1 || !strings.Contains(got[0].Err, "without its amount") {
			t.Errorf("%+v", got)
		}
	})
}

// A part of an invoice that both have signed for ends it, and the next asks for the rest.
func TestBillingAsksTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		renter.billing(t, ledger.AsRenter, nil, provider)
		billing := provider.billing(t, ledger.AsProvider, b, renter)
		rent(t, renter, provider, 1, 1000, 14)
		pass(2 * time.Hour)
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{
			Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Amount: 400, Method: "bank", Reference: "INV-1",
		})
		must(t, err)
		must(t, provider.Accept(t.Context(), id))
		pass(2 * time.Hour)
		same(t, renter, provider, 600, 400)
		if got := renter.bill(t, ledger.AsRenter, provider); got.Reference != "INV-2" || got.Amount != 600 || len(billing.Troubles()) != 0 {
			t.Errorf("%+v; %+v", got, billing.Troubles())
		}
	})
}

// A program that fails costs a line that says so, fewer and fewer tries, and nothing else; what works meanwhile works.
func TestBillingTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		b.wrong = func(rail.Request) (rail.Answer, error) { return rail.Answer{}, errors.New("the bank is closed") }
		renter.billing(t, ledger.AsRenter, nil, provider)
		billing := provider.billing(t, ledger.AsProvider, b, renter)
		rent(t, renter, provider, 1, 1000, 14)
		pass(25 * time.Hour)
		got := billing.Troubles()
		if len(got) != 1 || got[0].Err != "the bank is closed" || got[0].What != "make an invoice" || got[0].Peer != renter.dev.Account() || got[0].Tries < 20 || got[0].Tries > 40 {
			t.Fatalf("%+v", got)
		}
		rent(t, renter, provider, 2, 1000, 14)
		_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{
			Channel: renter.books.Channel(provider.dev.Account(), money.Credit), Amount: 500, Method: "manual", Reference: "cash",
		})
		if err != nil || state != books.Signed {
			t.Fatalf("%v, %v", state, err)
		}
		b.mu.Lock()
		b.wrong = nil
		b.mu.Unlock()
		pass(2 * time.Hour)
		if got := billing.Troubles(); len(got) != 0 {
			t.Errorf("after it was repaired: %+v", got)
		}
		if n, _, _ := b.made(""); n != 1 || renter.bill(t, ledger.AsRenter, provider).Reference != "INV-1" {
			t.Errorf("%d invoices", n)
		}
	})
}

// Nothing is paid beyond what this ledger says is owed, nothing twice, and nothing more to whom took money and did not sign.
func TestBillingPaysNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		b := newBank()
		billing := renter.billing(t, ledger.AsRenter, b, provider)
		rent(t, renter, provider, 1, 1000, 14)
		channel := ledger.Channel{Renter: renter.dev.Account(), Provider: provider.dev.Account(), Unit: money.Credit}
		send := func(from side, w settle.BillWord) error {
			var got settle.Reply
			m := settle.Claim{Channel: channel, Delegation: from.dev.Delegation(), Bill: &w}
			return p2p.Call(t.Context(), from.net, renter.dev.Peer(), claimsProtocol, m, &got, 1<<14)
		}
		must(t, send(provider, settle.BillWord{Amount: 1001, Method: "bank", Reference: "A", Pay: "account 7"}))
		pass(2 * time.Hour)
		_, payments, _ := b.made("")
		if got := billing.Troubles(); payments != 0 || len(got) != 1 || !strings.Contains(got[0].Err, "more than is owed") {
			t.Fatalf("%d payments, %+v", payments, got)
		}
		must(t, send(provider, settle.BillWord{Amount: 600, Method: "bank", Reference: "B", Pay: "account 7"}))
		pass(2 * time.Hour)
		must(t, send(provider, settle.BillWord{Amount: 600, Method: "bank", Reference: "B", Pay: "account 7"})) // again
		if err := send(provider, settle.BillWord{Amount: 400, Method: "bank", Reference: "C", Pay: "account 7"}); p2p.KindOf(err) != p2p.KindConflict {
			t.Errorf("before it signed for the first: %v", err)
		}
		pass(2 * time.Hour)
		if _, payments, paid := b.made("B"); payments != 1 || paid != "0.0006" {
			t.Fatalf("%d payments, %q", payments, paid)
		}
		for _, s := range provider.settlements(t) {
			if s.State != "waiting" || s.Reference != "B" {
				t.Errorf("%+v", s)
			}
		}
		for what, w := range map[string]settle.BillWord{
			"no reference": {Amount: 1, Method: "bank"}, "no amount": {Method: "bank", Reference: "D"},
			"too long": {Amount: 1, Method: "bank", Reference: strings.Repeat("x", 129)},
		} {
			if err := send(provider, w); p2p.KindOf(err) != p2p.KindBadRequest {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// Where money goes is said by a device that may sell, and that its account has not let go; and by nobody whom this account never rented from.
func TestBillOfAStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, nil)
		stranger := newSide(t, n, 0, nil)
		n.Mesh()
		var revoked error
		c, err := settle.NewClaims(settle.ClaimsConfig{
			Network: renter.net, Protocol: claimsProtocol, Books: renter.books, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Revoked: func(identity.Delegation) error { return revoked },
		})
		must(t, err)
		renter.net.Handle(claimsProtocol, settle.ClaimLimits(), c.Handler())
		rent(t, renter, provider, 1, 1000, 14)
		send := func(from side) p2p.Kind {
			m := settle.Claim{
				Channel:    ledger.Channel{Renter: renter.dev.Account(), Provider: from.dev.Account(), Unit: money.Credit},
				Delegation: from.dev.Delegation(), Bill: &settle.BillWord{Amount: 5, Method: "bank", Reference: "A"},
			}
			return p2p.KindOf(p2p.Call(t.Context(), from.net, renter.dev.Peer(), claimsProtocol, m, &settle.Reply{}, 1<<14))
		}
		if got := send(stranger); got != p2p.KindNotFound {
			t.Errorf("a stranger: %v", got)
		}
		revoked = errors.New("the account let it go")
		if got := send(provider); got != p2p.KindForbidden {
			t.Errorf("a device that was let go: %v", got)
		}
		revoked = nil
		if got := send(provider); got != p2p.Kind(0) {
			t.Errorf("the provider: %v", got)
		}
	})
}
