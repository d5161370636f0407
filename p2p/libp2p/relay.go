package libp2p

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/protocol"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/proto"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// RelayConfig is what a machine that relays for others gives them. libp2p's own defaults (128 KiB and two minutes for a circuit) only
// serve to agree on a hole punch; here a circuit carries a job. [DefaultRelay] fills it; nothing in it is without a limit.
type RelayConfig struct {
	Slots           int           // peers that may be reached through this machine
	SlotsPerIP      int           // of one address
	Circuits        int           // relayed connections at once
	CircuitsPerPeer int           // of one peer, at either end
	CircuitBytes    int64         // that one circuit may carry each way; then it is cut and the peers go on over another
	CircuitTime     time.Duration // that one circuit may last
	Rate            int64         // bytes a second of all circuits together, in turns, so that one busy circuit leaves the others their share
}

// DefaultRelay is what a small server can give.
func DefaultRelay() RelayConfig {
	return RelayConfig{
		Slots: 256, SlotsPerIP: 32, Circuits: 512, CircuitsPerPeer: 64, CircuitBytes: 16 << 30, CircuitTime: 6 * time.Hour, Rate: 12 << 20,
	}
}

const (
	relayBuffer   = 16 << 10 // for each direction of a circuit
	relayRequests = 64       // reservations and connects being answered at once
	maxSlots      = 2048     // each is a connection, and a machine has at most 4096
	maxCircuits   = 16384    // of two buffers each: 512 MiB
)

// Validate says what is wrong, naming the field as the config file does.
func (r RelayConfig) Validate() error {
	switch {
	case r.Slots < 1 || r.Slots > maxSlots:
		return fmt.Errorf("slots: %d: want 1 to %d", r.Slots, maxSlots)
	case r.SlotsPerIP < 1 || r.SlotsPerIP > r.Slots:
		return fmt.Errorf("slots_per_ip: %d: want 1 to slots, which is %d", r.SlotsPerIP, r.Slots)
	case r.Circuits < 1 || r.Circuits > maxCircuits:
		return fmt.Errorf("circuits: %d: want 1 to %d", r.Circuits, maxCircuits)
	case r.CircuitsPerPeer < 1 || r.CircuitsPerPeer > r.Circuits:
		return fmt.Errorf("circuits_per_peer: %d: want 1 to circuits, which is %d", r.CircuitsPerPeer, r.Circuits)
	case r.CircuitBytes < 1<<20:
		return fmt.Errorf("circuit_data: %d bytes: want 1MiB or more", r.CircuitBytes)
	case r.CircuitTime < time.Minute || r.CircuitTime > 7*24*time.Hour:
		return fmt.Errorf("circuit_time: %v: want 1m to 168h", r.CircuitTime)
	case r.Rate < 64<<10:
		return fmt.Errorf("rate: %d bytes a second: want 64KiB or more", r.Rate)
	}
	return nil
}

// limit makes room for the relay's streams and memory in libp2p's resource manager, at each of its levels, and for no more: the service is
// refused what would pass them. System and PeerDefault hold what the machine has for all else.
func (r RelayConfig) limit(partial *rcmgr.PartialLimitConfig) {
	in, out := rcmgr.LimitVal(r.Circuits+relayRequests), rcmgr.LimitVal(r.Circuits)
	const frame = 4 << 10                                                                      // of a message of the relay protocol
	memory := rcmgr.LimitVal64(r.Circuits*(2*relayBuffer+2*frame)+relayRequests*frame) * 4 / 3 // a buffer is refused at four fifths
	ofPeer := rcmgr.LimitVal(r.CircuitsPerPeer + 8)
	all := rcmgr.ResourceLimits{Streams: in + out, StreamsInbound: in, StreamsOutbound: out, Memory: memory}
	one := rcmgr.ResourceLimits{Streams: 2 * ofPeer, StreamsInbound: ofPeer, StreamsOutbound: ofPeer, Memory: memory}
	partial.Service = map[string]rcmgr.ResourceLimits{relay.ServiceName: all}
	partial.ServicePeer = map[string]rcmgr.ResourceLimits{relay.ServiceName: one}
	partial.Protocol = map[protocol.ID]rcmgr.ResourceLimits{proto.ProtoIDv2Hop: all, proto.ProtoIDv2Stop: all}
	partial.ProtocolPeer = map[protocol.ID]rcmgr.ResourceLimits{proto.ProtoIDv2Hop: one, proto.ProtoIDv2Stop: one}
	for level, more := range map[*rcmgr.ResourceLimits]rcmgr.ResourceLimits{&partial.System: all, &partial.PeerDefault: one} {
		level.Streams += more.Streams
		level.StreamsInbound += more.StreamsInbound
		level.StreamsOutbound += more.StreamsOutbound
		level.Memory += more.Memory
	}
}

// RelayUse is what a relay carries.
type RelayUse struct {
	Slots    int64  // in use
	Circuits int64  // open
	Bytes    uint64 // carried since the start
}

// meter counts what a relay carries, and holds it to its rate. The rest of libp2p's tracer goes to its own metrics.
type meter struct {
	relay.MetricsTracer
	ctx             context.Context // of the network
	rate            *rate.Limiter
	slots, circuits atomic.Int64
	bytes           atomic.Uint64
}

// newMeter holds what is carried to so many bytes a second, until ctx ends.
func newMeter(ctx context.Context, perSecond int64) *meter {
	return &meter{MetricsTracer: silentTracer{}, ctx: ctx, rate: rate.NewLimiter(rate.Limit(perSecond), max(relayBuffer, int(perSecond/10)))}
}

// BytesTransferred fulfils libp2p's tracer. A relay calls it after each buffer, in the goroutine that carries one direction of a circuit:
// who waits here waits in a queue of such, a buffer at a time.
func (m *meter) BytesTransferred(n int) {
	m.bytes.Add(uint64(n))
	m.MetricsTracer.BytesTransferred(n)
	_ = m.rate.WaitN(m.ctx, n) // an error only at the network's end
}

// ConnectionOpened fulfils libp2p's tracer.
func (m *meter) ConnectionOpened() {
	m.circuits.Add(1)
	m.MetricsTracer.ConnectionOpened()
}

// ConnectionClosed fulfils libp2p's tracer.
func (m *meter) ConnectionClosed(d time.Duration) {
	m.circuits.Add(-1)
	m.MetricsTracer.ConnectionClosed(d)
}

// ReservationAllowed fulfils libp2p's tracer.
func (m *meter) ReservationAllowed(renewal bool) {
	if !renewal {
		m.slots.Add(1)
	}
	m.MetricsTracer.ReservationAllowed(renewal)
}

// ReservationClosed fulfils libp2p's tracer.
func (m *meter) ReservationClosed(n int) {
	m.slots.Add(-int64(n))
	m.MetricsTracer.ReservationClosed(n)
}

// silentTracer is a tracer of a relay without metrics.
type silentTracer struct{}

func (silentTracer) RelayStatus(bool)                    {}
func (silentTracer) ConnectionOpened()                   {}
func (silentTracer) ConnectionClosed(time.Duration)      {}
func (silentTracer) ConnectionRequestHandled(pb.Status)  {}
func (silentTracer) ReservationAllowed(bool)             {}
func (silentTracer) ReservationClosed(int)               {}
func (silentTracer) ReservationRequestHandled(pb.Status) {}
func (silentTracer) BytesTransferred(int)                {}

// serveRelay lets others be reached through this host until the host closes.
func serveRelay(ctx context.Context, h host.Host, c RelayConfig, reg prometheus.Registerer) (*meter, error) {
	m := newMeter(ctx, c.Rate)
	if reg != nil {
		m.MetricsTracer = relay.NewMetricsTracer(relay.WithRegisterer(reg))
	}
	res := relay.DefaultResources()
	res.Limit = &relay.RelayLimit{Duration: c.CircuitTime, Data: c.CircuitBytes}
	res.MaxReservations, res.MaxReservationsPerIP, res.MaxReservationsPerASN = c.Slots, c.SlotsPerIP, c.Slots
	res.MaxCircuits, res.BufferSize = c.CircuitsPerPeer, relayBuffer
	r, err := relay.New(h, relay.WithResources(res), relay.WithMetricsTracer(m))
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = r.Close() })
	return m, nil
}

// RelayUse says what this machine carries for others; false if it is no relay.
func (n *Network) RelayUse() (RelayUse, bool) {
	if n.meter == nil {
		return RelayUse{}, false
	}
	return RelayUse{Slots: n.meter.slots.Load(), Circuits: n.meter.circuits.Load(), Bytes: n.meter.bytes.Load()}, true
}
