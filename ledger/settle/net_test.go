package settle_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

const netProtocol = p2p.Protocol("/gpufair/test/net/1.0.0")

// member is an account that may be cleared in circles.
type member struct {
	side
	*settle.Net
	consents bool
	siblings []identity.PeerID
	engine   kv.Engine
	dir      string
}

// ring is members of which each owes the next, the last the first.
type ring struct {
	t   *testing.T
	net *p2ptest.Net
	all []*member
}

func newRing(t *testing.T, amounts ...money.Micro) *ring {
	t.Helper()
	r := &ring{t: t, net: p2ptest.NewNet(t)}
	for range amounts {
		r.join()
	}
	r.net.Mesh()
	r.around(amounts...)
	return r
}

// around lets each member owe the next.
func (r *ring) around(amounts ...money.Micro) {
	r.t.Helper()
	for i, amount := range amounts {
		r.owe(i, (i+1)%len(amounts), amount)
	}
}

func (r *ring) join() *member {
	r.t.Helper()
	m := newMember(r.t, &kv.Memory{})
	m.start(r.t, r.net.Join(m.dev))
	r.all = append(r.all, m)
	return m
}

func newMember(t *testing.T, engine kv.Engine) *member {
	t.Helper()
	return &member{side: side{dev: p2ptest.Device(t)}, consents: true, engine: engine, dir: t.TempDir()}
}

// start starts the member's program: ledger and conversations, over a network.
func (m *member) start(t *testing.T, n p2p.Network) {
	t.Helper()
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), m.engine, schema)
	must(t, err)
	m.side.net = n
	m.books, err = books.Open(t.Context(), books.Config{
		Dir: m.dir, Store: store, Device: m.dev, Log: quiet,
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 30, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
	})
	must(t, err)
	b := m.books
	t.Cleanup(func() { b.Close() })
	m.Service, err = settle.New(settle.Config{Network: n, Protocol: protocol, Books: b})
	must(t, err)
	n.Handle(protocol, settle.Limits(), m.Service.Handler())
	m.Net, err = settle.NewNet(settle.NetConfig{
		Network: n, Protocol: netProtocol, Books: b, Consent: func() bool { return m.consents },
		Siblings: func() []identity.PeerID { return m.siblings }, Log: quiet,
	})
	must(t, err)
	n.Handle(netProtocol, settle.NetLimits(), m.Net.Handler())
}

// owe lets one member owe another more, with voucher and receipt.
func (r *ring) owe(from, to int, amount money.Micro) {
	r.t.Helper()
	renter, provider := r.all[from], r.all[to]
	c := renter.books.Channel(provider.dev.Account(), money.Credit)
	o := books.Opening{Channel: c, Lane: ledger.Lane{byte(from + 1), byte(to + 1), byte(amount >> 8), byte(amount)}, Rate: 3_600_000, Devices: 1}
	var first []byte
	renter.update(r.t, func(tx *books.Tx) (err error) {
		if first, err = tx.Promise(o); err != nil {
			return err
		}
		_, err = tx.SignVoucher(o.Lane, amount, []meter.Segment{{Rate: 3_600_000, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	provider.update(r.t, func(tx *books.Tx) error {
		_, err := tx.OpenLane(o, first, renter.dev.Delegation())
		return err
	})
	must(r.t, renter.Exchange(r.t.Context(), provider.dev.Peer(), c))
}

// debts checks what each member owes the next, on both sides, and that every ledger verifies.
func (r *ring) debts(want ...int64) {
	r.t.Helper()
	for i, v := range want {
		a, b := r.all[i], r.all[(i+1)%len(want)]
		owes, owed := a.account(r.t, ledger.AsRenter, b.side), b.account(r.t, ledger.AsProvider, a.side)
		if owes.Owed != v || owed.Owed != v || owes.Settled != owed.Settled {
			r.t.Fatalf("member %d owes %d, is owed %d; want %d", i, owes.Owed, owed.Owed, v)
		}
	}
	for _, m := range r.all {
		v, err := m.books.Verify(r.t.Context())
		must(r.t, err)
		if v.Result != books.ResultOK {
			r.t.Fatalf("%+v", v)
		}
	}
}

// aside counts the clearings in which a member has something set aside.
func (m *member) aside(t *testing.T) (n int) {
	t.Helper()
	must(t, m.books.View(t.Context(), func(r *books.Reader) error {
		return r.Clearings(func(_ wire.Hash, v books.Netted) error {
			if v.State.Reserves() {
				n++
			}
			return nil
		})
	}))
	return n
}

// one finds the one circle through a member.
func (m *member) one(t *testing.T) settle.Circle {
	t.Helper()
	all, err := m.Find(t.Context(), money.Credit)
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("%d circles: %+v", len(all), all)
	}
	return all[0]
}

// poll lets every member look through its open clearings until nobody has any, or a few times.
func (r *ring) poll() {
	r.t.Helper()
	for range 4 {
		for _, m := range r.all {
			must(r.t, m.Poll(r.t.Context(), true))
		}
	}
}

// TestNet: A owes B, B owes C, C owes A: one of them finds the circle and clears it; with five as with three and two.
func TestNet(t *testing.T) {
	for _, amounts := range [][]money.Micro{{1000, 700}, {1000, 700, 900}, {500, 500, 400, 900, 600}, {9, 8, 7, 6, 5, 9, 9, 9}} {
		synctest.Test(t, func(t *testing.T) {
			r := newRing(t, amounts...)
			least, want := slices.Min(amounts), []int64{}
			for _, a := range amounts {
				want = append(want, int64(a-least))
			}
			var c settle.Circle
			for i := range r.all { // whoever looks finds it
				c = r.all[i].one(t)
				if c.Amount != least || len(c.Legs) != len(amounts) || c.Legs[0].Debtor != r.all[i].dev.Account() {
					t.Fatalf("%+v", c)
				}
			}
			starter := r.all[len(r.all)-1]
			got, err := starter.Clear(t.Context(), c)
			must(t, err)
			if got.State != netting.Cleared || got.Has != len(amounts) {
				t.Errorf("%+v", got)
			}
			r.debts(want...)
			if again, err := starter.Find(t.Context(), money.Credit); err != nil || len(again) != 0 {
				t.Errorf("after that: %+v, %v", again, err)
			}
			r.poll()
			r.debts(want...)
		})
	}
}

// TestNetTooLong: nine in a circle are not found.
func TestNetTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 9, 9, 9, 9, 9, 9, 9, 9, 9)
		if all, err := r.all[0].Find(t.Context(), money.Credit); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// TestNetConsent: nobody is told of the debts of an owner who did not agree to that, nothing is signed for him, and a member that changes its
// mind frees the others.
func TestNetConsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		c := r.all[0].one(t)
		r.all[2].consents = false
		if all, err := r.all[0].Find(t.Context(), money.Credit); err != nil || len(all) != 0 {
			t.Errorf("found through one who did not consent: %+v, %v", all, err)
		}
		got, err := r.all[0].Clear(t.Context(), c)
		must(t, err)
		if got.State == netting.Cleared || got.Why != "a member does not let itself be cleared" {
			t.Errorf("%+v", got)
		}
		for i, m := range r.all {
			if m.aside(t) != 0 {
				t.Errorf("member %d has something set aside", i)
			}
		}
		r.debts(1000, 700, 900)
		if _, err := r.all[2].Find(t.Context(), money.Credit); !errors.Is(err, settle.ErrNoConsent) {
			t.Errorf("searches without consent: %v", err)
		}
		if _, err := r.all[2].Clear(t.Context(), c); !errors.Is(err, settle.ErrNoConsent) {
			t.Errorf("clears without consent: %v", err)
		}
	})
}

// TestNetSeveral: circles that share a debt are cleared one after the other, and what is found fits all of them.
func TestNetSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		d := r.join()
		r.net.Mesh()
		r.owe(1, 3, 250) // b owes d, d owes a
		r.owe(3, 0, 400)
		all, err := r.all[0].Find(t.Context(), money.Credit)
		must(t, err)
		if len(all) != 2 || all[0].Amount != 700 || all[1].Amount != 250 {
			t.Fatalf("%+v", all)
		}
		for _, c := range all {
			got, err := r.all[0].Clear(t.Context(), c)
			must(t, err)
			if got.State != netting.Cleared {
				t.Errorf("%+v", got)
			}
		}
		r.t = t
		owes := r.all[0].account(t, ledger.AsRenter, r.all[1].side)
		if owes.Owed != 50 || d.account(t, ledger.AsRenter, r.all[0].side).Owed != 150 {
			t.Errorf("%+v", owes)
		}
		r.poll()
	})
}

// TestNetPrivate: whom a search may come from, and what it gives away.
func TestNetPrivate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		a, b, c := r.all[0], r.all[1], r.all[2]
		stranger := r.join()
		r.net.Mesh()
		leg := func(from, to *member, amount money.Micro) settle.NetLeg {
			return settle.NetLeg{Leg: netting.Leg{
				Debtor: from.dev.Account(), Creditor: to.dev.Account(), Payer: from.dev.Peer(), Payee: to.dev.Peer(),
			}, Amount: amount}
		}
		ask := func(from *member, to *member, dev *identity.Device, path ...settle.NetLeg) (settle.NetAnswer, error) {
			var got settle.NetAnswer
			err := p2p.Call(t.Context(), from.side.net, to.dev.Peer(), netProtocol, settle.NetAsk{
				Delegation: dev.Delegation(), Find: &settle.NetFind{Unit: money.Credit, Path: path, Calls: 8, Wait: 5000},
			}, &got, 1<<16)
			return got, err
		}
		for name, x := range map[string]struct {
			from *member
			dev  *identity.Device
			path []settle.NetLeg
			want p2p.Kind
		}{
			"a stranger's word":          {stranger, stranger.dev, []settle.NetLeg{leg(stranger, b, 5)}, p2p.KindOK}, // owes nothing here: no answer
			"another's debt":             {stranger, stranger.dev, []settle.NetLeg{leg(a, b, 5)}, p2p.KindForbidden},
			"another's delegation":       {stranger, a.dev, []settle.NetLeg{leg(a, b, 5)}, p2p.KindForbidden},
			"no way":                     {a, a.dev, nil, p2p.KindBadRequest},
			"a way to another":           {a, a.dev, []settle.NetLeg{leg(a, c, 5)}, p2p.KindForbidden},
			"a way that is cut":          {a, a.dev, []settle.NetLeg{leg(c, stranger, 5), leg(a, b, 5)}, p2p.KindBadRequest},
			"a way that grows":           {a, a.dev, []settle.NetLeg{leg(c, a, 5), leg(a, b, 6)}, p2p.KindBadRequest},
			"a way that comes back here": {a, a.dev, []settle.NetLeg{leg(b, a, 5), leg(a, b, 5)}, p2p.KindBadRequest},
			"a debt of nothing":          {a, a.dev, []settle.NetLeg{leg(a, b, 0)}, p2p.KindBadRequest},
		} {
			got, err := ask(x.from, b, x.dev, x.path...)
			if p2p.KindOf(err) != x.want || len(got.Circles) != 0 {
				t.Errorf("%s: %+v, %v, want %s", name, got, err, x.want)
			}
		}
		got, err := ask(a, b, a.dev, leg(a, b, 300))
		must(t, err)
		if len(got.Circles) != 1 || got.Circles[0][1].Amount != 300 || got.Circles[0][2].Amount != 300 {
			t.Errorf("it gives away more than was asked for: %+v", got.Circles)
		}
		busy := 0
		for range 200 {
			if _, err := ask(a, b, a.dev, leg(a, b, 300)); p2p.KindOf(err) == p2p.KindBusy {
				busy++
			}
		}
		if busy == 0 {
			t.Error("searches are not counted")
		}
		time.Sleep(time.Minute)
		if _, err := ask(a, b, a.dev, leg(a, b, 300)); err != nil {
			t.Error(err)
		}
	})
}

// TestNetStrangers: who is no member hears nothing of a clearing and changes nothing.
func TestNetStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		stranger := r.join()
		r.net.Mesh()
		c := r.all[0].one(t)
		terms := netting.Terms{
			Unit: c.Unit, Amount: c.Amount, Legs: c.Legs, Last: r.all[0].dev.Peer(), Deadline: time.Now().Add(time.Minute).UnixMilli(), Nonce: wire.Hash{1},
		}
		other := terms
		other.Legs = other.Legs[:2]
		foreign, err := netting.Sign(r.all[1].dev, terms, false)
		must(t, err)
		elsewhere := terms
		elsewhere.Nonce = wire.Hash{2}
		for name, x := range map[string]struct {
			from *member
			ask  settle.NetAsk
			want p2p.Kind
		}{
			"a stranger's round":  {stranger, settle.NetAsk{Round: &settle.NetRound{Terms: terms, Wait: 5000}}, p2p.KindForbidden},
			"a stranger's news":   {stranger, settle.NetAsk{News: &settle.NetNews{Terms: terms}}, p2p.KindForbidden},
			"no circle":           {r.all[0], settle.NetAsk{Round: &settle.NetRound{Terms: other, Wait: 5000}}, p2p.KindBadRequest},
			"nothing":             {r.all[0], settle.NetAsk{}, p2p.KindBadRequest},
			"a word of another":   {r.all[0], settle.NetAsk{News: &settle.NetNews{Terms: elsewhere, Words: []netting.Word{foreign.Word}}}, p2p.KindBadRequest},
			"garbage for a word":  {r.all[0], settle.NetAsk{News: &settle.NetNews{Terms: terms, Words: []netting.Word{{Envelope: []byte("x")}}}}, p2p.KindBadRequest},
			"far too many words":  {r.all[0], settle.NetAsk{News: &settle.NetNews{Terms: terms, Words: make([]netting.Word, 99)}}, p2p.KindBadRequest},
			"freed too early: no": {r.all[0], settle.NetAsk{News: &settle.NetNews{Terms: terms, Free: true}}, p2p.KindOK},
		} {
			x.ask.Delegation = x.from.dev.Delegation()
			var got settle.NetAnswer
			err := p2p.Call(t.Context(), x.from.side.net, r.all[1].dev.Peer(), netProtocol, x.ask, &got, 1<<16)
			if p2p.KindOf(err) != x.want || len(got.Words) != 0 {
				t.Errorf("%s: %+v, %v, want %s", name, got, err, x.want)
			}
		}
		if n := r.all[1].aside(t); n != 0 {
			t.Errorf("%d set aside", n)
		}
		r.debts(1000, 700, 900)
	})
}
