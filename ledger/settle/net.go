package settle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation about circles of debts.
const (
	maxNet       = 64 << 10         // bytes of a message: 16 words of 800 bytes and 8 circles of 8 legs are under 30 KiB
	maxFound     = 8                // circles of one answer
	netFan       = 4                // creditors that one member passes a search to
	netCalls     = 64               // conversations that one search may cause, over all members
	findFor      = 10 * time.Second // until a search ends
	roundFor     = 20 * time.Second // until a round of signatures ends
	netHop       = time.Second      // of the time that a member keeps for its own answer
	netLeast     = 100 * time.Millisecond
	netDeadline  = time.Minute // to sign a clearing
	netTries     = 3           // rounds of signatures, before the one who proposed gives up
	maxSiblings  = 16          // devices of this account that are remembered
	maxNetLimits = 1 << 10     // peers whose searches are counted
)

// Searches of one peer, and of all together, a second: a search of somebody who is owed passes here once for each way to it.
const (
	peerSearches, peerBurst = 2, 2 * netCalls
	allSearches, allBurst   = 20, 8 * netCalls
)

// NetLimits is what that conversation may cost.
func NetLimits() p2p.Limits { return p2p.Limits{Streams: 32, PeerStreams: 4, Idle: time.Minute} }

// NetConfig is what the conversation about circles needs.
type NetConfig struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Books    *books.Books
	// Consent reports whether the owner lets this account be cleared in circles. Nobody is told of a debt without it.
	Consent func() bool
	// Siblings are other devices of this account, whose ledgers may hold the other half of its debts. Nil: none is known.
	Siblings func() []identity.PeerID
	Log      *slog.Logger
}

// Net finds circles of debts and clears them, all or nothing (docs/adr: netting). Safe for concurrent use.
type Net struct {
	c   NetConfig
	all *rate.Limiter

	mu       sync.Mutex
	peers    map[identity.PeerID]*rate.Limiter // guarded by mu
	siblings []identity.PeerID                 // guarded by mu; that have asked here
	running  map[wire.Hash]bool                // guarded by mu; clearings that this process is proposing
	waits    map[wire.Hash]wait                // guarded by mu; of Poll
}

// ErrNoConsent says that the owner does not let this account be cleared.
var ErrNoConsent = errors.New("netting is off: set `ledger.netting = true`")

// NewNet makes the conversation; the caller serves its Handler and runs Run.
func NewNet(c NetConfig) (*Net, error) {
	if c.Network == nil || c.Books == nil || c.Protocol == "" || c.Consent == nil || c.Log == nil {
		return nil, errors.New("net config: network, protocol, books, consent and log are needed")
	}
	if c.Siblings == nil {
		c.Siblings = func() []identity.PeerID { return nil }
	}
	return &Net{
		c: c, all: rate.NewLimiter(allSearches, allBurst), peers: map[identity.PeerID]*rate.Limiter{}, running: map[wire.Hash]bool{},
		waits: map[wire.Hash]wait{},
	}, nil
}

// NetAsk is the request: one of its parts is there.
type NetAsk struct {
	Delegation []byte    `cbor:"1,keyasint"` // of the device that asks
	Find       *NetFind  `cbor:"2,keyasint,omitempty"`
	Round      *NetRound `cbor:"3,keyasint,omitempty"`
	News       *NetNews  `cbor:"4,keyasint,omitempty"`
}

// NetFind is a search for a circle that closes at the debtor of the first leg. Each member that passes it on adds what it owes.
type NetFind struct {
	Unit  money.Unit `cbor:"1,keyasint"`
	Path  []NetLeg   `cbor:"2,keyasint"` // empty between devices of one account: search for yourself
	Calls uint32     `cbor:"3,keyasint"` // conversations that the answer may still cause
	Wait  uint32     `cbor:"4,keyasint"` // milliseconds that the asker waits
}

// NetLeg is a debt on the way. Amount is the least of it and of those before it, so that nobody learns more than what could be cleared.
type NetLeg struct {
	netting.Leg
	Amount money.Micro `cbor:"10,keyasint"`
}

// NetRound passes a clearing around the circle: each member that it comes to agrees, or books it if all have, and passes it on.
type NetRound struct {
	Terms netting.Terms  `cbor:"1,keyasint"`
	Words []netting.Word `cbor:"2,keyasint,omitempty"`
	Wait  uint32         `cbor:"3,keyasint"` // milliseconds that the asker waits
}

// NetNews brings what one member knows of a clearing to another, and asks for what that one knows.
type NetNews struct {
	Terms netting.Terms  `cbor:"1,keyasint"`
	Words []netting.Word `cbor:"2,keyasint,omitempty"`
	Free  bool           `cbor:"3,keyasint,omitempty"` // the deadline has passed: refuse, if you never agreed

	Booked bool `cbor:"4,keyasint,omitempty"` // the one who asks has booked it
}

// NetAnswer is the answer to a [NetAsk].
type NetAnswer struct {
	Circles [][]NetLeg        `cbor:"1,keyasint,omitempty"` // of a search
	Words   []netting.Word    `cbor:"2,keyasint,omitempty"` // all that is known of the clearing here and further on
	Has     []identity.PeerID `cbor:"3,keyasint,omitempty"` // members that have booked it, here and further on
	Why     string            `cbor:"4,keyasint,omitempty"` // a member did not agree
}

// ask sends one request to peer.
func (n *Net) ask(ctx context.Context, peer identity.PeerID, a NetAsk) (got NetAnswer, err error) {
	a.Delegation = n.c.Books.Device().Delegation()
	if err := p2p.Call(ctx, n.c.Network, peer, n.c.Protocol, a, &got, maxNet); err != nil {
		return got, fmt.Errorf("net with %s: %w", peer.Short(), err)
	}
	if len(got.Circles) > maxFound || len(got.Words) > 2*netting.MaxDevices || len(got.Has) > netting.MaxDevices {
		return NetAnswer{}, fmt.Errorf("net with %s: %w", peer.Short(), wire.ErrTooLarge)
	}
	return got, nil
}

// Handler answers other peers.
func (n *Net) Handler() p2p.Handler {
	return p2p.Answer(maxNet, func(ctx context.Context, from identity.PeerID, a NetAsk) (NetAnswer, error) {
		d, err := speaks(from, a.Delegation)
		if err != nil {
			return NetAnswer{}, err
		}
		switch {
		case a.Find != nil:
			return n.find(ctx, d, *a.Find)
		case a.Round != nil:
			return n.round(ctx, from, *a.Round)
		case a.News != nil:
			return n.news(ctx, from, *a.News)
		}
		return NetAnswer{}, p2p.Errorf(p2p.KindBadRequest, "asks for nothing")
	})
}

// remember keeps a device of this account that asked here.
func (n *Net) remember(device identity.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.siblings, device) && len(n.siblings) < maxSiblings {
		n.siblings = append(n.siblings, device)
	}
}

// family are the other devices of this account that are known.
func (n *Net) family() []identity.PeerID {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.Clone(n.siblings)
	for _, d := range n.c.Siblings() {
		if d != n.c.Network.Self() && !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	return all
}

// allow counts a search of peer.
func (n *Net) allow(peer identity.PeerID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.peers[peer]
	if l == nil {
		if len(n.peers) >= maxNetLimits {
			clear(n.peers) // the limit of all together holds
		}
		l = rate.NewLimiter(peerSearches, peerBurst)
		n.peers[peer] = l
	}
	return l.Allow() && n.all.Allow()
}

// within bounds ctx by what an asker waits, less what this side's own answer takes.
func within(ctx context.Context, ms uint32, most time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(min(time.Duration(ms)*time.Millisecond, most)-netHop, netLeast))
}

// left is how many milliseconds are left of ctx.
func left(ctx context.Context) uint32 {
	end, ok := ctx.Deadline()
	if !ok {
		return uint32(roundFor.Milliseconds())
	}
	return uint32(max(time.Until(end), 0).Milliseconds())
}
