package libp2p

import (
	"context"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
)

// mdnsService is our own name, so that we do not meet every libp2p program on the local network.
const mdnsService = "_gpufair._udp"

const (
	mdnsRetry  = time.Minute // a laptop's network comes and goes
	mdnsDials  = 4           // at once
	mdnsMemory = 256         // neighbours that are remembered not to be ours
)

// neighbours dials what mDNS finds.
type neighbours struct {
	n    *Network
	ctx  context.Context // of Run
	slot chan struct{}   // capacity mdnsDials

	mu     sync.Mutex
	others map[peer.ID]struct{} // guarded by mu; of other networks
}

// runMDNS finds peers on the local network until ctx ends. That it can not is never fatal: many machines have no multicast.
func (n *Network) runMDNS(ctx context.Context) {
	found := &neighbours{n: n, ctx: ctx, slot: make(chan struct{}, mdnsDials), others: map[peer.ID]struct{}{}}
	told := false
	for ctx.Err() == nil {
		service := mdns.NewMdnsService(n.host, mdnsService, found)
		err := service.Start()
		if err == nil {
			<-ctx.Done()
		} else {
			if !told {
				n.log.Warn("peers on the local network will not be found by themselves; use invite and join", "err", err)
				told = true
			}
			select {
			case <-ctx.Done():
			case <-time.After(mdnsRetry):
			}
		}
		if err := service.Close(); err != nil {
			n.log.Debug("mdns close", "err", err)
		}
	}
}

// HandlePeerFound fulfils libp2p's notifee.
func (f *neighbours) HandlePeerFound(info peer.AddrInfo) {
	to, err := peerAddr(info)
	if err != nil || f.ctx.Err() != nil || f.n.isConnected(to.Peer) || f.known(info.ID) {
		return
	}
	select {
	case f.slot <- struct{}{}:
	default:
		return // it is announced again
	}
	defer func() { <-f.slot }()
	ctx, cancel := context.WithTimeout(f.ctx, dialLimit)
	defer cancel()
	if err := f.n.Connect(ctx, to); err != nil {
		f.n.log.Debug("neighbour not met", "peer", to.Peer, "err", err)
		if _, foreign := f.n.foreign(info.ID); foreign {
			f.remember(info.ID)
		}
	}
}

func (f *neighbours) known(id peer.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.others[id]
	return ok
}

func (f *neighbours) remember(id peer.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.others) >= mdnsMemory {
		clear(f.others)
	}
	f.others[id] = struct{}{}
}
