package libp2p

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/libp2p/go-libp2p/core/event"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/peerstore"
	"github.com/libp2p/go-libp2p/p2p/host/eventbus"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

const (
	maxGood     = 64               // peers kept beside those of the config: twice the low mark of connections
	maxGoodAddr = 8                // addresses kept of each
	goodPeers   = "peers"          // the key under which they are saved
	giveUp      = 10 * time.Minute // a good peer that is gone for so long has gone; one of the config is dialled for ever
	firstWait   = 50 * time.Millisecond
	longestWait = 30 * time.Second // what a restarted peer may have to wait for us
	dialLimit   = 10 * time.Second
	saveDelay   = time.Second // several peers come at once; one write is enough
)

// keeper remembers good peers across restarts and dials those that are lost.
type keeper struct {
	n     *Network
	dirty chan struct{} // capacity 1: the list differs from what is saved

	mu    sync.Mutex
	ctx   context.Context               // guarded by mu; of Run, nil outside it
	peers map[identity.PeerID]*keptPeer // guarded by mu
	dials sync.WaitGroup
}

type keptPeer struct {
	addrs   []string
	always  bool      // of the config or an invite: dialled for ever
	seen    time.Time // last identified
	dialing bool
}

// savedPeer is a good peer as it is stored.
type savedPeer struct {
	Peer  identity.PeerID `cbor:"1,keyasint"`
	Addrs []string        `cbor:"2,keyasint"`
	Seen  int64           `cbor:"3,keyasint"` // Unix seconds
}

func newKeeper(n *Network) *keeper {
	return &keeper{n: n, dirty: make(chan struct{}, 1), peers: map[identity.PeerID]*keptPeer{}}
}

// Keep adds a peer to those that are dialled for ever, as the config's are; join does so.
func (n *Network) Keep(to p2p.PeerAddr) error {
	info, err := addrInfo(to)
	if err != nil {
		return err
	}
	n.host.Peerstore().AddAddrs(info.ID, info.Addrs, peerstore.PermanentAddrTTL)
	n.host.ConnManager().Protect(info.ID, "kept")
	k := n.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.peers[to.Peer]
	if p == nil {
		p = &keptPeer{}
		k.peers[to.Peer] = p
	}
	p.addrs, p.always = to.Addrs, true
	if !n.isConnected(to.Peer) {
		k.lost(to.Peer)
	}
	return nil
}

// lost starts to dial a kept peer that is not connected. k.mu is held.
func (k *keeper) lost(id identity.PeerID) {
	p := k.peers[id]
	if p == nil || p.dialing || k.ctx == nil || k.ctx.Err() != nil || id == k.n.self {
		return
	}
	p.dialing = true
	ctx := k.ctx
	k.dials.Go(func() { k.dial(ctx, id, p) })
}

// dial tries a lost peer with growing pauses until it is connected, given up, or ctx ends.
func (k *keeper) dial(ctx context.Context, id identity.PeerID, p *keptPeer) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier, wait.RandomizationFactor = firstWait, longestWait, 2, 0.2
	start := time.Now()
	for {
		k.mu.Lock()
		full := !p.always && !k.n.isProtected(id) && (time.Since(start) > giveUp || len(k.n.host.Network().Peers()) >= k.n.config.LowConns)
		if ctx.Err() != nil || full || k.n.isConnected(id) {
			p.dialing = false
			k.mu.Unlock()
			return
		}
		to := p2p.PeerAddr{Peer: id, Addrs: p.addrs}
		k.mu.Unlock()
		dialCtx, cancel := context.WithTimeout(ctx, dialLimit)
		err := k.n.Connect(dialCtx, to)
		cancel()
		if err == nil {
			continue
		}
		k.n.log.Debug("kept peer does not answer", "peer", id, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// run dials what is kept and saves what changes until ctx ends.
func (k *keeper) run(ctx context.Context) {
	k.load(ctx)
	k.mu.Lock()
	k.ctx = ctx
	for id := range k.peers {
		if !k.n.isConnected(id) {
			k.lost(id)
		}
	}
	k.mu.Unlock()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-k.dirty:
		}
		select {
		case <-ctx.Done():
		case <-time.After(saveDelay):
		}
		k.save(context.WithoutCancel(ctx))
	}
	k.mu.Lock()
	k.ctx = nil // no dial starts from here on
	k.mu.Unlock()
	k.dials.Wait()
}

// good notes that a peer of our network was identified at addrs.
func (k *keeper) good(id identity.PeerID, addrs []string) {
	if len(addrs) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.peers[id]
	if p == nil {
		k.makeRoom()
		p = &keptPeer{}
		k.peers[id] = p
	}
	p.seen = time.Now()
	if !p.always {
		p.addrs = addrs[:min(len(addrs), maxGoodAddr)]
	}
	select {
	case k.dirty <- struct{}{}:
	default:
	}
}

// makeRoom forgets the good peer not seen for longest, if there are as many as may be. k.mu is held.
func (k *keeper) makeRoom() {
	var oldest identity.PeerID
	count := 0
	for id, p := range k.peers {
		if p.always {
			continue
		}
		count++
		if oldest.IsZero() || p.seen.Before(k.peers[oldest].seen) {
			oldest = id
		}
	}
	if count >= maxGood {
		delete(k.peers, oldest)
	}
}

func (k *keeper) load(ctx context.Context) {
	if k.n.persist == nil {
		return
	}
	raw, err := k.n.persist.Load(ctx, goodPeers)
	var saved []savedPeer
	if err == nil && raw != nil {
		err = wire.Unmarshal(raw, &saved)
	}
	if err != nil {
		k.n.log.Warn("saved peers are not usable; starting without them", "err", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range saved[:min(len(saved), maxGood)] {
		if _, err := addrInfo(p2p.PeerAddr{Peer: s.Peer, Addrs: s.Addrs}); err != nil || k.peers[s.Peer] != nil {
			continue
		}
		k.peers[s.Peer] = &keptPeer{addrs: s.Addrs, seen: time.Unix(s.Seen, 0)}
	}
}

func (k *keeper) save(ctx context.Context) {
	if k.n.persist == nil {
		return
	}
	k.mu.Lock()
	var list []savedPeer
	for id, p := range k.peers {
		if !p.seen.IsZero() {
			list = append(list, savedPeer{Peer: id, Addrs: p.addrs, Seen: p.seen.Unix()})
		}
	}
	k.mu.Unlock()
	slices.SortFunc(list, func(a, b savedPeer) int { return int(b.Seen - a.Seen) })
	raw, err := wire.Marshal(list[:min(len(list), maxGood)])
	if err == nil {
		err = k.n.persist.Store(ctx, goodPeers, raw)
	}
	if err != nil {
		k.n.log.Warn("good peers not saved; the next start will have to find them again", "err", err)
	}
}

// watchIdentity lets peers of other networks go and hands the others to the keeper, until ctx ends.
func (n *Network) watchIdentity(ctx context.Context) {
	sub, err := n.host.EventBus().Subscribe(new(event.EvtPeerIdentificationCompleted), eventbus.BufSize(256))
	if err != nil {
		n.log.Error("peers will not be remembered", "err", err)
		return
	}
	defer sub.Close()
	for _, id := range n.host.Network().Peers() {
		n.identified(id)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-sub.Out():
			if !ok {
				return
			}
			n.identified(e.(event.EvtPeerIdentificationCompleted).Peer)
		}
	}
}

func (n *Network) identified(id peer.ID) {
	if other, foreign := n.foreign(id); foreign {
		n.log.Info("peer is of another network", "peer", id, "its", other, "ours", n.config.Network)
		n.host.Network().ClosePeer(id)
		return
	}
	known, err := identity.PeerFromLibp2p(string(id))
	if err != nil {
		return
	}
	addrs := texts(n.host.Peerstore().Addrs(id))
	for _, c := range n.host.Network().ConnsToPeer(id) {
		if c.Stat().Direction == network.DirOutbound { // this one is known to work
			addr := c.RemoteMultiaddr().String()
			addrs = append([]string{addr}, slices.DeleteFunc(addrs, func(a string) bool { return a == addr })...)
		}
	}
	n.keeper.good(known, addrs)
	select {
	case n.met <- struct{}{}:
	default:
	}
}

const (
	pingLive = 5 * time.Second  // of peers with live jobs: a machine that fell silent is let go well before QUIC's 30 s
	pingAll  = 12               // every so many rounds all others are measured too
	pingWait = 10 * time.Second // no answer in this time on a live peer closes the connection
)

// pingLoop measures round trips and drops connections to protected peers that no longer answer.
func (n *Network) pingLoop(ctx context.Context) {
	tick := time.NewTicker(pingLive)
	defer tick.Stop()
	var pings sync.WaitGroup
	defer pings.Wait()
	busy := make(chan struct{}, 16) // pings at once
	for round := 0; ; round++ {
		for _, id := range n.host.Network().Peers() {
			known, err := identity.PeerFromLibp2p(string(id))
			live := err == nil && n.isProtected(known)
			c := n.best(id)
			if c == nil || !live && round%pingAll != 0 && n.rtt(c) != 0 {
				continue
			}
			n.dropRelayed(id)
			select {
			case busy <- struct{}{}:
				pings.Go(func() {
					defer func() { <-busy }()
					n.ping(ctx, c, live)
				})
			default: // the next round asks again
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-n.met: // measure the new peer at once
		}
	}
}

func (n *Network) ping(ctx context.Context, c network.Conn, live bool) {
	pingCtx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	took, err := echo(pingCtx, c)
	switch {
	case err == nil && !c.IsClosed():
		n.mu.Lock()
		n.rtts[c] = took
		n.mu.Unlock()
		if c.IsClosed() { // its end was told meanwhile
			n.mu.Lock()
			delete(n.rtts, c)
			n.mu.Unlock()
		}
	case err != nil && live && pingCtx.Err() != nil && ctx.Err() == nil:
		n.log.Warn("peer fell silent; dropping the connection", "peer", c.RemotePeer(), "after", pingWait)
		_ = n.host.Network().ClosePeer(c.RemotePeer())
	}
}
