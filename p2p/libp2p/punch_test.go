package libp2p

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/host/peerstore/pstoremem"
	"github.com/libp2p/go-libp2p/p2p/protocol/holepunch"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// lone is a host with one listener and at most one connection.
type lone struct {
	host.Host
	net   loneNet
	peers peerstore.Peerstore
}

func (l lone) Network() network.Network       { return l.net }
func (l lone) Peerstore() peerstore.Peerstore { return l.peers }

type loneNet struct {
	network.Network
	conn oneConn
}

func (n loneNet) ListenAddresses() []ma.Multiaddr { return []ma.Multiaddr{n.conn.LocalMultiaddr()} }
func (n loneNet) ConnsToPeer(peer.ID) []network.Conn {
	if n.conn.closed {
		return nil
	}
	return []network.Conn{n.conn}
}

type oneConn struct {
	network.Conn
	closed  bool
	relayed bool
	peer    peer.ID
}

func (c oneConn) IsClosed() bool               { return c.closed }
func (c oneConn) RemotePeer() peer.ID          { return "a" }
func (c oneConn) LocalMultiaddr() ma.Multiaddr { return ma.StringCast("/ip4/0.0.0.0/udp/4701/quic-v1") }

func (c oneConn) RemoteMultiaddr() ma.Multiaddr {
	if c.relayed {
		return ma.StringCast("/ip4/44.1.0.2/udp/4701/quic-v1/p2p-circuit")
	}
	return ma.StringCast("/ip4/44.1.0.2/udp/4701/quic-v1")
}

func (c oneConn) Stat() network.ConnStats {
	return network.ConnStats{Stats: network.Stats{Direction: network.DirInbound}}
}

// slowPuncher counts the punches that it was asked for, each of which waits for end.
type slowPuncher struct {
	asked atomic.Int32
	end   chan struct{}
}

func (p *slowPuncher) DirectConnect(peer.ID) error {
	p.asked.Add(1)
	<-p.end
	return nil
}

func (p *slowPuncher) Close() error { return nil }

// TestOnePunchAtATime hears from a relayed peer over and over that it can punch now.
func TestOnePunchAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &slowPuncher{end: make(chan struct{})}
		r := newReach(Config{}, nil)
		r.host, r.puncher = lone{net: loneNet{conn: oneConn{relayed: true}}}, p
		say := func() {
			if err := r.tryPunching(event.EvtPeerProtocolsUpdated{Peer: "a", Added: []protocol.ID{holepunch.Protocol}}); err != nil {
				t.Error(err)
			}
		}
		for range 100 {
			say()
		}
		synctest.Wait()
		if n := p.asked.Load(); n != 1 {
			t.Errorf("%d punches towards one peer at a time", n)
		}
		p.end <- struct{}{}
		synctest.Wait()
		say() // one that failed may be tried again
		synctest.Wait()
		if n := p.asked.Load(); n != 2 {
			t.Errorf("%d punches, one after the other", n)
		}
		close(p.end)
		synctest.Wait()
		if len(r.trying) > 0 {
			t.Errorf("ended punches take memory: %v", r.trying)
		}
	})
}

// TestObserver counts the many addresses of one customer of IPv6 as one.
func TestObserver(t *testing.T) {
	for a, want := range map[string]string{"44.1.0.2": "44.1.0.2", "2001:4860:1:2::7": "2001:4860:1::", "2001:4860:1:ff::9": "2001:4860:1::"} {
		if got := observer(netip.MustParseAddr(a)); got.String() != want {
			t.Errorf("%s counts as %s, want %s", a, got, want)
		}
	}
}

// TestGonePeersAreForgotten reads what a peer said after it has hung up, and after [reach.gone]: nothing may be kept of it.
func TestGonePeersAreForgotten(t *testing.T) {
	for _, closed := range []bool{false, true} {
		peers, err := pstoremem.NewPeerstore()
		if err != nil {
			t.Fatal(err)
		}
		defer peers.Close()
		conn := oneConn{closed: closed, peer: "a"}
		r := newReach(Config{}, nil)
		r.host = lone{peers: peers, net: loneNet{conn: conn}}
		r.gone("a")
		r.note(event.EvtPeerIdentificationCompleted{Peer: "a", Conn: conn, ObservedAddr: ma.StringCast("/ip4/45.1.0.2/udp/4701/quic-v1")})
		r.Trace(&holepunch.Event{Remote: "a", Evt: &holepunch.EndHolePunchEvt{Success: true}})
		if kept := len(r.seen) == 1; kept == closed {
			t.Errorf("hung up %v: seen %v", closed, r.seen)
		}
		if punched := r.of(conn) == p2p.Punched; punched == closed {
			t.Errorf("hung up %v: punched %v", closed, r.punched)
		}
	}
}

// TestMostSeen puts what two peers agree on before what many say once, and before what many say from one address.
func TestMostSeen(t *testing.T) {
	seen := map[peer.ID]sightings{}
	saw := func(by, as string) {
		seen[peer.ID(fmt.Sprint(len(seen)))] = sightings{"quic": {ma.StringCast("/ip4/" + as + "/udp/4701/quic-v1"), netip.MustParseAddr(by)}}
	}
	saw("44.1.0.1", "45.0.0.9")
	saw("44.1.0.2", "45.0.0.9")
	for i := range 20 {
		saw(fmt.Sprint("44.2.0.", i), fmt.Sprint("45.0.1.", i))
		saw("44.3.0.1", "45.0.0.1")
	}
	got := texts(mostSeen(seen))
	if len(got) != 22 || got[0] != "/ip4/45.0.0.9/udp/4701/quic-v1" || !slices.IsSorted(got[1:]) {
		t.Errorf("%q", got)
	}
}

// TestLateConnected tells of a connection after its end was told: nothing may be kept of the peer.
func TestLateConnected(t *testing.T) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(dev, Local("t"), nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	conn := oneConn{closed: true, peer: peer.ID(testPeer(t).Libp2p())}
	n.disconnected(nil, conn)
	n.connected(nil, conn)
	if len(n.traffic.peers) > 0 {
		t.Errorf("bytes are counted of a peer that is gone: %v", n.traffic.peers)
	}
}
