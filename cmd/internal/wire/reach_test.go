package wire

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

const (
	overA = "/ip4/44.1.0.2/udp/4701/quic-v1/p2p/12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH/p2p-circuit"
	overB = "/ip4/44.2.0.2/tcp/4701/p2p/12D3KooWDpp7U7W9Q8feMZPPEpPP5FKXTUakLgnVLbavfjb9mzrT/p2p-circuit"
)

// TestCheckReach: only a machine that nobody outside can reach by any way is warned of.
func TestCheckReach(t *testing.T) {
	for _, c := range []struct {
		r     libp2p.Reachability
		level string
		says  string
	}{
		{libp2p.Reachability{State: "unknown"}, LevelOK, "not tried yet"},
		{libp2p.Reachability{State: "public", Public: []string{"/ip4/45.1.0.2/tcp/4701"}}, LevelOK, "could dial /ip4/45.1.0.2/tcp/4701"},
		{libp2p.Reachability{State: "public", Relay: true}, LevelOK, "as the settings say"},
		{libp2p.Reachability{State: "private"}, LevelWarn, "can not reach it"},
		{libp2p.Reachability{State: "private", Relays: []string{overA}}, LevelOK, "behind a router: peers meet this machine over 1 relay,"},
		{libp2p.Reachability{State: "unknown", Relays: []string{overA, overB}}, LevelOK, "not known to be public: peers meet this machine over 2 relays"},
	} {
		if got := checkReach(c.r); got.Level != c.level || !strings.Contains(got.Detail, c.says) || got.Level == LevelWarn && got.Next == "" {
			t.Errorf("%+v: %+v", c.r, got)
		}
	}
}

// TestRelaysOf names each relay once, however many addresses it has.
func TestRelaysOf(t *testing.T) {
	other := strings.Replace(overA, "/udp/4701/quic-v1", "/tcp/4701", 1)
	want := []string{"12D3KooWDpp7U7W9Q8feMZPPEpPP5FKXTUakLgnVLbavfjb9mzrT", "12D3KooWRKPiH6zvnejzovLUhimmpPHAxTUKQHufVXzjvJ8cFucH"}
	if got := relaysOf([]string{overA, overB, other}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := relaysOf(nil); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// TestCheckVisible asks the only peer, over sockets, before and after it has the offer.
func TestCheckVisible(t *testing.T) {
	host, at := running(t, settings(t))
	seller, by := running(t, settings(t))
	o := markettest.Sealed(t, seller.Device, markettest.Offer(seller.Device, 1, time.Now()))
	if c := seller.CheckVisible(t.Context(), o.Hash); c.Level != LevelNote || !strings.Contains(c.Detail, "no peer to ask") {
		t.Errorf("alone: %+v", c)
	}
	var inv local.Invite
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{}, &inv); err != nil {
		t.Fatal(err)
	}
	if err := by.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
		t.Fatal(err)
	}
	if c := seller.CheckVisible(t.Context(), o.Hash); c.Level != LevelWarn || !strings.Contains(c.Detail, "1 peer asked by a newcomer, none has the offer") || c.Next == "" {
		t.Errorf("before the peer has it: %+v", c)
	}
	host.Board.Book().Put(o, time.Now())
	if c := seller.CheckVisible(t.Context(), o.Hash); c.Level != LevelOK || !strings.Contains(c.Detail, "1 of 1 peer asked by a newcomer have the offer") {
		t.Errorf("once the peer has it: %+v", c)
	}
	// An offer of somebody who is not connected is asked first, and one that nobody answers at is not counted.
	gone := p2ptest.Device(t)
	away := markettest.Offer(gone, 1, time.Now())
	away.Addrs = []string{"/ip4/127.0.0.1/tcp/1"}
	seller.Board.Book().Put(markettest.Sealed(t, gone, away), time.Now())
	if peers := seller.toAsk(); len(peers) != 2 || peers[0].Peer != gone.Peer() {
		t.Errorf("asked would be %v", peers)
	}
	if c := seller.CheckVisible(t.Context(), o.Hash); !strings.Contains(c.Detail, "1 of 1 peer") {
		t.Errorf("beside one that is gone: %+v", c)
	}
}

// seqStore is a publisher's sequence that no restart needs.
type seqStore struct{ next atomic.Uint64 }

func (s *seqStore) ReserveSeq(_ context.Context, n uint64) (uint64, error) {
	return s.next.Add(n) - n + 1, nil
}

// TestDiscover: a seller and a renter that gossip and invites never brought together, each connected only to a machine that keeps the index and
// is in no topic. The renter finds the offer.
func TestDiscover(t *testing.T) {
	c := libp2p.Local("trial")
	c.Index = libp2p.KeepIndex
	keeper, err := libp2p.New(p2ptest.Device(t), c, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	seller, _ := running(t, settings(t))
	renter, _ := running(t, settings(t))
	for _, b := range []*Base{seller, renter} {
		if err := b.Network.Connect(t.Context(), p2p.PeerAddr{Peer: keeper.Self(), Addrs: keeper.Addrs()}); err != nil {
			t.Fatal(err)
		}
		// Once word can be left the routing table is filled; the renter's own word is of no offer.
		becomes(t, "the index is reached", func() bool { return b.Network.LeaveWord(t.Context()) == nil })
	}
	pub, err := announce.NewPublisher(seller.Board, seller.Device, &seqStore{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Set(markettest.Offer(seller.Device, 1, time.Now())); err != nil {
		t.Fatal(err)
	}
	published := make(chan error, 1)
	go func() { published <- pub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-published; err != nil {
			t.Error(err)
		}
	})
	becomes(t, "the offer is published", func() bool { _, ok := pub.Current(); return ok })
	// The renter's own look may come first, and each takes seconds.
	becomes(t, "the offer is found", func() bool {
		renter.Board.Discover(t.Context())
		_, ok := renter.Board.Book().Get(seller.Device.Peer(), time.Now())
		return ok
	})
}
