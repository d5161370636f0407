package jobnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/gpufair/gpufair/provider/reach"
)

// router answers a job's packets: each connection that the policy lets out is a socket of ours, whose bytes are counted and paced. What is
// no TCP or UDP is answered by nobody.
type router struct {
	ctx     context.Context // the process's
	policy  *reach.Policy
	names   *reach.Resolver
	count   *counters
	log     *flowLog
	cap     uint64
	in, out *rate.Limiter // bytes
	flows   *rate.Limiter // new ones
	tcp     chan struct{} // a slot for each connection
	udp     chan struct{}
	lookups chan struct{}
}

func newRouter(ctx context.Context, s settings, p *reach.Policy, c *counters, log *flowLog) *router {
	bytes := func() *rate.Limiter {
		return rate.NewLimiter(rate.Limit(s.Rate), max(chunk, int(min(s.Rate/8, 1<<30))))
	}
	return &router{
		ctx: ctx, policy: p, names: &reach.Resolver{Policy: p}, count: c, log: log, cap: s.Cap, in: bytes(), out: bytes(),
		flows: rate.NewLimiter(newFlows, flowBurst),
		tcp:   make(chan struct{}, maxTCP), udp: make(chan struct{}, maxUDP), lookups: make(chan struct{}, maxLookups),
	}
}

// serve puts the stack behind the descriptor of a TUN. The channel has a value when the interface is gone.
func (n *router) serve(tun int) (<-chan error, error) {
	const nic = 1
	closed := make(chan error, 1)
	link, err := fdbased.New(&fdbased.Options{
		FDs: []int{tun}, MTU: mtu, RXChecksumOffload: true, // the kernel that made the packet is this machine's
		ClosedFunc: func(err tcpip.Error) {
			select {
			case closed <- fmt.Errorf("the job's interface: %v", err):
			default:
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("the job's interface: %w", err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	window := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: windowBytes, Max: windowBytes}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: windowBytes, Max: windowBytes}
	sack := tcpip.TCPSACKEnabled(true)
	timeWait := tcpip.TCPTimeWaitTimeoutOption(time.Second) // no packet strays on a link inside one machine
	for _, o := range []tcpip.SettableTransportProtocolOption{&window, &send, &sack, &timeWait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return nil, fmt.Errorf("set the stack up: %v", err)
		}
	}
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(s, windowBytes, maxDialing, n.takeTCP).HandlePacket)
	s.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(s, n.takeUDP).HandlePacket)
	// Every address is this stack's, so that it sees every packet and answers in the name of its target.
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	if err := s.CreateNICWithOptions(nic, link, stack.NICOptions{Disabled: true}); err != nil {
		return nil, fmt.Errorf("set the stack up: %v", err)
	}
	for _, err := range []tcpip.Error{s.SetPromiscuousMode(nic, true), s.SetSpoofing(nic, true), s.EnableNIC(nic)} {
		if err != nil {
			return nil, fmt.Errorf("set the stack up: %v", err)
		}
	}
	return closed, nil
}

// target is where a packet of the job wants to go.
func target(id stack.TransportEndpointID) netip.AddrPort {
	a, _ := netip.AddrFromSlice(id.LocalAddress.AsSlice()) // of 4 or 16 bytes: the stack parsed it
	return netip.AddrPortFrom(a, id.LocalPort)
}

func forNames(to netip.AddrPort) bool {
	return to.Port() == 53 && (to.Addr() == nameServer4 || to.Addr() == nameServer6)
}

// errOver says that a limit of the lease, not a rule, is in the way.
var errOver = errors.New("over a limit of the lease")

// admit judges a new flow and takes its slot, which the flow gives back. None is let out that the log could not name.
func (n *router) admit(to netip.AddrPort, slots chan struct{}) error {
	if !forNames(to) {
		if err := n.policy.Check(to); err != nil {
			atomic.AddUint64(&n.count.refused, 1)
			return err
		}
		if n.log.failed() {
			atomic.AddUint64(&n.count.over, 1)
			return errOver
		}
	}
	if atomic.LoadUint64(&n.count.capped) == 0 && n.flows.Allow() {
		select {
		case slots <- struct{}{}:
			return nil
		default:
		}
	}
	atomic.AddUint64(&n.count.over, 1)
	return errOver
}

// spend counts bytes in one direction. It is errOver if they would go over the cap: then they may not be passed on, nor anything after them.
func (n *router) spend(counter *uint64, bytes int) error {
	if atomic.LoadUint64(&n.count.capped) == 1 {
		return errOver
	}
	atomic.AddUint64(counter, uint64(bytes))
	if atomic.LoadUint64(&n.count.in)+atomic.LoadUint64(&n.count.out) <= n.cap {
		return nil
	}
	atomic.AddUint64(counter, -uint64(bytes))
	atomic.StoreUint64(&n.count.capped, 1)
	return errOver
}

// pay counts bytes and waits until their turn has come.
func (n *router) pay(ctx context.Context, counter *uint64, pace *rate.Limiter, bytes int) error {
	if err := n.spend(counter, bytes); err != nil {
		return err
	}
	return pace.WaitN(ctx, bytes)
}
