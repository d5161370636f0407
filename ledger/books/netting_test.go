package books

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ring is parties of which each owes the next, the last the first.
type ring struct {
	t     *testing.T
	all   []*party
	lanes []ledger.Lane
	nonce byte
}

func newRing(t *testing.T, amounts ...money.Micro) *ring {
	t.Helper()
	var all []*party
	for range amounts {
		all = append(all, newParty(t))
	}
	return ringOf(t, all, amounts...)
}

// ringOf is a ring of these parties.
func ringOf(t *testing.T, all []*party, amounts ...money.Micro) *ring {
	t.Helper()
	r := &ring{t: t, all: all}
	for i, amount := range amounts {
		p := r.pair(i)
		p.meet()
		lane := p.sell(byte(i+1), 0)
		p.pay(lane, amount)
		p.close(lane, amount)
		r.lanes = append(r.lanes, lane)
	}
	return r
}

// pair is the debt of the party at i.
func (r *ring) pair(i int) pairOf { return pairOf{renter: r.all[i], provider: r.all[(i+1)%len(r.all)]} }

// terms are of a clearing in which the first party signs last.
func (r *ring) terms(amount money.Micro) netting.Terms {
	r.nonce++
	t := netting.Terms{
		Unit: money.Credit, Amount: amount, Last: r.all[0].dev.Peer(), Deadline: time.Now().Add(time.Minute).UnixMilli(), Nonce: wire.Hash{r.nonce},
	}
	for i := range r.all {
		p := r.pair(i)
		t.Legs = append(t.Legs, netting.Leg{
			Debtor: p.renter.Self(), Creditor: p.provider.Self(), Payer: p.renter.dev.Peer(), Payee: p.provider.dev.Peer(),
		})
	}
	return t
}

func (r *ring) id(terms netting.Terms) wire.Hash {
	r.t.Helper()
	id, err := terms.ID()
	must(r.t, err)
	return id
}

func (p *party) propose(t netting.Terms) error {
	return p.Update(p.tb.Context(), func(tx *Tx) error { return tx.ProposeClearing(t) })
}

func (p *party) agree(t netting.Terms, words ...netting.Word) (c netting.Clearing, err error) {
	err = p.Update(p.tb.Context(), func(tx *Tx) (err error) { c, err = tx.AgreeClearing(t, words); return err })
	return c, err
}

func (p *party) refuse(t netting.Terms) (c netting.Clearing, err error) {
	err = p.Update(p.tb.Context(), func(tx *Tx) (err error) { c, err = tx.RefuseClearing(t); return err })
	return c, err
}

func (p *party) hear(t netting.Terms, words []netting.Word) (c netting.Clearing) {
	p.tb.Helper()
	p.update(func(tx *Tx) (err error) { c, err = tx.HearClearing(t, words); return err })
	return c
}

func (p *party) complete(id wire.Hash) (c netting.Clearing, err error) {
	err = p.Update(p.tb.Context(), func(tx *Tx) (err error) { c, err = tx.CompleteClearing(id); return err })
	return c, err
}

// gather gets everybody's signature to the first party, which has proposed.
func (r *ring) gather(terms netting.Terms) {
	r.t.Helper()
	must(r.t, r.all[0].propose(terms))
	for _, p := range r.all[1:] {
		c, err := p.agree(terms)
		must(r.t, err)
		r.all[0].hear(terms, c.Words())
	}
}

// owed checks what each pair owes, on both sides.
func (r *ring) owed(want ...int64) {
	r.t.Helper()
	for i := range r.all {
		p := r.pair(i)
		p.equal()
		if got := p.renter.account(ledger.AsRenter, p.provider); got.Owed != want[i] {
			r.t.Fatalf("debt %d: %d, want %d", i, got.Owed, want[i])
		}
	}
}

func (p *party) aside(role ledger.Role, peer *party) (m money.Micro) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { m, err = r.Aside(role, money.Credit, peer.Self()); return err })
	return m
}

// TestClearing: three debts go down by the same amount, on six sides, once.
func TestClearing(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	a, b, c := r.all[0], r.all[1], r.all[2]
	terms := r.terms(700)
	id := r.id(terms)
	r.gather(terms)
	if got := b.aside(ledger.AsRenter, c); got != 700 {
		t.Errorf("%v are set aside", got)
	}
	r.owed(1000, 700, 900)
	must(t, a.propose(terms)) // repeats change nothing
	if again, err := b.agree(terms); err != nil || len(again.Said) != 1 {
		t.Errorf("agreed again: %+v, %v", again, err)
	}
	done, err := a.complete(id)
	must(t, err)
	for range 2 {
		for _, p := range []*party{b, c, a} {
			if got := p.hear(terms, done.Words()); got.State != netting.Cleared {
				t.Errorf("state %s", got.State)
			}
		}
	}
	r.owed(300, 0, 200)
	for i := range r.all {
		p := r.pair(i)
		if got := p.provider.account(ledger.AsProvider, p.renter); got.Settled != 700 || p.provider.aside(ledger.AsProvider, p.renter) != 0 {
			t.Errorf("debt %d: %+v", i, got)
		}
	}
	b.view(func(rd *Reader) error {
		clearing, err := rd.Balance(money.Credit, ledger.Account{Kind: ledger.Clearing})
		if err != nil || clearing != 0 {
			t.Errorf("the clearing account has %d, %v", clearing, err)
		}
		owes, err := rd.ShowLane(r.lanes[1])
		if err != nil || !owes.Settled {
			t.Errorf("the lane that was cleared in full: %+v, %v", owes, err)
		}
		isOwed, err := rd.Lane(r.lanes[0])
		if err != nil || isOwed.Settled != 700 {
			t.Errorf("the lane that was cleared in part: %+v, %v", isOwed, err)
		}
		open, err := rd.OpenClearings()
		if err != nil || len(open) != 1 {
			t.Errorf("before the others are known to have it: %v, %v", open, err)
		}
		return nil
	})
	for _, o := range []*party{a, c} {
		b.update(func(tx *Tx) error { return tx.ToldClearing(id, o.dev.Peer()) })
	}
	b.view(func(rd *Reader) error {
		if open, err := rd.OpenClearings(); err != nil || len(open) != 0 {
			t.Errorf("when they are: %v, %v", open, err)
		}
		return nil
	})
	size := b.size()
	for _, fresh := range []bool{true, false} {
		again := b.reopen(fresh)
		again.verified(ResultOK)
		if again.size() != size {
			t.Errorf("%d entries of %d", again.size(), size)
		}
	}
}

// TestClearingGuards: what a member does not sign.
func TestClearingGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		a, b := r.all[0], r.all[1]
		for name, x := range map[string]struct {
			change func(*netting.Terms)
			want   error
		}{
			"more than is owed":    {func(x *netting.Terms) { x.Amount = 701 }, ErrNotOwed},
			"another unit":         {func(x *netting.Terms) { x.Unit = "EUR" }, ErrNotOwed},
			"expired":              {func(x *netting.Terms) { x.Deadline = time.Now().UnixMilli() - 1 }, ErrExpired},
			"far ahead":            {func(x *netting.Terms) { x.Deadline = time.Now().Add(61 * time.Minute).UnixMilli() }, ErrExpired},
			"another device of it": {func(x *netting.Terms) { x.Legs[0].Payee, x.Legs[1].Payer = wireDevice, wireDevice }, ErrRole},
			"last to sign":         {func(x *netting.Terms) { x.Last = b.dev.Peer() }, netting.ErrLast},
			"the other way round": {func(x *netting.Terms) {
				for i, l := range x.Legs {
					x.Legs[i] = netting.Leg{Debtor: l.Creditor, Creditor: l.Debtor, Payer: l.Payee, Payee: l.Payer}
				}
				x.Legs[0], x.Legs[2] = x.Legs[2], x.Legs[0]
			}, ErrNotOwed},
		} {
			terms := r.terms(700)
			x.change(&terms)
			if _, err := b.agree(terms); !errors.Is(err, x.want) {
				t.Errorf("%s: %v, want %v", name, err, x.want)
			}
		}
		if err := a.propose(r.terms(901)); !errors.Is(err, ErrNotOwed) {
			t.Errorf("proposed more than is owed to it: %v", err)
		}
		if err := b.propose(r.terms(1)); !errors.Is(err, netting.ErrLast) {
			t.Errorf("proposed for another: %v", err)
		}
		r.owed(1000, 700, 900)
	})
}

// TestClearingBinds: what is set aside is not cleared again, who has agreed or refused stays with it, and deadlines hold.
func TestClearingBinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		a, b, c := r.all[0], r.all[1], r.all[2]
		first := r.terms(400)
		if _, err := b.agree(first); err != nil {
			t.Fatal(err)
		}
		second := r.terms(301)
		if _, err := b.agree(second); !errors.Is(err, ErrNotOwed) {
			t.Errorf("what is set aside, again: %v", err)
		}
		if _, err := b.refuse(first); !errors.Is(err, netting.ErrBound) {
			t.Errorf("took it back: %v", err)
		}
		release := func() error {
			return b.Update(t.Context(), func(tx *Tx) error { _, err := tx.ReleaseClearing(r.id(first)); return err })
		}
		if err := release(); !errors.Is(err, ErrExpired) {
			t.Errorf("released before the deadline: %v", err)
		}
		must(t, a.propose(first))
		if _, err := a.complete(r.id(first)); !errors.Is(err, netting.ErrIncomplete) {
			t.Errorf("completed alone: %v", err)
		}
		third := r.terms(1)
		no, err := c.refuse(third)
		must(t, err)
		if _, err := c.agree(third); !errors.Is(err, netting.ErrOver) {
			t.Errorf("agreed after its refusal: %v", err)
		}
		if _, err := b.agree(third, no.Words()...); !errors.Is(err, netting.ErrOver) {
			t.Errorf("agreed to what another refused: %v", err)
		}
		agreed, err := c.agree(first)
		must(t, err)
		bAgreed, err := b.agree(first)
		must(t, err)
		a.hear(first, append(agreed.Words(), bAgreed.Words()...))
		time.Sleep(2 * time.Minute)
		if _, err := a.complete(r.id(first)); !errors.Is(err, ErrExpired) {
			t.Errorf("completed late: %v", err)
		}
		must(t, release())
		if got := b.aside(ledger.AsRenter, c); got != 0 {
			t.Errorf("%v are set aside after the release", got)
		}
		r.owed(1000, 700, 900)
	})
}

var wireDevice = [32]byte{9}

// TestRefusalFrees: a signed refusal of a member that has not agreed frees the others; one that turns out to be a lie costs nobody.
func TestRefusalFrees(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	a, b, c := r.all[0], r.all[1], r.all[2]
	terms := r.terms(700)
	r.gather(terms)
	lie, err := netting.Sign(a.dev, terms, true)
	must(t, err)
	if got := b.hear(terms, []netting.Word{lie.Word}); got.State != netting.Aborted || b.aside(ledger.AsRenter, c) != 0 {
		t.Fatalf("after the refusal: %s", got.State)
	}
	r.pair(1).settle(b, c, 700, "paid outside") // it is free to pay
	done, err := a.complete(r.id(terms))
	must(t, err)
	c.hear(terms, done.Words())
	if got := b.hear(terms, done.Words()); got.State != netting.Cleared || len(got.Liars()) != 1 || got.Liars()[0] != a.dev.Peer() {
		t.Fatalf("after all signatures: %s, liars %v", got.State, got.Liars())
	}
	r.owed(300, -700, 200) // b has paid twice, which both sides say
}

// TestClearingsBounded: nobody fills the disk with clearings.
func TestClearingsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 1000)
		b := r.all[1]
		agreed, refused := 0, 0
		var first netting.Terms
		for n := range 300 {
			terms := r.terms(1)
			terms.Nonce = wire.Hash{byte(n), byte(n >> 8), 1}
			if n == 0 {
				first = terms
			}
			if _, err := b.agree(terms); err == nil {
				agreed++
			} else if !errors.Is(err, ErrClearings) {
				t.Fatal(err)
			}
			terms.Nonce[2] = 2
			if _, err := b.refuse(terms); err == nil {
				refused++
			} else if !errors.Is(err, ErrClearings) {
				t.Fatal(err)
			}
		}
		if agreed != maxPeerOpen || refused != maxRefused {
			t.Errorf("agreed to %d, refused %d", agreed, refused)
		}
		time.Sleep(25 * time.Hour)
		if _, err := b.refuse(r.terms(1)); err != nil {
			t.Errorf("a day later: %v", err)
		}
		if _, err := b.agree(first); err != nil { // repeats need no room
			t.Error(err)
		}
		b.verified(ResultOK)
	})
}

// TestAdoptedMarksBounded: a member that gives a clearing back with more and more lanes fills no disk.
func TestAdoptedMarksBounded(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	terms := r.terms(700)
	r.gather(terms)
	cleared, err := r.all[0].complete(r.id(terms))
	must(t, err)
	for _, p := range r.all[1:] {
		p.hear(terms, cleared.Words())
	}
	lost, peer := r.all[0].restored(&kv.Memory{}, time.Now()), r.all[1]
	lanes, _, copies := peer.copies(lost, 9)
	for _, c := range lanes {
		lost.update(func(tx *Tx) error { _, err := tx.AdoptLane(peer.Self(), c, nil); return err })
	}
	c := copies[0]
	c.Lanes = slices.Repeat(c.Lanes, 2*voucher.MaxLanes/len(c.Lanes))
	for i := range 3 {
		changed := false
		lost.update(func(tx *Tx) (err error) { changed, err = tx.AdoptClearing(peer.Self(), c); return err })
		lost.view(func(r2 *Reader) error {
			v, err := r2.Clearing(r.id(terms))
			if len(v.Lanes) != 2*voucher.MaxLanes || changed != (i == 0) {
				t.Errorf("given %d times, it counts for %d lanes; changed %v", i+1, len(v.Lanes), changed)
			}
			return err
		})
	}
	c.Lanes = append(c.Lanes, c.Lanes[0])
	if err := lost.Update(t.Context(), func(tx *Tx) error { _, err := tx.AdoptClearing(peer.Self(), c); return err }); !errors.Is(err, ErrCopy) {
		t.Errorf("%d lanes: %v", len(c.Lanes), err)
	}
}

// TestClearingDamage: whatever is changed of a clearing is found.
func TestClearingDamage(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	b := r.all[1]
	terms := r.terms(600)
	id := r.id(terms)
	r.gather(terms)
	done, err := r.all[0].complete(id)
	must(t, err)
	b.hear(terms, done.Words())
	open := r.terms(50)
	_, err = b.agree(open)
	must(t, err)
	b.verified(ResultOK)
	edit := func(of wire.Hash, f func(*Netted)) func(*Tx) error {
		return func(tx *Tx) error {
			v, err := tx.Clearing(of)
			must(t, err)
			f(&v)
			return save(tx.own, clearingKey(of), v)
		}
	}
	for name, x := range map[string]struct {
		damage func(*Tx) error
		want   string
	}{
		"record gone":          {func(tx *Tx) error { return tx.own.Delete(clearingKey(id)) }, ResultCorrupt},
		"signature gone":       {edit(id, func(v *Netted) { v.Said = v.Said[1:] }), ResultCorrupt},
		"signature changed":    {edit(id, func(v *Netted) { v.Said[0].Word.Envelope[50] ^= 1 }), ResultForged},
		"amount changed":       {edit(id, func(v *Netted) { v.Terms.Amount-- }), ResultForged},
		"another's word":       {edit(id, func(v *Netted) { v.Said[0].Device = v.Said[1].Device }), ResultCorrupt},
		"said to be open":      {edit(id, func(v *Netted) { v.State = netting.Agreed }), ResultCorrupt},
		"said to count":        {edit(r.id(open), func(v *Netted) { v.State = netting.Cleared }), ResultCorrupt},
		"lanes changed":        {edit(id, func(v *Netted) { v.Lanes[0].Amount++ }), ResultCorrupt},
		"another device":       {edit(id, func(v *Netted) { v.Self = wireDevice }), ResultCorrupt},
		"less set aside":       {func(tx *Tx) error { return tx.own.Set(firstAside(t, tx), be8(49)) }, ResultCorrupt},
		"nothing set aside":    {func(tx *Tx) error { return tx.own.Delete(firstAside(t, tx)) }, ResultCorrupt},
		"set aside for nobody": {func(tx *Tx) error { return tx.own.Set(append(firstAside(t, tx), 1), be8(5)) }, ResultCorrupt},
	} {
		broken := b.reopen(false)
		broken.update(x.damage)
		v, err := broken.Verify(t.Context())
		must(t, err)
		if v.Result != x.want {
			t.Errorf("%s: %+v, want %s", name, v, x.want)
		}
		if v.Result == ResultCorrupt && strings.Contains(v.Detail, "%!") {
			t.Errorf("%s: %s", name, v.Detail)
		}
	}
}

func firstAside(t *testing.T, tx *Tx) []byte {
	t.Helper()
	for p, err := range tx.own.Iterate([]byte("nr/"), nil) {
		must(t, err)
		return append([]byte{}, p.Key...)
	}
	t.Fatal("nothing is set aside")
	return nil
}
