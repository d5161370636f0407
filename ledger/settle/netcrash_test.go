package settle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// mortal is a network of a program that is killed at a chosen step: before a conversation is opened, before something is written, or before
// something is read for the first time. A dead program's ledger takes nothing more.
type mortal struct {
	p2p.Network
	kill func()

	mu   sync.Mutex
	left int  // guarded by mu; steps to live, 0: for ever
	dead bool // guarded by mu
}

var errKilled = p2p.Errorf(p2p.KindUnavailable, "killed") // a kind that nobody logs

// step is one step of the program's life.
func (m *mortal) step() error {
	m.mu.Lock()
	if m.left > 0 && !m.dead {
		if m.left--; m.left == 0 {
			m.dead = true
			m.mu.Unlock()
			m.kill()
			return errKilled
		}
	}
	defer m.mu.Unlock()
	if m.dead {
		return errKilled
	}
	return nil
}

// arm lets the program live for n steps.
func (m *mortal) arm(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = n
}

func (m *mortal) died() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

func (m *mortal) Open(ctx context.Context, peer identity.PeerID, protocol p2p.Protocol) (p2p.Stream, error) {
	if err := m.step(); err != nil {
		return nil, errors.Join(p2p.ErrUnreachable, err)
	}
	s, err := m.Network.Open(ctx, peer, protocol)
	if err != nil {
		return nil, err
	}
	return &mortalStream{Stream: s, m: m}, nil
}

func (m *mortal) Handle(protocol p2p.Protocol, limits p2p.Limits, h p2p.Handler) {
	m.Network.Handle(protocol, limits, func(ctx context.Context, s p2p.Stream) error { return h(ctx, &mortalStream{Stream: s, m: m}) })
}

type mortalStream struct {
	p2p.Stream
	m    *mortal
	read bool
}

func (s *mortalStream) Read(b []byte) (int, error) {
	if !s.read {
		s.read = true
		if err := s.m.step(); err != nil {
			return 0, errors.Join(err, s.Reset(p2p.KindUnavailable))
		}
	}
	return s.Stream.Read(b)
}

func (s *mortalStream) Write(b []byte) (int, error) {
	if err := s.m.step(); err != nil {
		return 0, errors.Join(err, s.Reset(p2p.KindUnavailable))
	}
	return s.Stream.Write(b)
}

// restart gives a member a program whose life can be ended.
func (r *ring) restart(i int) *mortal {
	r.t.Helper()
	m := r.all[i]
	if n, ok := m.side.net.(interface{ Close() }); ok {
		n.Close()
	}
	if old, ok := m.side.net.(*mortal); ok {
		old.Network.(*p2ptest.Node).Close()
	}
	must(r.t, m.books.Close())
	life := &mortal{Network: r.net.Join(m.dev)}
	m.start(r.t, life)
	b := m.books
	life.kill = func() { b.Close() }
	r.net.Mesh()
	return life
}

// TestNetCrash kills each member at each step of a clearing. After its restart either all debts have gone down, on both sides, or none has,
// and nobody has anything set aside.
func TestNetCrash(t *testing.T) {
	outcomes := map[bool]int{}
	for _, amounts := range [][]money.Micro{{1000, 700, 900}, {500, 500, 400, 900, 600}} {
		for victim := range amounts {
			if len(amounts) == 5 && victim != 0 && victim != 2 {
				continue
			}
			for steps, died := 1, true; died; steps += len(amounts) - 2 {
				synctest.Test(t, func(t *testing.T) {
					cleared := false
					died, cleared = crash(t, amounts, victim, steps)
					outcomes[cleared]++
				})
			}
		}
	}
	if outcomes[true] < 3 || outcomes[false] < 3 {
		t.Errorf("cleared or not: %v", outcomes)
	}
	t.Logf("cleared or not: %v", outcomes)
}

func crash(t *testing.T, amounts []money.Micro, victim, steps int) (died, cleared bool) {
	t.Helper()
	r := newRing(t, amounts...)
	life := r.restart(victim)
	c := r.all[0].one(t)
	life.arm(steps)
	_, err := r.all[0].Clear(t.Context(), c)
	synctest.Wait()
	if died = life.died(); err != nil && victim != 0 {
		t.Fatalf("victim %d, step %d: %v", victim, steps, err)
	}
	r.restart(victim)
	r.poll()
	time.Sleep(2 * netMinute) // past the deadline
	r.poll()
	a, b := r.all[0], r.all[1]
	var want []int64
	cleared = a.account(t, ledger.AsRenter, b.side).Owed != int64(amounts[0])
	for _, amount := range amounts {
		if cleared {
			amount -= c.Amount
		}
		want = append(want, int64(amount))
	}
	r.debts(want...)
	for i, m := range r.all {
		if n := m.aside(t); n != 0 {
			t.Fatalf("victim %d, step %d: member %d has %d set aside", victim, steps, i, n)
		}
	}
	return died, cleared
}

const netMinute = time.Minute

// proposed is a clearing that the first member proposes with its keys alone: its program knows nothing of it.
func (r *ring) proposed(c settle.Circle, change func(*netting.Terms)) netting.Terms {
	r.t.Helper()
	terms := netting.Terms{
		Unit: c.Unit, Amount: c.Amount, Legs: c.Legs, Last: r.all[0].dev.Peer(), Deadline: time.Now().Add(time.Minute).UnixMilli(), Nonce: [32]byte{1},
	}
	change(&terms)
	return terms
}

// say sends something in the first member's name.
func (r *ring) say(to int, ask settle.NetAsk) (got settle.NetAnswer, err error) {
	r.t.Helper()
	ask.Delegation = r.all[0].dev.Delegation()
	return got, p2p.Call(r.t.Context(), r.all[0].side.net, r.all[to].dev.Peer(), netProtocol, ask, &got, 1<<16)
}

func none(*netting.Terms) {}

func round(terms netting.Terms, words ...netting.Word) settle.NetAsk {
	return settle.NetAsk{Round: &settle.NetRound{Terms: terms, Words: words, Wait: 10_000}}
}

// ringOf runs f with three members and the circle that the first has found.
func ringOf(t *testing.T, f func(t *testing.T, r *ring, c settle.Circle)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		f(t, r, r.all[0].one(t))
	})
}

// TestNetLies: what a member that proposes a clearing can't do to the others.
func TestNetLies(t *testing.T) {
	for name, change := range map[string]func(*netting.Terms){
		"more than is owed": func(x *netting.Terms) { x.Amount = 701 },
		"another unit":      func(x *netting.Terms) { x.Unit = "EUR" },
		"expired":           func(x *netting.Terms) { x.Deadline -= 2 * time.Minute.Milliseconds() },
		"years ahead":       func(x *netting.Terms) { x.Deadline *= 2 },
	} {
		ringOf(t, func(t *testing.T, r *ring, c settle.Circle) {
			got, err := r.say(1, round(r.proposed(c, change)))
			if err != nil || got.Why == "" || len(got.Words) != 0 || r.all[1].aside(t)+r.all[2].aside(t) != 0 {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		})
	}
	// Two clearings of one debt: only as much as is owed.
	ringOf(t, func(t *testing.T, r *ring, c settle.Circle) {
		first, err := r.say(1, round(r.proposed(c, func(x *netting.Terms) { x.Amount = 400 })))
		must(t, err)
		second, err := r.say(1, round(r.proposed(c, func(x *netting.Terms) { x.Amount, x.Nonce = 301, [32]byte{2} })))
		if err != nil || len(first.Words) != 2 || len(second.Words) != 0 || second.Why == "" {
			t.Errorf("%+v, then %+v, %v", first, second, err)
		}
	})
	// A false signature under the certificate.
	ringOf(t, func(t *testing.T, r *ring, c settle.Circle) {
		terms := r.proposed(c, none)
		got, err := r.say(1, round(terms))
		must(t, err)
		mine, err := netting.Sign(r.all[0].dev, terms, false)
		must(t, err)
		other, err := netting.Sign(r.all[0].dev, r.proposed(c, func(x *netting.Terms) { x.Amount-- }), false)
		must(t, err)
		if _, err := r.say(2, round(terms, append(got.Words, other.Word)...)); p2p.KindOf(err) != p2p.KindBadRequest {
			t.Errorf("a signature of other terms: %v", err)
		}
		if got, err := r.say(2, round(terms, got.Words[0], mine.Word)); err != nil || len(got.Has) != 1 {
			t.Errorf("with its own signature the set is whole: %+v, %v", got, err)
		}
	})
	// All signatures to one member, a refusal to the other.
	ringOf(t, func(t *testing.T, r *ring, c settle.Circle) {
		terms := r.proposed(c, none)
		got, err := r.say(1, round(terms))
		must(t, err)
		mine, err := netting.Sign(r.all[0].dev, terms, false)
		must(t, err)
		lie, err := netting.Sign(r.all[0].dev, terms, true)
		must(t, err)
		_, err = r.say(1, settle.NetAsk{News: &settle.NetNews{Terms: terms, Words: []netting.Word{lie.Word}}})
		must(t, err)
		_, err = r.say(2, settle.NetAsk{News: &settle.NetNews{Terms: terms, Words: append(got.Words, mine.Word)}})
		must(t, err)
		if r.all[1].aside(t) != 0 {
			t.Error("the refusal frees nobody")
		}
		r.poll()
		r.debts(300, 0, 200)
		must(t, r.all[1].books.View(t.Context(), func(rd *books.Reader) error {
			list, err := rd.ShowClearings()
			if err != nil || len(list) != 1 || len(list[0].Liars) != 1 || list[0].Liars[0] != r.all[0].dev.Account().String() {
				t.Errorf("%+v, %v", list, err)
			}
			return nil
		}))
	})
}

// TestNetVanished: the one who proposed a clearing is gone. One that another member has not signed is refused by that one; one that all
// others have signed waits, until its owner gives up or all signatures turn up.
func TestNetVanished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		c := r.all[0].one(t)
		terms := r.proposed(c, func(x *netting.Terms) { x.Amount = 100 })
		agree := func(m *member) {
			m.update(t, func(tx *books.Tx) error { _, err := tx.AgreeClearing(terms, nil); return err })
		}
		agree(r.all[1])
		gone := r.all[0]
		gone.side.net.(*p2ptest.Node).Close()
		must(t, r.all[1].Poll(t.Context(), true))
		if r.all[1].aside(t) != 1 {
			t.Fatal("freed before the deadline: the other may be about to sign")
		}
		time.Sleep(2 * time.Minute)
		must(t, r.all[1].Poll(t.Context(), true))
		if r.all[1].aside(t) != 0 {
			t.Fatal("a member that has not signed frees nobody")
		}
		if err := r.all[2].books.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.AgreeClearing(terms, nil); return err }); err == nil {
			t.Error("signed after its refusal")
		}

		terms = r.proposed(c, func(x *netting.Terms) { x.Nonce = [32]byte{2} })
		id, err := terms.ID()
		must(t, err)
		agree(r.all[1])
		agree(r.all[2])
		time.Sleep(48 * time.Hour)
		r.all = r.all[1:]
		r.poll()
		if r.all[0].aside(t) != 1 || r.all[1].aside(t) != 1 {
			t.Fatal("freed though all signatures may be somewhere")
		}
		r.all[0].update(t, func(tx *books.Tx) error { _, err := tx.ReleaseClearing(id); return err })
		mine, err := netting.Sign(gone.dev, terms, false) // it is back, and had signed
		must(t, err)
		gone.update(t, func(tx *books.Tx) error {
			var words []netting.Word
			for _, m := range r.all {
				said, err := netting.Sign(m.dev, terms, false)
				if err != nil {
					return err
				}
				words = append(words, said.Word)
			}
			_, err := tx.HearClearing(terms, append(words, mine.Word))
			return err
		})
		gone.start(t, r.net.Join(gone.dev))
		r.net.Mesh()
		r.all = append([]*member{gone}, r.all...)
		r.poll()
		r.debts(300, 0, 200)
	})
}

// TestNetRun: without anybody asking, a broken clearing ends by itself.
func TestNetRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(t, 1000, 700, 900)
		terms := r.proposed(r.all[0].one(t), func(*netting.Terms) {})
		r.all[0].update(t, func(tx *books.Tx) error { return tx.ProposeClearing(terms) }) // and is killed
		r.all[1].update(t, func(tx *books.Tx) error { _, err := tx.AgreeClearing(terms, nil); return err })
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, m := range r.all {
			all.Go(func() { must(t, m.Run(ctx)) })
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for i, m := range r.all {
			if m.aside(t) != 0 {
				t.Errorf("member %d has something set aside", i)
			}
		}
		cancel()
		all.Wait()
		r.debts(1000, 700, 900)
	})
}

// TestNetTwoDevices: an account that rents by one device and provides by another is cleared as one: each device signs for its ledger.
func TestNetTwoDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &ring{t: t, net: p2ptest.NewNet(t)}
		r.join()                      // 0: a
		shop, laptop := twoDevices(t) // of b: a owes the shop, the laptop owes c
		for _, dev := range []*identity.Device{shop, laptop} {
			m := newMember(t, &kv.Memory{})
			m.dev = dev
			m.start(t, r.net.Join(dev))
			r.all = append(r.all, m)
		}
		r.join() // 3: c
		r.net.Mesh()
		r.owe(0, 1, 1000)
		r.owe(2, 3, 700)
		r.owe(3, 0, 900)
		r.all[1].siblings = []identity.PeerID{laptop.Peer()}
		for _, starter := range []*member{r.all[0], r.all[3], r.all[2]} {
			if c := starter.one(t); c.Amount != 700 || len(c.Legs) != 3 {
				t.Fatalf("%+v", c)
			}
		}
		got, err := r.all[0].Clear(t.Context(), r.all[0].one(t))
		must(t, err)
		if got.State != netting.Cleared || got.Has != 4 {
			t.Errorf("%+v", got)
		}
		for i, want := range []int64{300, 0, 200} {
			pair := [][2]int{{0, 1}, {2, 3}, {3, 0}}[i]
			owes, owed := r.all[pair[0]].account(t, ledger.AsRenter, r.all[pair[1]].side), r.all[pair[1]].account(t, ledger.AsProvider, r.all[pair[0]].side)
			if owes.Owed != want || owed.Owed != want {
				t.Errorf("debt %d: %d and %d, want %d", i, owes.Owed, owed.Owed, want)
			}
		}
		sum := int64(0)
		for _, m := range r.all[1:3] {
			must(t, m.books.View(t.Context(), func(rd *books.Reader) error {
				v, err := rd.Balance(money.Credit, ledger.Account{Kind: ledger.Clearing})
				sum += v
				return err
			}))
			m.verified(t)
		}
		if sum != 0 {
			t.Errorf("the clearing accounts of both devices come to %d", sum)
		}
	})
}

func (m *member) verified(t *testing.T) {
	t.Helper()
	v, err := m.books.Verify(t.Context())
	must(t, err)
	if v.Result != books.ResultOK {
		t.Errorf("%+v", v)
	}
}

// twoDevices are of one account.
func twoDevices(t *testing.T) (a, b *identity.Device) {
	t.Helper()
	account, _, first, err := identity.Generate()
	must(t, err)
	_, key, second, err := identity.Generate()
	must(t, err)
	raw, err := identity.Delegate(account, second.Peer(), 2, identity.AllPowers, identity.DefaultCap)
	must(t, err)
	b, err = identity.NewDevice(key, raw)
	must(t, err)
	return first, b
}

// TestNetOverLibp2p: three programs over sockets, one of them over a store on disk.
func TestNetOverLibp2p(t *testing.T) {
	r := &ring{t: t}
	var nodes []*libp2p.Network
	for i := range 3 {
		engine := kv.Engine(&kv.Memory{})
		if i == 1 {
			db, err := badger.Open(t.Context(), badger.Config{Dir: t.TempDir(), Log: quiet})
			must(t, err)
			t.Cleanup(func() { must(t, db.Close()) })
			engine = db
		}
		m := newMember(t, engine)
		n, err := libp2p.New(m.dev, libp2p.Local("t"), nil, quiet)
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			must(t, errors.Join(<-done, n.Close()))
		})
		m.start(t, n)
		for _, o := range nodes {
			must(t, n.Connect(t.Context(), p2p.PeerAddr{Peer: o.Self(), Addrs: o.Addrs()}))
		}
		nodes, r.all = append(nodes, n), append(r.all, m)
	}
	r.around(1000, 700, 900)
	got, err := r.all[0].Clear(t.Context(), r.all[0].one(t))
	must(t, err)
	if got.State != netting.Cleared || got.Has != 3 {
		t.Errorf("%+v", got)
	}
	r.debts(300, 0, 200)
}
