// Package p2p is the network in our own words: peers, streams, topics, and the kinds of error that cross the wire. It owns the
// contracts that conversations are written against, and refuses to know libp2p, money and GPUs.
package p2p

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
)

// Protocol names one conversation: /gpufair/<network>/<name>/1.0.0. The network's name keeps two networks apart.
type Protocol string

// DefaultNetwork is the network that a program joins when its config names none.
const DefaultNetwork = "main"

// maxNetwork bounds a network's name: it is part of every protocol and topic name.
const maxNetwork = 32

// CheckNetwork says what is wrong with a network's name: it must be 1 to 32 of a-z, 0-9 and -.
func CheckNetwork(name string) error {
	ok := name != "" && len(name) <= maxNetwork
	for _, c := range name {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if !ok {
		return fmt.Errorf("network name %.40q: want 1 to %d of a-z, 0-9 and -, such as %q", name, maxNetwork, DefaultNetwork)
	}
	return nil
}

// ProtocolID is the protocol of a conversation on a network.
func ProtocolID(network, name string) Protocol { return ProtocolVersion(network, name, 1) }

// ProtocolVersion is [ProtocolID] of a later version of a conversation.
func ProtocolVersion(network, name string, version int) Protocol {
	return Protocol(fmt.Sprintf("/gpufair/%s/%s/%d.0.0", network, name, version))
}

// OffersTopic is the gossip topic of a shard: /gpufair/<network>/offers/1/<region>/<class>. First light knows any/any only.
func OffersTopic(network, region, class string) string {
	return fmt.Sprintf("/gpufair/%s/offers/1/%s/%s", network, region, class)
}

// Stream is one conversation with one peer: two byte directions, each with an end. Reads and writes of one stream may happen in two
// goroutines; each direction belongs to one.
type Stream interface {
	io.ReadWriter
	// CloseWrite says that nothing more will be sent; the peer reads io.EOF.
	CloseWrite() error
	// Close ends both directions; the peer reads io.EOF if everything was read before.
	Close() error
	// Reset ends both directions at once with a kind that the peer sees as an [*Error].
	Reset(kind Kind) error
	// SetDeadline bounds reads and writes from then on: later ones are os.ErrDeadlineExceeded. The idle limit (of the handler's [Limits],
	// [OpenerIdle] on the other side) holds besides and resets the stream with [KindTimeout].
	SetDeadline(t time.Time) error
	// Peer is who is on the other side, proved by the transport's handshake.
	Peer() identity.PeerID
	// Protocol is what both sides agreed to speak.
	Protocol() Protocol
}

// Handler serves one stream of a protocol; [Finish] ends the stream when it returns. ctx ends with the network or the connection.
type Handler func(ctx context.Context, s Stream) error

// Limits bound what strangers may make a handler cost. What is zero gets the default of [Limits.WithDefaults].
type Limits struct {
	Streams     int           // at once, over all peers
	PeerStreams int           // at once, of one peer
	Idle        time.Duration // a stream without a read or write for so long is reset
}

// PeerAddr is where a peer may be reached: libp2p multiaddresses without the /p2p part.
type PeerAddr struct {
	Peer  identity.PeerID
	Addrs []string
}

// Reach is how the connection to a peer came about.
type Reach string

// The ways of a connection.
const (
	Direct  Reach = "direct"  // one side dialled the other
	Punched Reach = "punched" // both dialled at once through their routers, after they had met over a relay
	Relayed Reach = "relayed" // a third peer carries the bytes, and can read none of them
)

// Traffic is what the streams of one purpose carried, in bytes.
type Traffic struct {
	Purpose  string // the name of our conversation ("blob"), or "gossip", "dht", "relay" or "network" for what keeps the network up
	Sent     uint64
	Received uint64
}

// PeerInfo is a connected peer, for people and diagnosis.
type PeerInfo struct {
	Peer      identity.PeerID
	Addr      string        // of the connection in use
	Transport string        // "quic" or "tcp"
	Reach     Reach         // of the connection in use
	Inbound   bool          // the peer dialled us
	Since     time.Time     // start of the connection
	RTT       time.Duration // of the connection in use, when it was last measured; 0 if unknown
	Agent     string        // the peer's own word on its program and version
	Traffic   []Traffic     // since the peer connected, by purpose
}

// Network is this machine among its peers. Safe for concurrent use.
type Network interface {
	Publisher
	Finder
	// Self is this device.
	Self() identity.PeerID
	// Addrs are the addresses at which others may reach this machine, for invites and offers, those of most use first.
	Addrs() []string
	// AddrsChanged is closed when Addrs gives something else than now.
	AddrsChanged() <-chan struct{}
	// Handle serves protocol with h; a second call for the same protocol replaces the first.
	Handle(protocol Protocol, limits Limits, h Handler)
	// Open starts a conversation with a peer that is connected or whose address is known. The error is [ErrUnreachable] when no
	// address answers and [ErrUnsupported] when the peer does not speak the protocol.
	Open(ctx context.Context, peer identity.PeerID, protocol Protocol) (Stream, error)
	// Protect keeps the connection to peer from being trimmed until Unprotect with the same tag: live jobs do so.
	Protect(peer identity.PeerID, tag string)
	Unprotect(peer identity.PeerID, tag string)
	// Watch calls f with each peer that connects (up) or loses its last connection, in order, until ctx ends. It returns at once; f is
	// called from one goroutine of its own, first for each peer that is up already.
	Watch(ctx context.Context, f func(peer identity.PeerID, up bool))
}

// Finder meets peers.
type Finder interface {
	// Connect dials a peer unless it is connected already.
	Connect(ctx context.Context, to PeerAddr) error
	// Peers lists the connected peers.
	Peers() []PeerInfo
}

// Index finds the members of the network where gossip does not reach: public machines keep word of those that left it. Nobody signed what it
// says, so it is a hint and no more: a dial proves who is there, and signatures what they offer. Safe for concurrent use.
type Index interface {
	// LeaveWord says that this machine offers something, to those who keep the index. It is kept for an hour and a bit, and may be lost: repeat
	// it. The error is for the case that nobody was there to tell.
	LeaveWord(ctx context.Context) error
	// FindWords gives up to limit machines that left word, this one not among them; none where nobody answers before ctx ends.
	FindWords(ctx context.Context, limit int) []PeerAddr
}

// Verdict is what a validator thinks of a message.
type Verdict int

// The verdicts: forward it, drop it quietly (stale or a repeat), or drop it and hold it against the peer that forwarded it.
const (
	Accept Verdict = iota
	Ignore
	Reject
)

// Validator judges a message before it is delivered or forwarded; from is the peer that forwarded it, not its author. It runs in
// many goroutines and must not block.
type Validator func(ctx context.Context, from identity.PeerID, data []byte) Verdict

// Publisher spreads messages to all members of a topic.
type Publisher interface {
	// Join enters a topic; messages pass v first. A topic is joined once.
	Join(topic string, maxSize int, v Validator) (Topic, error)
}

// Topic is a joined topic. Next has one caller at a time.
type Topic interface {
	// Publish sends data to the members; a message that our own validator does not accept is an error. With nobody there it is nil:
	// see Peers.
	Publish(ctx context.Context, data []byte) error
	// Next waits for the next accepted message of another peer or our own.
	Next(ctx context.Context) (data []byte, from identity.PeerID, err error)
	// Peers are the members that we know.
	Peers() []identity.PeerID
	// Leave ends the topic; Next then returns an error.
	Leave() error
}

// Persist keeps the network's few durable bytes (good peers, blocked peers). cmd fills it from the store.
type Persist interface {
	// Load gives the bytes under key, or nil if there are none.
	Load(ctx context.Context, key string) ([]byte, error)
	// Store keeps value under key, durably.
	Store(ctx context.Context, key string, value []byte) error
}

var (
	// ErrUnreachable says that no address of a peer answered.
	ErrUnreachable = errors.New("peer unreachable")
	// ErrUnsupported says that a peer does not speak a protocol.
	ErrUnsupported = errors.New("peer does not speak the protocol")
)
