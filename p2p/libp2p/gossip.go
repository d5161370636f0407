package libp2p

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	pubsub "github.com/libp2p/go-libp2p-pubsub"
	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

const (
	gossipQueue  = 256             // messages waiting to go out to a peer, to be validated, and to be read: bursts of a full shard
	seenTTL      = 5 * time.Minute // longer than a message can travel
	maxTopics    = 32              // that a peer may subscribe to in one packet, and that this machine joins
	messageIDLen = 16
)

// newGossip starts gossipsub with the numbers of spec p2p, 5.3.
func newGossip(ctx context.Context, h host.Host, c Config) (*pubsub.PubSub, error) {
	p := pubsub.DefaultGossipSubParams()
	p.D, p.Dlo, p.Dhi, p.Dscore, p.Dout, p.Dlazy = 4, 3, 6, 3, 1, 4
	score, thresholds := peerScore()
	own := ownTopics("/gpufair/" + c.Network + "/")
	return pubsub.NewGossipSub(ctx, newGossipHost(h, own, c.MaxMessage+gossipSlack),
		pubsub.WithGossipSubParams(p),
		pubsub.WithPeerScore(score, thresholds),
		// Payloads are signed by their authors, so that anyone may carry them.
		pubsub.WithMessageSignaturePolicy(pubsub.StrictNoSign),
		pubsub.WithNoAuthor(),
		pubsub.WithMessageIdFn(func(m *pb.Message) string {
			sum := sha256.Sum256(append([]byte(m.GetTopic()+"\x00"), m.GetData()...))
			return string(sum[:messageIDLen])
		}),
		pubsub.WithSubscriptionFilter(pubsub.WrapLimitSubscriptionFilter(own, maxTopics)),
		pubsub.WithMaxMessageSize(c.MaxMessage+gossipSlack),
		pubsub.WithPeerOutboundQueueSize(gossipQueue),
		pubsub.WithValidateQueueSize(gossipQueue),
		pubsub.WithSeenMessagesTTL(seenTTL),
		pubsub.WithFloodPublish(true), // a mesh is empty for its first second (spec: p2p, 3.12)
	)
}

// gossipSlack is what an RPC adds to the message in it: topic, field tags and control messages.
const gossipSlack = 4 << 10

// peerScore holds nothing against a peer but messages that our validators reject and misbehaviour in gossipsub itself. The penalty
// for delivering little is off: our topics are quiet, so it would be unjust (spec: p2p, 1.1, lotus).
func peerScore() (*pubsub.PeerScoreParams, *pubsub.PeerScoreThresholds) {
	var loopback []*net.IPNet
	for _, cidr := range []string{"127.0.0.0/8", "::1/128"} {
		if _, ipnet, err := net.ParseCIDR(cidr); err == nil {
			loopback = append(loopback, ipnet)
		}
	}
	params := &pubsub.PeerScoreParams{
		SkipAtomicValidation:        true,
		Topics:                      map[string]*pubsub.TopicScoreParams{},
		AppSpecificScore:            func(peer.ID) float64 { return 0 },
		IPColocationFactorWeight:    -1,
		IPColocationFactorThreshold: 10, // machines behind one router
		IPColocationFactorWhitelist: loopback,
		BehaviourPenaltyWeight:      -10,
		BehaviourPenaltyThreshold:   6,
		BehaviourPenaltyDecay:       pubsub.ScoreParameterDecay(10 * time.Minute),
		DecayInterval:               pubsub.DefaultDecayInterval,
		DecayToZero:                 pubsub.DefaultDecayToZero,
		RetainScore:                 time.Hour,
	}
	return params, &pubsub.PeerScoreThresholds{
		GossipThreshold: -500, PublishThreshold: -1000, GraylistThreshold: -2500, AcceptPXThreshold: 1000,
	}
}

// topicScore makes one rejected message cost little and a stream of them the connection's place in gossip: ten in ten minutes
// silence a peer, sixteen graylist it (the count is squared).
func topicScore() *pubsub.TopicScoreParams {
	return &pubsub.TopicScoreParams{
		SkipAtomicValidation: true, TopicWeight: 1,
		TimeInMeshQuantum:              time.Second, // of no weight, but pubsub v0.19 divides by it
		InvalidMessageDeliveriesWeight: -10, InvalidMessageDeliveriesDecay: pubsub.ScoreParameterDecay(10 * time.Minute),
	}
}

// ownTopics lets through the topics of one network.
type ownTopics string

// CanSubscribe fulfils pubsub's filter.
func (o ownTopics) CanSubscribe(topic string) bool {
	const maxTopicName = 200
	return len(topic) <= maxTopicName && strings.HasPrefix(topic, string(o))
}

// FilterIncomingSubscriptions fulfils pubsub's filter.
func (o ownTopics) FilterIncomingSubscriptions(_ peer.ID, subs []*pb.RPC_SubOpts) ([]*pb.RPC_SubOpts, error) {
	return pubsub.FilterSubscriptions(subs, o.CanSubscribe), nil
}

// topic fulfils [p2p.Topic].
type topic struct {
	n       *Network
	name    string
	maxSize int
	t       *pubsub.Topic
	sub     *pubsub.Subscription
}

// Join fulfils [p2p.Publisher]. The topic must be of this network, and maxSize within the config's limit.
func (n *Network) Join(name string, maxSize int, v p2p.Validator) (p2p.Topic, error) {
	if maxSize < 1 || maxSize > n.config.MaxMessage {
		return nil, fmt.Errorf("join topic %s: messages of %d bytes: want 1 to %d", name, maxSize, n.config.MaxMessage)
	}
	n.mu.Lock()
	_, joined := n.topics[name]
	full := len(n.topics) >= maxTopics
	if !joined && !full {
		n.topics[name] = struct{}{}
	}
	n.mu.Unlock()
	switch {
	case joined:
		return nil, fmt.Errorf("join topic %s: it is joined already", name)
	case full:
		return nil, fmt.Errorf("join topic %s: %d topics are joined already", name, maxTopics)
	}
	t, err := n.join(name, maxSize, v)
	if err != nil {
		n.left(name)
		return nil, fmt.Errorf("join topic %s: %w", name, err)
	}
	return t, nil
}

func (n *Network) left(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.topics, name)
}

func (n *Network) join(name string, maxSize int, v p2p.Validator) (_ *topic, err error) {
	validate := func(ctx context.Context, from peer.ID, m *pubsub.Message) pubsub.ValidationResult {
		id, err := identity.PeerFromLibp2p(string(from))
		if err != nil {
			return pubsub.ValidationReject
		}
		switch p2p.Judge(ctx, v, maxSize, id, m.GetData(), n.log) {
		case p2p.Accept:
			return pubsub.ValidationAccept
		case p2p.Ignore:
			return pubsub.ValidationIgnore
		}
		return pubsub.ValidationReject
	}
	if err := n.gossip.RegisterTopicValidator(name, validate); err != nil {
		return nil, err
	}
	t, err := n.gossip.Join(name)
	if err != nil {
		return nil, errors.Join(err, n.gossip.UnregisterTopicValidator(name))
	}
	sub, err := t.Subscribe(pubsub.WithBufferSize(gossipQueue))
	if err == nil {
		err = t.SetScoreParams(topicScore())
	}
	if err != nil {
		return nil, errors.Join(err, t.Close(), n.gossip.UnregisterTopicValidator(name))
	}
	return &topic{n: n, name: name, maxSize: maxSize, t: t, sub: sub}, nil
}

// Publish fulfils [p2p.Topic].
func (t *topic) Publish(ctx context.Context, data []byte) error {
	if len(data) > t.maxSize {
		return fmt.Errorf("publish to %s: %d bytes: %w (limit %d)", t.name, len(data), wire.ErrTooLarge, t.maxSize)
	}
	if err := t.t.Publish(ctx, data); err != nil {
		return fmt.Errorf("publish to %s: %w", t.name, err)
	}
	return nil
}

// Next fulfils [p2p.Topic].
func (t *topic) Next(ctx context.Context) ([]byte, identity.PeerID, error) {
	m, err := t.sub.Next(ctx)
	if err != nil {
		return nil, identity.PeerID{}, fmt.Errorf("read topic %s: %w", t.name, err)
	}
	from, err := identity.PeerFromLibp2p(string(m.ReceivedFrom))
	if err != nil {
		return nil, identity.PeerID{}, fmt.Errorf("read topic %s: %w", t.name, err)
	}
	return m.GetData(), from, nil
}

// Peers fulfils [p2p.Topic].
func (t *topic) Peers() []identity.PeerID {
	var out []identity.PeerID
	for _, p := range t.t.ListPeers() {
		if id, err := identity.PeerFromLibp2p(string(p)); err == nil {
			out = append(out, id)
		}
	}
	return out
}

// Leave fulfils [p2p.Topic].
func (t *topic) Leave() error {
	t.sub.Cancel()
	for { // until gossipsub has taken note: it closes no topic with a subscription
		if _, err := t.sub.Next(t.n.ctx); err != nil {
			break
		}
	}
	err := errors.Join(t.t.Close(), t.n.gossip.UnregisterTopicValidator(t.name))
	t.n.left(t.name)
	if err != nil {
		return fmt.Errorf("leave topic %s: %w", t.name, err)
	}
	return nil
}
