package settle_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const protocol = p2p.Protocol("/gpufair/test/settle/1.0.0")

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// side is one account with ledger, network and conversation.
type side struct {
	*settle.Service
	books *books.Books
	dev   *identity.Device
	net   p2p.Network
}

func newSide(t *testing.T, n *p2ptest.Net, stranger money.Micro, decide decider) side {
	t.Helper()
	dev := p2ptest.Device(t)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(t, err)
	b, err := books.Open(t.Context(), books.Config{
		Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: stranger, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
	})
	must(t, err)
	t.Cleanup(func() { b.Close() })
	node := n.Join(dev)
	s, err := settle.New(settle.Config{Network: node, Protocol: protocol, Books: b, Decide: decide})
	must(t, err)
	node.Handle(protocol, settle.Limits(), s.Handler())
	return side{Service: s, books: b, dev: dev, net: node}
}

func (s side) update(t *testing.T, f func(*books.Tx) error) {
	t.Helper()
	must(t, s.books.Update(t.Context(), f))
}

func (s side) account(t *testing.T, role ledger.Role, peer side) (a books.Account) {
	t.Helper()
	must(t, s.books.View(t.Context(), func(r *books.Reader) (err error) {
		a, err = r.Account(role, money.Credit, peer.dev.Account())
		return err
	}))
	return a
}

// owe opens lanes on both sides and signs amount on each; nothing is delivered.
func owe(t *testing.T, renter, provider side, lanes int, amount money.Micro) ledger.Channel {
	t.Helper()
	c := renter.books.Channel(provider.dev.Account(), money.Credit)
	for i := range lanes {
		o := books.Opening{Channel: c, Lane: ledger.Lane{1, byte(i >> 8), byte(i)}, Rate: 3_600_000, Devices: 1}
		var first []byte
		renter.update(t, func(tx *books.Tx) (err error) {
			if first, err = tx.Promise(o); err != nil {
				return err
			}
			_, err = tx.SignVoucher(o.Lane, amount, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(amount)}})
			return err
		})
		provider.update(t, func(tx *books.Tx) error {
			_, err := tx.OpenLane(o, first, renter.dev.Delegation())
			return err
		})
	}
	return c
}

func same(t *testing.T, renter, provider side, owed int64, settled money.Micro) {
	t.Helper()
	a, b := renter.account(t, ledger.AsRenter, provider), provider.account(t, ledger.AsProvider, renter)
	if a.Owed != owed || b.Owed != owed || a.Settled != settled || b.Settled != settled {
		t.Fatalf("renter %+v, provider %+v; want owed %d, settled %d", a, b, owed, uint64(settled))
	}
	for _, s := range []side{renter, provider} {
		v, err := s.books.Verify(t.Context())
		must(t, err)
		if v.Result != books.ResultOK {
			t.Fatalf("%+v", v)
		}
	}
}

// decider is what judges proposals.
type decider = func(*books.Reader, identity.AccountID, voucher.Settlement) (settle.Decision, error)

func always(d settle.Decision) decider {
	return func(*books.Reader, identity.AccountID, voucher.Settlement) (settle.Decision, error) { return d, nil }
}

func world(t *testing.T, decide decider) (n *p2ptest.Net, renter, provider side) {
	t.Helper()
	n = p2ptest.NewNet(t)
	renter, provider = newSide(t, n, 0, nil), newSide(t, n, 1<<30, decide)
	n.Mesh()
	return n, renter, provider
}

// Either side brings a hundred lanes' newest vouchers over, in several messages; receipts come back to the renter.
func TestExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 70, 1000)
		must(t, provider.Exchange(t.Context(), renter.dev.Peer(), c))
		same(t, renter, provider, 70_000, 0)
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		same(t, renter, provider, 70_000, 0)
		must(t, renter.books.View(t.Context(), func(r *books.Reader) error {
			return r.EachLane(func(l books.Lane) error {
				if l.Missing() != 0 {
					t.Errorf("lane %s has no receipt", l.Lane.Short())
				}
				return nil
			})
		}))
	})
}

// The renter has paid outside; the owner looks at the bank and signs; the surplus is prepaid.
func TestRenterProposesOwnerSigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		pay := books.Payment{Channel: c, Amount: 1500, Method: "manual", Reference: "transfer 9"}
		id, state, err := renter.Settle(t.Context(), provider.dev.Peer(), pay)
		must(t, err)
		if state != books.Proposed {
			t.Fatalf("state %s before the owner has looked", state)
		}
		same(t, renter, provider, 1000, 0)
		must(t, provider.Accept(t.Context(), id))
		again, state, err := renter.Settle(t.Context(), provider.dev.Peer(), pay) // asks again, pays nothing twice
		must(t, err)
		if again != id || state != books.Signed {
			t.Fatalf("state %s", state)
		}
		same(t, renter, provider, -500, 1500)
	})
}

func TestOwnerBringsItsSignature(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual"})
		must(t, err)
		must(t, provider.Accept(t.Context(), id))
		for range 2 {
			state, err := provider.Send(t.Context(), renter.dev.Peer(), id)
			must(t, err)
			if state != books.Signed {
				t.Fatalf("state %s", state)
			}
		}
		same(t, renter, provider, 0, 1000)
	})
}

// The owner says that money came: the renter's side signs by itself, since it loses nothing.
func TestOwnerProposes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 3, 1000)
		_, state, err := provider.Settle(t.Context(), renter.dev.Peer(), books.Payment{Channel: c, Amount: 3000, Method: "manual", Reference: "b"})
		must(t, err)
		if state != books.Signed {
			t.Fatalf("state %s", state)
		}
		same(t, renter, provider, 0, 3000)
	})
}

func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual"})
		must(t, err)
		must(t, provider.Refuse(t.Context(), id, "no money came"))
		if _, err := provider.Send(t.Context(), renter.dev.Peer(), id); err != nil {
			t.Fatal(err)
		}
		state, err := renter.Send(t.Context(), provider.dev.Peer(), id)
		must(t, err)
		if state != books.Refused {
			t.Fatalf("state %s", state)
		}
		same(t, renter, provider, 1000, 0)
	})
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, always(settle.Refuse))
		c := owe(t, renter, provider, 1, 1000)
		_, state, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual"})
		must(t, err)
		if state != books.Refused {
			t.Fatalf("state %s", state)
		}
	})
}

// A reason of the other side that is cut within a letter stays readable, and so does the list of what it stands in.
func TestRefusedInManyWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, renter, provider := world(t, nil)
		c := owe(t, renter, provider, 1, 1000)
		id, _, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual"})
		must(t, err)
		say := settle.Ask{Channel: c.AllEpochs(), Delegation: provider.dev.Delegation(), Refused: &settle.Refusal{ID: id, Why: "x" + strings.Repeat("ä", 100)}}
		must(t, p2p.Call(t.Context(), provider.net, renter.dev.Peer(), protocol, say, &settle.Answer{}, 1<<14))
		if got := renter.settlements(t); len(got) != 1 || got[0].State != "refused" || got[0].Why != "x"+strings.Repeat("ä", 63) {
			t.Errorf("%+v", got)
		}
	})
}

// A voucher that is refused at the credit limit does not keep the renter from settling, and settling lets it in.
func TestSettleAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := p2ptest.NewNet(t)
		renter, provider := newSide(t, n, 0, nil), newSide(t, n, 1500, always(settle.Accept))
		n.Mesh()
		c := owe(t, renter, provider, 2, 1000)
		if err := renter.Exchange(t.Context(), provider.dev.Peer(), c); !errors.Is(err, settle.ErrNotTaken) {
			t.Fatal(err)
		}
		_, state, err := renter.Settle(t.Context(), provider.dev.Peer(), books.Payment{Channel: c, Amount: 1000, Method: "manual", Reference: "a"})
		must(t, err)
		if state != books.Signed {
			t.Fatalf("state %s", state)
		}
		must(t, renter.Exchange(t.Context(), provider.dev.Peer(), c))
		same(t, renter, provider, 1000, 1000)
	})
}

// Settlement timed out after it was sent (storj#4190): the connection breaks after any number of bytes; asking again ends it, once.
func TestConnectionLostAnywhere(t *testing.T) {
	broken := 0
	for cut := 50; cut < 6000; cut += 260 {
		synctest.Test(t, func(t *testing.T) {
			n, renter, provider := world(t, always(settle.Accept))
			c := owe(t, renter, provider, 1, 1000)
			pay := books.Payment{Channel: c, Amount: 1200, Method: "manual", Reference: "invoice"}
			n.Faults(renter.dev.Peer(), provider.dev.Peer(), p2ptest.Faults{CutAfter: cut})
			if _, _, err := renter.Settle(t.Context(), provider.dev.Peer(), pay); err != nil {
				broken++
			}
			n.Faults(renter.dev.Peer(), provider.dev.Peer(), p2ptest.Faults{})
			n.Mesh()
			_, state, err := renter.Settle(t.Context(), provider.dev.Peer(), pay)
			must(t, err)
			if state != books.Signed {
				t.Fatalf("cut after %d bytes: state %s", cut, state)
			}
			same(t, renter, provider, -200, 1200)
		})
	}
	if broken < 5 {
		t.Fatalf("only %d conversations were broken", broken)
	}
}

// Strangers and liars get nothing written.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, renter, provider := world(t, always(settle.Accept))
		stranger := newSide(t, n, 0, nil)
		n.Mesh()
		c := owe(t, renter, provider, 1, 1000)
		proposal, err := voucher.SignSettlement(renter.dev, voucher.Settlement{Channel: c.AllEpochs(), Nonce: wire.Hash{1}, Amount: 5, Method: "manual"})
		must(t, err)
		much, err := voucher.SignSettlement(renter.dev, voucher.Settlement{
			Channel: c.AllEpochs(), Nonce: wire.Hash{1}, Amount: 5, Method: "manual", Lanes: []voucher.LaneAmount{{Lane: ledger.Lane{1}, Amount: 1 << 40}},
		})
		must(t, err)
		other := c
		other.Renter = stranger.dev.Account()
		many := make([][]byte, 33)
		for name, x := range map[string]struct {
			from side
			ask  settle.Ask
			want p2p.Kind
		}{
			"another's channel":         {stranger, settle.Ask{Channel: c.AllEpochs(), Delegation: stranger.dev.Delegation(), Proposal: proposal}, p2p.KindForbidden},
			"another's delegation":      {stranger, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Proposal: proposal}, p2p.KindForbidden},
			"another's proposal":        {stranger, settle.Ask{Channel: other.AllEpochs(), Delegation: stranger.dev.Delegation(), Proposal: proposal}, p2p.KindBadRequest},
			"no delegation":             {renter, settle.Ask{Channel: c, Proposal: proposal}, p2p.KindBadRequest},
			"garbage":                   {renter, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Proposal: []byte("x")}, p2p.KindBadRequest},
			"too many vouchers":         {renter, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Vouchers: many}, p2p.KindBadRequest},
			"no channel":                {renter, settle.Ask{Delegation: renter.dev.Delegation()}, p2p.KindBadRequest},
			"lanes that are not here":   {renter, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Proposal: much}, p2p.KindConflict},
			"countersigned nothing":     {renter, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Counter: proposal}, p2p.KindNotFound},
			"refuses what is not there": {renter, settle.Ask{Channel: c.AllEpochs(), Delegation: renter.dev.Delegation(), Refused: &settle.Refusal{}}, p2p.KindNotFound},
		} {
			err := p2p.Call(t.Context(), x.from.net, provider.dev.Peer(), protocol, x.ask, &settle.Answer{}, 1<<20)
			var refusal *p2p.Error
			if !errors.As(err, &refusal) || refusal.Kind != x.want {
				t.Errorf("%s: %v, want %s", name, err, x.want)
			}
		}
		got := provider.account(t, ledger.AsProvider, stranger)
		if got.LastEntry != 0 {
			t.Errorf("the stranger left %+v", got)
		}
	})
}
