package libp2p_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/wire"
)

// natHome tells a child process of the NAT tests where its state lies; what it should be is the [natConfig] in the file "node" there.
const natHome = "GPUFAIR_TEST_NAT_HOME"

const natNetwork = "nat"

// natConfig says what a machine of the NAT tests is.
type natConfig struct {
	Relay bool     // it relays for others
	Peers []string // whom it stays connected with
}

// natAsk is one request to a machine of the NAT tests, a JSON line on its standard input; natAnswer is the line that comes back.
type natAsk struct {
	Do    string // "addrs", "peers", "reach", "connect", "call", "fetch" or "offer"
	Peer  string
	Addrs []string
	Hash  wire.Hash
	Size  int
}

type natAnswer struct {
	Err   string
	Peer  string
	Addrs []string
	Peers []natPeer
	Reach libp2p.Reachability
	Relay libp2p.RelayUse
	Hash  wire.Hash
	Took  time.Duration
}

type natPeer struct {
	Peer  string
	Reach p2p.Reach
	RTT   time.Duration
	Via   string
}

// natNode is the machine in its own process.
type natNode struct {
	net   *libp2p.Network
	store *blob.Store
	ids   map[string]identity.PeerID
}

// Push fulfils blob.Authorizer.
func (n *natNode) Push(context.Context, blob.Request) (*blob.Store, error) {
	return nil, blob.ErrForbidden
}

// Fetch fulfils blob.Authorizer.
func (n *natNode) Fetch(context.Context, blob.Request) (blob.Source, error) { return n.store, nil }

func runNATNode(home string) error {
	dev, _, err := identity.LoadOrCreate(filepath.Join(home, "identity"), time.Now())
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(home, "node"))
	if err != nil {
		return err
	}
	var conf natConfig
	if err := json.Unmarshal(raw, &conf); err != nil {
		return err
	}
	c := libp2p.Default(natNetwork)
	c.MDNS, c.UPnP, c.Listen = false, false, []string{"0.0.0.0:4701"}
	if conf.Relay {
		r := libp2p.DefaultRelay()
		c.Relay = &r
	}
	for _, text := range conf.Peers {
		p, err := libp2p.ParsePeerAddr(text)
		if err != nil {
			return err
		}
		c.Peers = append(c.Peers, p)
	}
	log := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})
	libp2p.LogTo(log) // what libp2p says, too, helps with a test that fails
	net, err := libp2p.New(dev, c, nil, slog.New(log))
	if err != nil {
		return err
	}
	store, err := blob.OpenStore(filepath.Join(home, "blobs"), 1<<30)
	if err != nil {
		return err
	}
	n := &natNode{net: net, store: store, ids: map[string]identity.PeerID{}}
	net.Handle(p2p.ProtocolID(natNetwork, "blob"), blob.ServerLimits(), blob.Serve(n))
	net.Handle(p2p.ProtocolID(natNetwork, "double"), p2p.Limits{}, p2p.Answer(64,
		func(_ context.Context, _ identity.PeerID, n int) (int, error) { return 2 * n, nil }))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- net.Run(ctx) }()
	n.obey(ctx)
	cancel()
	return errors.Join(<-done, store.Close())
}

// obey answers the parent until it ends.
func (n *natNode) obey(ctx context.Context) {
	lines := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var ask natAsk
		answer := natAnswer{Peer: n.net.Self().String()}
		err := json.Unmarshal(lines.Bytes(), &ask)
		if err == nil {
			within, cancel := context.WithTimeout(ctx, 30*time.Second)
			start := time.Now()
			err = n.do(within, ask, &answer)
			answer.Took = time.Since(start)
			cancel()
		}
		if err != nil {
			answer.Err = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return
		}
	}
}

func (n *natNode) do(ctx context.Context, ask natAsk, answer *natAnswer) error {
	id := n.ids[ask.Peer]
	switch ask.Do {
	case "addrs":
		answer.Addrs = n.net.Addrs()
	case "reach":
		answer.Reach = n.net.Reachability()
		answer.Relay, _ = n.net.RelayUse()
	case "peers":
		for _, p := range n.net.Peers() {
			answer.Peers = append(answer.Peers, natPeer{Peer: p.Peer.String(), Reach: p.Reach, RTT: p.RTT, Via: p.Addr})
		}
	case "connect":
		to, err := libp2p.ParsePeerAddr("/p2p/" + ask.Peer)
		if err != nil {
			return err
		}
		n.ids[ask.Peer] = to.Peer
		to.Addrs = ask.Addrs
		return n.net.Connect(ctx, to)
	case "call":
		var got int
		if err := p2p.Call(ctx, n.net, id, p2p.ProtocolID(natNetwork, "double"), 21, &got, 64); err != nil {
			return err
		}
		if got != 42 {
			return fmt.Errorf("double of 21 is %d", got)
		}
	case "offer":
		data := make([]byte, ask.Size)
		for i := range data {
			data[i] = byte(i*i>>8 ^ i)
		}
		var err error
		answer.Hash, err = n.store.Put(ctx, data)
		return err
	case "fetch":
		c := blob.Client{Network: n.net, Protocol: p2p.ProtocolID(natNetwork, "blob"), Peer: id}
		return c.Fetch(ctx, n.store, ask.Hash, nil) // which checks the hash
	}
	return nil
}
