package wire

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/local"
	wirehash "github.com/gpufair/gpufair/p2p/wire"
)

// reachChecks say how others reach this machine, and what would help.
func (b *Base) reachChecks() []local.Check {
	r := b.Network.Reachability()
	out := []local.Check{checkReach(r)}
	if word := routerWord(r.NAT); word != "" && r.State != "public" {
		c := Check("router", "%s: holes can be punched in it", word)
		if strings.Contains(word, "symmetric") {
			c = Finding(LevelNote, "router", word+": no holes can be punched in it, so peers behind other routers are reached over relays only",
				"forward the port under `listen` in the router, turn its UPnP on, or use IPv6")
		}
		out = append(out, c)
	}
	if r.Shared != "" && r.State != "public" {
		out = append(out, Finding(LevelNote, "shared address", r.Shared+": the internet provider has a router of its own before yours (CGNAT), so no port can be forwarded",
			"ask the provider for a public address or IPv6; until then holes and relays do it"))
	}
	if use, ok := b.Network.RelayUse(); ok {
		limits := b.Config.Network.Relay
		out = append(out, Check("relay", "%d of %s, %d of %s open, %s carried since the start", use.Slots, cli.Count(limits.Slots, "slot"),
			use.Circuits, cli.Count(limits.Circuits, "circuit"), cli.Bytes(use.Bytes)))
		if use.Slots >= int64(limits.Slots) {
			out = append(out, Finding(LevelWarn, "relay slots", "all are taken: peers that come now are turned away", "raise relay.slots, or run another relay"))
		}
	}
	return out
}

// checkReach judges reachability as a whole.
func checkReach(r libp2p.Reachability) local.Check {
	relays := relaysOf(r.Relays)
	switch {
	case r.Relay:
		return Check("reachability", "public, as the settings say")
	case r.State == "public":
		return Check("reachability", "public: peers could dial %s", strings.Join(r.Public, ", "))
	case len(relays) > 0:
		return Check("reachability", "%s: peers meet this machine over %s, and punch through the router where they can", behind(r.State),
			cli.Count(len(relays), "relay"))
	case r.State == "private":
		return Finding(LevelWarn, "reachability", "peers could dial none of this machine's addresses, and no relay holds a slot for it: those outside can not reach it",
			"forward the port under `listen` in the router or turn its UPnP on, or join a peer that runs `gpufaird relay`")
	}
	return Check("reachability", "not tried yet: that takes a peer outside the local network")
}

func behind(state string) string {
	if state == "private" {
		return "behind a router"
	}
	return "not known to be public"
}

// relaysOf are the peers in addresses over relays.
func relaysOf(addrs []string) (ids []string) {
	for _, a := range addrs {
		before, _, _ := strings.Cut(a, "/p2p-circuit")
		ids = append(ids, before[strings.LastIndexByte(before, '/')+1:])
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// routerWord says what a router does, for people.
func routerWord(kinds map[string]string) string {
	var out []string
	for _, transport := range []string{"udp", "tcp"} {
		if k, ok := kinds[transport]; ok {
			out = append(out, k+" for "+strings.ToUpper(transport))
		}
	}
	return strings.Join(out, ", ")
}

const (
	visibleAsked  = 3 // peers
	visibleWithin = 10 * time.Second
)

// CheckVisible asks some peers, best those that are not connected, whether they have this machine's offer. It asks under a name made for
// the purpose, so that what they say is what any newcomer would hear.
func (b *Base) CheckVisible(ctx context.Context, offer wirehash.Hash) local.Check {
	ctx, cancel := context.WithTimeout(ctx, visibleWithin)
	defer cancel()
	peers := b.toAsk()
	if len(peers) == 0 {
		return Finding(LevelNote, "visible", "there is no peer to ask whether it has the offer", "join a network first")
	}
	n, end, err := b.newcomer(ctx)
	if err != nil {
		return Finding(LevelWarn, "visible", err.Error(), "")
	}
	defer end()
	var mu sync.Mutex
	asked, have, oldest := 0, 0, time.Duration(0) // guarded by mu
	var wg sync.WaitGroup
	for _, to := range peers {
		wg.Go(func() {
			if n.Connect(ctx, to) != nil {
				return
			}
			has, age, err := announce.Has(ctx, n, b.name, to.Peer, offer)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			asked++
			if has {
				have++
				oldest = max(oldest, age)
			}
		})
	}
	wg.Wait()
	switch {
	case asked == 0:
		return Finding(LevelNote, "visible", fmt.Sprintf("none of %s answered a newcomer", cli.Count(len(peers), "peer")), "look again in a moment")
	case have == 0:
		return Finding(LevelWarn, "visible", fmt.Sprintf("%s asked by a newcomer, none has the offer", cli.Count(asked, "peer")),
			"look again in a minute; if it stays so, `peers` says who is connected, and a restart tells them anew")
	}
	return Check("visible", "%d of %s asked by a newcomer have the offer, with a sign of life %s old at most", have, cli.Count(asked, "peer"), cli.Span(oldest))
}

// toAsk are a few peers at random: first such as have an offer of their own and are not connected, then connected ones.
func (b *Base) toAsk() (out []p2p.PeerAddr) {
	connected := map[identity.PeerID]bool{b.Device.Peer(): true}
	var near []p2p.PeerAddr
	for _, p := range b.Network.Peers() {
		connected[p.Peer] = true
		near = append(near, p2p.PeerAddr{Peer: p.Peer, Addrs: b.Network.KnownAddrs(p.Peer)})
	}
	var from [16]byte
	for i := range from {
		from[i] = byte(rand.Uint32())
	}
	for _, after := range [][16]byte{from, {}} {
		page, _, _ := b.Board.Book().Page(after, [16]byte{}, nil, 16*visibleAsked, time.Now())
		for _, e := range page {
			if !connected[e.Device] && len(e.Addrs) > 0 {
				connected[e.Device] = true
				out = append(out, p2p.PeerAddr{Peer: e.Device, Addrs: e.Addrs})
			}
		}
	}
	rand.Shuffle(len(near), func(i, j int) { near[i], near[j] = near[j], near[i] })
	out = append(out[:min(len(out), visibleAsked)], near...)
	return out[:min(len(out), visibleAsked)]
}

// newcomer is a network of a name that nobody knows. It ends with end.
func (b *Base) newcomer(ctx context.Context) (n *libp2p.Network, end func(), err error) {
	_, _, dev, err := identity.Generate()
	if err != nil {
		return nil, nil, err
	}
	c, err := b.Config.Network.libp2p(b.Program)
	if err != nil {
		return nil, nil, err
	}
	c.Peers, c.MDNS, c.UPnP, c.Index, c.Relay, c.Outside = nil, false, false, libp2p.NoIndex, nil, nil
	c.Listen = []string{"0.0.0.0:0"}
	if c.Loopback {
		c.Listen = []string{"127.0.0.1:0"}
	}
	if n, err = libp2p.New(dev, c, nil, slog.New(slog.DiscardHandler)); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.Run(ctx)
	}()
	return n, func() { cancel(); <-done }, nil
}
