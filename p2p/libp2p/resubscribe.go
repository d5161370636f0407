package libp2p

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"google.golang.org/protobuf/proto"
)

// gossipHost is the host as gossipsub sees it. A peer tells its subscriptions once, at the start of the stream on which it sends to us.
// When the stream on which we send to it ends, as that of an older one of two connections does, pubsub v0.19 (handleDeadPeers) forgets
// the peer's subscriptions too, though the peer's own stream lives on and will never repeat them: from then on the peer gets nothing.
// So this host remembers what each peer said on its present stream, and says it again to gossipsub when gossipsub has forgotten.
type gossipHost struct {
	host.Host
	filter ownTopics
	limit  int // bytes of an RPC

	mu      *sync.Mutex
	inbound map[peer.ID]*inbound // guarded by mu; the newest stream of each peer
}

func newGossipHost(h host.Host, filter ownTopics, limit int) *gossipHost {
	return &gossipHost{Host: h, filter: filter, limit: limit, mu: &sync.Mutex{}, inbound: map[peer.ID]*inbound{}}
}

// SetStreamHandler fulfils libp2p's host; gossipsub calls it once for each version of its protocol.
func (h *gossipHost) SetStreamHandler(id protocol.ID, handle network.StreamHandler) {
	h.Host.SetStreamHandler(id, func(s network.Stream) {
		from := s.Conn().RemotePeer()
		in := &inbound{
			Stream: s, filter: h.filter, frames: make(chan []byte), again: make(chan struct{}, 1), over: make(chan struct{}),
			said: map[string]*pb.RPC_SubOpts{},
		}
		h.mu.Lock()
		h.inbound[from] = in
		h.mu.Unlock()
		var pump sync.WaitGroup
		pump.Go(func() { in.pump(uint64(h.limit)) })
		handle(in) // returns when the stream has ended, or gossip as a whole
		_ = s.Reset()
		h.mu.Lock()
		if h.inbound[from] == in {
			delete(h.inbound, from)
		}
		h.mu.Unlock()
		close(in.over)
		pump.Wait()
	})
}

// NewStream fulfils libp2p's host. Gossipsub opens a stream to a connected peer when it is new, and after it has forgotten the peer.
func (h *gossipHost) NewStream(ctx context.Context, to peer.ID, ids ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, to, ids...)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if in := h.inbound[to]; in != nil {
		select {
		case in.again <- struct{}{}:
		default: // it is told to already
		}
	}
	return s, nil
}

// inbound is a peer's stream of RPCs, read whole, so that one of ours fits between two of them. Read has one caller.
type inbound struct {
	network.Stream
	filter ownTopics
	frames chan []byte   // from pump; closed at the stream's end, after err was set
	err    error         // why the stream ended
	again  chan struct{} // capacity 1
	over   chan struct{} // closed when the reader has left

	said map[string]*pb.RPC_SubOpts // the reader's own: the topics of which the peer is a member, by what it has said so far
	rest []byte                     // the reader's own: of the frame begun
}

// pump reads frames, each a length and so many bytes, until the stream ends or the reader has left.
func (in *inbound) pump(limit uint64) {
	defer close(in.frames)
	r := bufio.NewReader(in.Stream)
	for {
		size, err := binary.ReadUvarint(r)
		if err == nil && size > limit {
			err = fmt.Errorf("gossip of %d bytes: want at most %d", size, limit)
		}
		var frame []byte
		if err == nil {
			frame = framed(make([]byte, size))
			_, err = io.ReadFull(r, frame[uint64(len(frame))-size:])
		}
		if err != nil {
			in.err = err
			return
		}
		select {
		case in.frames <- frame:
		case <-in.over:
			return
		}
	}
}

func framed(raw []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(raw))), raw...)
}

// Read fulfils libp2p's stream.
func (in *inbound) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		select {
		case frame, ok := <-in.frames:
			if !ok {
				return 0, in.err
			}
			in.note(frame)
			in.rest = frame
		case <-in.again:
			in.rest = in.repeat()
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// note remembers what a frame says of the peer's subscriptions. What it can not read, gossipsub will not be able to read either.
func (in *inbound) note(frame []byte) {
	_, n := binary.Uvarint(frame)
	var rpc pb.RPC
	if proto.Unmarshal(frame[n:], &rpc) != nil {
		return
	}
	for _, s := range rpc.GetSubscriptions() {
		topic := s.GetTopicid()
		switch {
		case !s.GetSubscribe():
			delete(in.said, topic)
		case in.filter.CanSubscribe(topic) && len(in.said) < maxTopics:
			in.said[topic] = s
		}
	}
}

// repeat is a frame of all that the peer is subscribed to; nil if that is nothing.
func (in *inbound) repeat() []byte {
	if len(in.said) == 0 {
		return nil
	}
	var rpc pb.RPC
	for _, s := range in.said {
		rpc.Subscriptions = append(rpc.Subscriptions, s)
	}
	raw, err := proto.Marshal(&rpc)
	if err != nil {
		return nil
	}
	return framed(raw)
}
