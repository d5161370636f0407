package book_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/p2p/identity"
)

// model is the rules said plainly: the newest offer of each device, until it is withdrawn or goes unheard for three heartbeats.
type model struct {
	book  *book.Book
	state map[identity.PeerID]state
	gone  map[identity.PeerID]uint64 // sequence of the withdrawal
	now   time.Time
	seq   uint64
}

type state struct {
	seq, free uint64
	heard     time.Time
}

func anyDevice(t *rapid.T) int { return rapid.IntRange(0, 7).Draw(t, "device") }

func (m *model) Offer(t *rapid.T) {
	m.seq++
	o := unsigned(anyDevice(t), m.seq, m.now)
	if r := m.book.Put(o, m.now); r != book.Added && r != book.Updated {
		t.Fatal("a new offer is", r)
	}
	m.state[o.Device] = state{seq: m.seq, free: o.FreeBits(), heard: m.now}
}

func (m *model) Replay(t *rapid.T) {
	if m.seq == 0 {
		t.Skip()
	}
	o := unsigned(anyDevice(t), rapid.Uint64Range(1, m.seq).Draw(t, "seq"), m.now)
	if s, ok := m.state[o.Device]; (ok && o.Seq <= s.seq) || o.Seq <= m.gone[o.Device] {
		if r := m.book.Put(o, m.now); r != book.Stale {
			t.Fatal("a replay is", r)
		}
	}
}

func (m *model) Beat(t *rapid.T) {
	o := unsigned(anyDevice(t), 0, m.now)
	cur, live := m.book.Get(o.Device, m.now)
	if !live {
		t.Skip()
	}
	m.seq++
	free := rapid.Uint64Range(0, 31).Draw(t, "free")
	if r := m.book.Heartbeat(beat(cur.SealedOffer, m.seq, free), nil, m.now); r != book.Updated {
		t.Fatal("a heartbeat is", r)
	}
	m.state[o.Device] = state{seq: m.state[o.Device].seq, free: free, heard: m.now}
}

func (m *model) Withdraw(t *rapid.T) {
	m.seq++
	o := unsigned(anyDevice(t), 0, m.now)
	m.book.Tombstone(tomb(o, m.seq), m.now)
	delete(m.state, o.Device)
	m.gone[o.Device] = m.seq
}

func (m *model) Wait(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
}

func (m *model) Expire(*rapid.T) { m.book.Expire(m.now) }

// Check compares what the book shows with the model.
func (m *model) Check(t *rapid.T) {
	lots := 0
	for device, s := range m.state {
		e, ok := m.book.Get(device, m.now)
		if m.now.Sub(s.heard) > 45*time.Second {
			if ok {
				t.Fatal("a dead offer is shown")
			}
			continue
		}
		if !ok || e.Seq != s.seq || e.Free != s.free {
			t.Fatalf("have %v seq %d free %b, want seq %d free %b", ok, e.Seq, e.Free, s.seq, s.free)
		}
		if s.free&0b1111 != 0 { // the lot of GPUs
			lots++
		}
		if s.free&0b10000 != 0 { // the cpu
			lots++
		}
	}
	q, err := query.Parse("kind=any")
	if err != nil {
		t.Fatal(err)
	}
	if found := m.book.Search(q, query.Order{}, 0, m.now); len(found) != lots || m.book.Count(q, m.now) != lots {
		t.Fatalf("%d lots found, %d counted, want %d", len(found), m.book.Count(q, m.now), lots)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := book.New(book.Config{MaxOffers: 1000})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{book: b, state: map[identity.PeerID]state{}, gone: map[identity.PeerID]uint64{}, now: start}
		t.Repeat(rapid.StateMachineActions(m))
	})
}
