package jobnet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/gpufair/gpufair/provider/reach"
)

const (
	// udpIdle is how long a UDP flow may be silent before it is forgotten (RFC 4787, REQ-5).
	udpIdle = 2 * time.Minute
	// lingerIn is how long the job may take to read the rest of a connection that is over outside.
	lingerIn = 10 * time.Second
)

// takeTCP answers a job's SYN: the job's connection is made only when the one outside is. A target that is refused sends a reset at once.
// The forwarder calls it in a goroutine of its own, at most maxDialing at a time.
func (n *router) takeTCP(r *tcp.ForwarderRequest) {
	to := target(r.ID())
	if err := n.admit(to, n.tcp); err != nil {
		r.Complete(true)
		return
	}
	held := true
	defer func() {
		if held {
			<-n.tcp
		}
	}()
	var outer net.Conn
	if !forNames(to) {
		var err error
		if outer, err = reach.Dial(n.ctx, n.policy, "tcp", to); err != nil {
			r.Complete(true)
			return
		}
	}
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	r.Complete(terr != nil)
	if terr != nil {
		if outer != nil {
			outer.Close()
		}
		return
	}
	ep.SocketOptions().SetKeepAlive(true)
	inner := jobConn{gonet.NewTCPConn(&wq, ep), ep}
	held = false
	go func() {
		defer func() { <-n.tcp }()
		if outer == nil {
			n.answerStream(inner)
		} else {
			n.relay(to, inner, worldConn{outer.(*net.TCPConn)})
		}
		inner.linger()
	}()
}

// tcpConn is a TCP connection of either stack.
type tcpConn interface {
	net.Conn
	CloseWrite() error
	reset()
}

// worldConn is the kernel's.
type worldConn struct{ *net.TCPConn }

// reset ends the connection so that the other side knows it for broken.
func (c worldConn) reset() {
	_ = c.SetLinger(0) // it fails on a closed connection, which needs none
	c.Close()
}

// jobConn is the stack's own, with the job.
type jobConn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

func (c jobConn) reset() { c.ep.Abort() }

// linger closes the connection and returns when nothing of it is held in memory any more: a job that never reads the rest keeps its slot,
// and in the end gets a reset.
func (c jobConn) linger() {
	c.Close()
	for wait := time.Millisecond; wait < lingerIn; wait *= 2 {
		switch tcp.EndpointState(c.ep.State()) {
		case tcp.StateClose, tcp.StateError, tcp.StateTimeWait:
			return
		}
		time.Sleep(wait)
	}
	c.ep.Abort()
}

// relay moves bytes between the job and the world until both have said their last.
func (n *router) relay(to netip.AddrPort, inner, outer tcpConn) {
	atomic.AddUint64(&n.count.flows, 1)
	n.log.opened("tcp", to)
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	began := time.Now()
	var sent, got uint64
	var both sync.WaitGroup
	one := func(dst, src tcpConn, counter *uint64, pace *rate.Limiter, moved *uint64) {
		err := n.pump(ctx, dst, src, counter, pace, moved)
		if err == nil {
			err = dst.CloseWrite() // the other direction may go on
		}
		if err != nil { // broken or over: neither goes on
			cancel()
			dst.reset()
			src.reset()
		}
	}
	both.Go(func() { one(outer, inner, &n.count.out, n.out, &sent) })
	both.Go(func() { one(inner, outer, &n.count.in, n.in, &got) })
	both.Wait()
	outer.Close()
	n.log.closed("tcp", to, began, sent, got)
}

// buffers are shared by all flows: only those that move bytes hold one.
var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// pump copies from src to dst until src's end, which is no error.
func (n *router) pump(ctx context.Context, dst io.Writer, src io.Reader, counter *uint64, pace *rate.Limiter, moved *uint64) error {
	b := buffers.Get().(*[chunk]byte)
	defer buffers.Put(b)
	for {
		k, err := src.Read(b[:])
		if k > 0 {
			if err := n.pay(ctx, counter, pace, k); err != nil {
				return err
			}
			if _, err := dst.Write(b[:k]); err != nil {
				return err
			}
			*moved += uint64(k)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// takeUDP answers the first packet of a UDP flow. What is refused is answered "port unreachable" by the stack.
func (n *router) takeUDP(r *udp.ForwarderRequest) bool {
	to := target(r.ID())
	if err := n.admit(to, n.udp); err != nil {
		return false
	}
	var outer net.Conn
	var err error
	if !forNames(to) {
		outer, err = reach.Dial(n.ctx, n.policy, "udp", to) // connects no further than this kernel
	}
	var wq waiter.Queue
	var ep tcpip.Endpoint
	if err == nil {
		var terr tcpip.Error
		if ep, terr = r.CreateEndpoint(&wq); terr != nil {
			err = errors.New(terr.String())
		}
	}
	if err != nil {
		<-n.udp
		if outer != nil {
			outer.Close()
		}
		return false
	}
	inner := gonet.NewUDPConn(&wq, ep)
	go func() {
		defer func() { <-n.udp }()
		if outer == nil {
			n.answerPackets(inner)
			return
		}
		n.exchange(to, inner, outer)
	}()
	return true
}

// exchange moves packets between the job and the world until neither has sent any for a while. One that comes too fast is lost, as a router
// would lose it.
func (n *router) exchange(to netip.AddrPort, inner, outer net.Conn) {
	atomic.AddUint64(&n.count.flows, 1)
	n.log.opened("udp", to)
	began := time.Now()
	var last atomic.Int64 // when a packet moved, in nanoseconds since began
	var sent, got uint64
	var both sync.WaitGroup
	one := func(dst, src net.Conn, counter *uint64, pace *rate.Limiter, moved *uint64) {
		defer dst.Close()
		defer src.Close()
		b := buffers.Get().(*[chunk]byte)
		defer buffers.Put(b)
		for {
			_ = src.SetReadDeadline(began.Add(time.Duration(last.Load()) + udpIdle)) // neither kind of connection fails here
			k, err := src.Read(b[:])
			var late net.Error
			if errors.As(err, &late) && late.Timeout() && time.Since(began) < time.Duration(last.Load())+udpIdle {
				continue // the other direction was used meanwhile
			}
			if err != nil {
				return
			}
			last.Store(int64(time.Since(began)))
			if !pace.AllowN(time.Now(), max(k, 1)) {
				continue
			}
			if n.spend(counter, k) != nil {
				return
			}
			if _, err := dst.Write(b[:k]); err != nil {
				return
			}
			*moved += uint64(k)
		}
	}
	both.Go(func() { one(outer, inner, &n.count.out, n.out, &sent) })
	both.Go(func() { one(inner, outer, &n.count.in, n.in, &got) })
	both.Wait()
	n.log.closed("udp", to, began, sent, got)
}
