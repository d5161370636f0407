package libp2p

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	corem "github.com/libp2p/go-libp2p/core/metrics"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpufair/gpufair/p2p"
)

// purpose is what a protocol is for, in a word: see [p2p.Traffic].
func purpose(id protocol.ID) string {
	parts := strings.Split(string(id), "/")
	switch {
	case len(parts) == 5 && parts[1] == "gpufair":
		if parts[3] == "kad" {
			return "dht"
		}
		return parts[3]
	case id == pubsub.GossipSubID_v13, id == pubsub.GossipSubID_v12, id == pubsub.GossipSubID_v11, id == pubsub.GossipSubID_v10,
		id == pubsub.FloodSubID:
		return "gossip"
	case id == proto.ProtoIDv2Hop, id == proto.ProtoIDv2Stop:
		return "relay"
	}
	return "network"
}

// traffic counts the bytes of streams by purpose, in all and for each connected peer. It fulfils libp2p's reporter, of which the swarm
// asks nothing but to be told. Its size is bounded by the protocols that this program speaks and the peers that are connected. Safe for
// concurrent use.
type traffic struct {
	mu    sync.Mutex
	names map[protocol.ID]string             // guarded by mu
	peers map[peer.ID]map[string]p2p.Traffic // guarded by mu; of connected peers
	total *prometheus.CounterVec             // nil: nobody asks
}

var _ corem.Reporter = (*traffic)(nil)

func newTraffic(reg prometheus.Registerer) (*traffic, error) {
	t := &traffic{names: map[protocol.ID]string{}, peers: map[peer.ID]map[string]p2p.Traffic{}}
	if reg == nil {
		return t, nil
	}
	t.total = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "gpufair", Name: "stream_bytes_total", Help: "Bytes of streams between peers, by purpose and direction.",
	}, []string{"purpose", "direction"})
	return t, reg.Register(t.total)
}

// up starts to count for a peer, down forgets it.
func (t *traffic) up(id peer.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.peers[id] == nil {
		t.peers[id] = map[string]p2p.Traffic{}
	}
}

func (t *traffic) down(id peer.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, id)
}

// of is what a connected peer's streams carried, the busiest purpose first.
func (t *traffic) of(id peer.ID) []p2p.Traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.SortedFunc(maps.Values(t.peers[id]), func(a, b p2p.Traffic) int {
		if x, y := a.Sent+a.Received, b.Sent+b.Received; x != y {
			if x > y {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Purpose, b.Purpose)
	})
}

func (t *traffic) count(sent, received int64, proto protocol.ID, id peer.ID) {
	t.mu.Lock()
	name, ok := t.names[proto]
	if !ok {
		name = purpose(proto)
		t.names[proto] = name
	}
	if all := t.peers[id]; all != nil {
		c := all[name]
		c.Purpose = name
		c.Sent += uint64(sent)
		c.Received += uint64(received)
		all[name] = c
	}
	t.mu.Unlock()
	if t.total == nil {
		return
	}
	if sent > 0 {
		t.total.WithLabelValues(name, "sent").Add(float64(sent))
	}
	if received > 0 {
		t.total.WithLabelValues(name, "received").Add(float64(received))
	}
}

// LogSentMessageStream fulfils libp2p's reporter.
func (t *traffic) LogSentMessageStream(n int64, proto protocol.ID, id peer.ID) {
	t.count(n, 0, proto, id)
}

// LogRecvMessageStream fulfils libp2p's reporter.
func (t *traffic) LogRecvMessageStream(n int64, proto protocol.ID, id peer.ID) {
	t.count(0, n, proto, id)
}

// LogSentMessage and the others below fulfil libp2p's reporter: what they tell or ask is counted by stream already, or is nobody's question.
func (t *traffic) LogSentMessage(int64) {}

// LogRecvMessage fulfils libp2p's reporter.
func (t *traffic) LogRecvMessage(int64) {}

// GetBandwidthForPeer fulfils libp2p's reporter.
func (t *traffic) GetBandwidthForPeer(peer.ID) (s corem.Stats) { return s }

// GetBandwidthForProtocol fulfils libp2p's reporter.
func (t *traffic) GetBandwidthForProtocol(protocol.ID) (s corem.Stats) { return s }

// GetBandwidthTotals fulfils libp2p's reporter.
func (t *traffic) GetBandwidthTotals() (s corem.Stats) { return s }

// GetBandwidthByPeer fulfils libp2p's reporter.
func (t *traffic) GetBandwidthByPeer() map[peer.ID]corem.Stats { return nil }

// GetBandwidthByProtocol fulfils libp2p's reporter.
func (t *traffic) GetBandwidthByProtocol() map[protocol.ID]corem.Stats { return nil }

// Reset fulfils libp2p's reporter.
func (t *traffic) Reset() {}

// TrimIdle fulfils libp2p's reporter.
func (t *traffic) TrimIdle(time.Time) {}
