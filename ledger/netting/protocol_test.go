package netting_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// `go test ./ledger/netting -histories 100000` takes ten minutes.
var histories = flag.Uint64("histories", 2_000, "how many random histories of clearings are lived through")

// node is one device: what it has is durable, and changes as a whole or not at all. Each end of a debt is counted on its own.
type node struct {
	id        identity.PeerID
	gone      bool // for ever
	owed      map[end]int64
	clearings map[wire.Hash]netting.Clearing
}

// end is the debt of a pair as one side's ledger has it.
type end struct{ debtor, creditor identity.AccountID }

// letter is one message: a request to agree, news, or a question of a member that waits.
type letter struct {
	to, from identity.PeerID
	kind     string // agree, tell, ask
	terms    netting.Terms
	said     []netting.Said
	free     bool // of ask: say so if you never agreed
}

// world is accounts in a circle with debts along it and across, whose messages are lost, repeated and reordered. A crash is a loss, too: what
// is durable stays, what was to be sent goes.
type world struct {
	t      *testing.T
	r      *rand.Rand
	now    int64
	nodes  map[identity.PeerID]*node
	order  []identity.PeerID
	mail   []letter
	loss   float64
	liar   identity.PeerID // signs what it likes
	calm   bool            // no more lies
	debts  []netting.Debt
	payer  map[identity.AccountID]identity.PeerID
	payee  map[identity.AccountID]identity.PeerID
	nonce  byte
	tally  map[string]int
	before map[identity.AccountID]int64
}

func newWorld(t *testing.T, seed uint64, tally map[string]int) *world {
	w := &world{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), nodes: map[identity.PeerID]*node{}, payer: map[identity.AccountID]identity.PeerID{},
		payee: map[identity.AccountID]identity.PeerID{}, tally: tally,
	}
	w.loss = []float64{0, 0.1, 0.4}[w.r.IntN(3)]
	parties := byte(2 + w.r.IntN(5))
	for i := range parties {
		a := identity.AccountID{i + 1}
		w.payer[a], w.payee[a] = identity.PeerID{2*i + 1}, identity.PeerID{2*i + 1}
		if w.r.IntN(4) == 0 {
			w.payee[a] = identity.PeerID{2*i + 2}
		}
		for _, d := range []identity.PeerID{w.payer[a], w.payee[a]} {
			if w.nodes[d] == nil {
				w.nodes[d], w.order = &node{id: d, owed: map[end]int64{}, clearings: map[wire.Hash]netting.Clearing{}}, append(w.order, d)
			}
		}
	}
	for i := range parties {
		for j := range parties {
			if j == (i+1)%parties || i != j && w.r.IntN(3) == 0 {
				w.debts = append(w.debts, netting.Debt{
					Debtor: identity.AccountID{i + 1}, Creditor: identity.AccountID{j + 1}, Unit: "CREDIT", Amount: 1 + money.Micro(w.r.IntN(20)),
				})
			}
		}
	}
	for _, d := range w.debts {
		w.nodes[w.payer[d.Debtor]].owed[end{d.Debtor, d.Creditor}] = int64(d.Amount)
		w.nodes[w.payee[d.Creditor]].owed[end{d.Debtor, d.Creditor}] = int64(d.Amount)
	}
	w.before = w.positions()
	if w.r.IntN(3) == 0 {
		w.liar = w.order[w.r.IntN(len(w.order))]
	}
	return w
}

// positions is each account's net position by its own devices' ledgers.
func (w *world) positions() map[identity.AccountID]int64 {
	out := map[identity.AccountID]int64{}
	for a, d := range w.payer {
		for e, v := range w.nodes[d].owed {
			if e.debtor == a {
				out[a] -= v
			}
		}
	}
	for a, d := range w.payee {
		for e, v := range w.nodes[d].owed {
			if e.creditor == a {
				out[a] += v
			}
		}
	}
	return out
}

// free is what a device has not set aside of a debt.
func (n *node) free(e end, role func(netting.Side) *netting.Leg) int64 {
	left := n.owed[e]
	for _, c := range n.clearings {
		if l := role(c.Terms.Side(n.id)); c.State.Reserves() && l != nil && (end{l.Debtor, l.Creditor}) == e {
			left -= int64(c.Terms.Amount)
		}
	}
	return left
}

// can reports whether a device has the amount of t free on each of its ends.
func (n *node) can(t netting.Terms) bool {
	s := t.Side(n.id)
	return (s.Owes == nil || n.free(end{s.Owes.Debtor, s.Owes.Creditor}, func(s netting.Side) *netting.Leg { return s.Owes }) >= int64(t.Amount)) &&
		(s.Owed == nil || n.free(end{s.Owed.Debtor, s.Owed.Creditor}, func(s netting.Side) *netting.Leg { return s.Owed }) >= int64(t.Amount))
}

// keep is the durable step: the clearing as it is now, and its booking if it has just come to count.
func (n *node) keep(c netting.Clearing) {
	id, _ := c.Terms.ID()
	if was := n.clearings[id]; c.State == netting.Cleared && was.State != netting.Cleared {
		for _, l := range []*netting.Leg{c.Terms.Side(n.id).Owes, c.Terms.Side(n.id).Owed} {
			if l != nil {
				n.owed[end{l.Debtor, l.Creditor}] -= int64(c.Terms.Amount)
			}
		}
	}
	if c.State != 0 {
		n.clearings[id] = c
	}
}

func (n *node) known(t netting.Terms) netting.Clearing {
	id, _ := t.ID()
	if c, ok := n.clearings[id]; ok {
		return c
	}
	return netting.Clearing{Terms: t}
}

func (n *node) says(refuse bool) netting.Said { return netting.Said{Device: n.id, Refuses: refuse} }

func (w *world) send(l letter) {
	if w.nodes[l.from].gone || w.r.Float64() < w.loss {
		return
	}
	w.mail = append(w.mail, l)
	if w.r.Float64() < w.loss/2 {
		w.mail = append(w.mail, l)
	}
}

func (w *world) tell(n *node, c netting.Clearing, kind string, free bool) {
	for _, d := range c.Terms.Devices() {
		if d != n.id {
			w.send(letter{to: d, from: n.id, kind: kind, terms: c.Terms, said: c.Said, free: free})
		}
	}
}

// propose lets a random account begin a clearing of a circle that it can see.
func (w *world) propose() {
	n := w.nodes[w.order[w.r.IntN(len(w.order))]]
	if n.gone {
		return
	}
	circles, _ := netting.Plan(w.debts, identity.AccountID{}, netting.MaxParties)
	c := circles[w.r.IntN(len(circles))]
	w.nonce++
	t := netting.Terms{Unit: c.Unit, Amount: 1 + money.Micro(w.r.Uint64N(uint64(c.Amount))), Last: n.id, Deadline: w.now + 50, Nonce: wire.Hash{w.nonce}}
	for i, a := range c.Accounts {
		b := c.Accounts[(i+1)%len(c.Accounts)]
		t.Legs = append(t.Legs, netting.Leg{Debtor: a, Creditor: b, Payer: w.payer[a], Payee: w.payee[b]})
	}
	if mine, err := netting.Propose(n.id, t); err == nil && n.can(t) {
		n.keep(mine)
		w.send(letter{to: t.Next(n.id), from: n.id, kind: "agree", terms: t})
	}
}

// deliver brings one letter that waits, any.
func (w *world) deliver() {
	if len(w.mail) == 0 {
		return
	}
	i := w.r.IntN(len(w.mail))
	l := w.mail[i]
	w.mail = slices.Delete(w.mail, i, i+1)
	n := w.nodes[l.to]
	if n.gone {
		return
	}
	if n.id == w.liar && !w.calm && w.r.IntN(2) == 0 {
		w.lie(n, l)
		return
	}
	c := n.known(l.terms).Hear(l.said...)
	n.keep(c)
	switch l.kind {
	case "agree":
		if next, err := c.Agree(n.says(false)); err == nil && (c.State != 0 || n.can(l.terms) && w.now <= l.terms.Deadline && w.r.IntN(8) > 0) {
			c = next
			n.keep(c)
			w.send(letter{to: l.terms.Next(n.id), from: n.id, kind: "agree", terms: l.terms, said: c.Said})
		}
		w.send(letter{to: l.terms.Last, from: n.id, kind: "tell", terms: l.terms, said: c.Said})
	case "ask":
		if next, err := c.Refuse(n.says(true)); l.free && c.State == 0 && err == nil {
			c = next
			n.keep(c)
		}
		w.send(letter{to: l.from, from: n.id, kind: "tell", terms: l.terms, said: c.Said})
	}
	if l.kind == "have" {
		n.keep(c.Told(l.from))
	} else if c.State == netting.Cleared {
		w.send(letter{to: l.from, from: n.id, kind: "have", terms: l.terms, said: c.Said})
	}
	w.complete(n, c)
}

// complete is the last member's signature, which it may also give in secret.
func (w *world) complete(n *node, c netting.Clearing) {
	if c.State != netting.Prepared || w.now > c.Terms.Deadline {
		return
	}
	if next, err := c.Complete(n.says(false)); err == nil {
		n.keep(next)
		w.tell(n, next, "tell", false)
	}
}

// lie signs both, and tells each member what it likes.
func (w *world) lie(n *node, l letter) {
	w.tally["lies"]++
	c := n.known(l.terms).Hear(l.said...)
	n.keep(c)
	for _, d := range l.terms.Devices() {
		said := []netting.Said{n.says(w.r.IntN(2) == 0)}
		if w.r.IntN(2) == 0 {
			said = append(said, l.said...)
		}
		w.send(letter{to: d, from: n.id, kind: []string{"agree", "tell", "ask"}[w.r.IntN(3)], terms: l.terms, said: said, free: w.r.IntN(2) == 0})
	}
}

// tick is what a member that waits does now and then, and after a restart.
func (w *world) tick(n *node) {
	if n.gone {
		return
	}
	ids := make([]wire.Hash, 0, len(n.clearings))
	for id := range n.clearings {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b wire.Hash) int { return slices.Compare(a[:], b[:]) })
	for _, id := range ids {
		c := n.clearings[id]
		switch {
		case c.State == netting.Prepared && w.now > c.Terms.Deadline:
			next, err := c.Refuse(n.says(true))
			if err != nil {
				w.t.Fatal(err)
			}
			n.keep(next)
			w.tell(n, next, "tell", false)
		case c.State == netting.Prepared:
			w.send(letter{to: c.Terms.Next(n.id), from: n.id, kind: "agree", terms: c.Terms, said: c.Said})
		case c.State == netting.Agreed:
			w.tell(n, c, "ask", w.now > c.Terms.Deadline)
		}
		for _, d := range c.Untold(n.id) {
			w.send(letter{to: d, from: n.id, kind: "tell", terms: c.Terms, said: c.Said})
		}
	}
}

// heal lets every letter arrive until nobody has anything to say. A liar is gone by then, or has nothing more to say than others.
func (w *world) heal() {
	w.loss, w.now, w.calm = 0, w.now+1_000, true
	if w.r.IntN(2) == 0 && !w.liar.IsZero() {
		w.nodes[w.liar].gone = true
	}
	for range 4 {
		for _, d := range w.order {
			w.tick(w.nodes[d])
		}
		for len(w.mail) > 0 {
			w.deliver()
		}
	}
}

// agreed reports whether a device has signed its agreement by its own record.
func agreed(n *node, t netting.Terms) bool {
	return slices.ContainsFunc(n.known(t).Said, func(s netting.Said) bool { return s.Device == n.id && !s.Refuses })
}

// check holds the ledgers against each other.
func (w *world) check(seed uint64) {
	honest := func(d identity.PeerID) bool { return d != w.liar && !w.nodes[d].gone }
	fail := func(format string, args ...any) {
		w.t.Fatalf("seed %d, liar %v: %s", seed, w.liar, fmt.Sprintf(format, args...))
	}
	for _, d := range w.debts {
		a, b := w.nodes[w.payer[d.Debtor]], w.nodes[w.payee[d.Creditor]]
		e := end{d.Debtor, d.Creditor}
		if honest(a.id) && honest(b.id) && a.owed[e] != b.owed[e] {
			fail("%v owes %d, is owed %d", e, a.owed[e], b.owed[e])
		}
		if w.liar.IsZero() && (a.owed[e] < 0 || b.owed[e] < 0) {
			fail("%v owes %d, is owed %d: below zero", e, a.owed[e], b.owed[e])
		}
	}
	after := w.positions()
	for a := range w.before {
		if honest(w.payer[a]) && honest(w.payee[a]) && w.before[a] != after[a] {
			fail("account %v had %d, has %d", a, w.before[a], after[a])
		}
	}
	for _, d := range w.order {
		for _, c := range w.nodes[d].clearings {
			w.tally[c.State.String()]++
			for _, o := range c.Terms.Devices() {
				if signed := agreed(w.nodes[o], c.Terms); honest(o) && (c.State == netting.Cleared && !signed || slices.Contains(c.Liars(), o)) {
					fail("device %v: %s, though the honest %v signed %v, or both", d, c.State, o, signed)
				}
			}
			if !honest(d) || !c.State.Reserves() {
				continue
			}
			// Only one thing keeps a member waiting: somebody is gone, or lied, who may have all signatures.
			if !slices.ContainsFunc(c.Terms.Devices(), func(o identity.PeerID) bool { return !honest(o) }) {
				fail("device %v waits for ever in %s", d, c.State)
			}
			w.tally["waits"]++
		}
	}
}

// TestProtocol: over thousands of histories of overlapping clearings with lost, repeated and reordered messages, members that crash, one that
// vanishes and one that signs what it likes, both ends of each debt stay equal, nobody's net position changes, and nobody honest waits for
// another honest one.
func TestProtocol(t *testing.T) {
	tally := map[string]int{}
	for seed := range *histories {
		w := newWorld(t, seed, tally)
		for range 30 + w.r.IntN(200) {
			w.now += w.r.Int64N(3)
			switch w.r.IntN(12) {
			case 0:
				w.propose()
			case 1, 2:
				w.tick(w.nodes[w.order[w.r.IntN(len(w.order))]])
			case 3:
				if w.r.IntN(60) == 0 {
					w.nodes[w.order[w.r.IntN(len(w.order))]].gone = true
				}
			default:
				w.deliver()
			}
		}
		w.heal()
		w.check(seed)
	}
	for _, want := range []string{"cleared", "refused", "aborted", "agreed", "waits", "lies"} {
		if tally[want] == 0 {
			t.Errorf("no clearing ended %s: %v", want, tally)
		}
	}
	t.Logf("%d histories: %v", *histories, tally)
}
