package announce

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// wordList is an index that gives what it was filled with and counts what it is asked and told.
type wordList struct {
	mu          sync.Mutex
	words       []p2p.PeerAddr // guarded by mu
	looks, left int            // guarded by mu
	refuse      int            // guarded by mu; words that fail
	limit       int            // guarded by mu
}

func (w *wordList) LeaveWord(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse > 0 {
		w.refuse--
		return errors.New("nobody is there")
	}
	w.left++
	return nil
}

func (w *wordList) FindWords(_ context.Context, limit int) []p2p.PeerAddr {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	w.limit = limit
	return w.words
}

func (w *wordList) counts() (looks, left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looks, w.left
}

// TestDiscoverAsksAFew finds machines in the index, asks a few of them, and not again at once.
func TestDiscoverAsksAFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		x := &wordList{}
		var sellers []*machine
		for range 3 {
			m := newMachine(t, net, p2ptest.Device(t), &seqStore{})
			if err := m.pub.Set(offer(m.dev)); err != nil {
				t.Fatal(err)
			}
			sellers = append(sellers, m)
			x.words = append(x.words, p2p.PeerAddr{Peer: m.dev.Peer(), Addrs: m.node.Addrs()})
		}
		for range 2 * lookedUpAsked { // of nobody
			x.words = append(x.words, p2p.PeerAddr{Peer: p2ptest.Device(t).Peer(), Addrs: []string{"/ip4/127.0.0.1/tcp/1"}})
		}
		bk, err := book.New(book.Config{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(net.Join(p2ptest.Device(t)), bk, Config{Network: "test", Index: x})
		if err != nil {
			t.Fatal(err)
		}
		after(5 * time.Second)
		// Nobody runs this board: no heartbeat arrives, so that an offer dies again after a minute and is found again.
		found := make(map[identity.PeerID]bool)
		for range 100 {
			n := b.Discover(t.Context())
			if b.Discover(t.Context()) != 0 {
				t.Fatal("it looks again at once")
			}
			for _, m := range sellers {
				if _, ok := bk.Get(m.dev.Peer(), time.Now()); ok {
					found[m.dev.Peer()] = true
				}
			}
			if n > min(bk.Len(), lookedUpAsked) {
				t.Errorf("%d found, with %d in the book", n, bk.Len())
			}
			time.Sleep(lookPause)
			if len(found) == len(sellers) {
				break
			}
		}
		if looks, _ := x.counts(); len(found) != len(sellers) || looks > 100 || x.limit != lookedUp {
			t.Errorf("%d offers after %d looks for %d", len(found), looks, x.limit)
		}
		if peers := len(b.net.Peers()); peers > len(sellers) {
			t.Errorf("%d peers", peers)
		}
	})
}

// TestLeavesWord says so in the index when an offer goes out, again when nobody could be told, and rarely.
func TestLeavesWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &wordList{refuse: 2}
		net := p2ptest.NewNet(t)
		bk, err := book.New(book.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev := p2ptest.Device(t)
		b, err := New(net.Join(dev), bk, Config{Network: "test", Index: x})
		if err != nil {
			t.Fatal(err)
		}
		pub, err := NewPublisher(b, dev, &seqStore{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = b.Run(ctx) })
		running.Go(func() { _ = pub.Run(ctx) })
		defer running.Wait()
		defer cancel()
		after(time.Hour)
		if looks, left := x.counts(); left != 0 || looks < 2 || looks > 4 {
			t.Errorf("without an offer: %d words, %d looks in an hour", left, looks)
		}
		if err := pub.Set(offer(dev)); err != nil {
			t.Fatal(err)
		}
		after(wordAgain)
		if _, left := x.counts(); left != 0 {
			t.Errorf("%d words where nobody was there", left)
		}
		after(2 * wordAgain)
		if _, left := x.counts(); left != 1 {
			t.Errorf("%d words at the start", left)
		}
		after(3 * time.Hour)
		if _, left := x.counts(); left < 4 || left > 9 {
			t.Errorf("%d words in three hours", left)
		}
	})
}
