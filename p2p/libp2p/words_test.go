package libp2p_test

import (
	"slices"
	"testing"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// TestWords: machines that are in no topic and have never met find one another over peers that keep the index, with the addresses to dial.
func TestWords(t *testing.T) {
	keeps := libp2p.Local("t")
	keeps.Index = libp2p.KeepIndex
	first, _ := start(t, p2ptest.Device(t), keeps, nil)
	second, _ := start(t, p2ptest.Device(t), keeps, nil)
	if err := second.Connect(within(t), at(first)); err != nil {
		t.Fatal(err)
	}
	var sellers []*libp2p.Network
	for range 3 {
		n, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
		if err := n.Connect(within(t), at(first)); err != nil {
			t.Fatal(err)
		}
		until(t, "the routing table to have a peer, so that word can be left", func() bool { return n.LeaveWord(within(t)) == nil })
		sellers = append(sellers, n)
	}
	buyer, _ := start(t, p2ptest.Device(t), libp2p.Local("t"), nil)
	if err := buyer.Connect(within(t), at(second)); err != nil {
		t.Fatal(err)
	}
	found := map[string]p2p.PeerAddr{}
	until(t, "all to be found", func() bool {
		for _, to := range buyer.FindWords(within(t), 64) {
			found[to.Peer.String()] = to
		}
		return len(found) >= len(sellers)
	})
	for _, s := range sellers {
		if slices.ContainsFunc(buyer.Peers(), func(p p2p.PeerInfo) bool { return p.Peer == s.Self() }) {
			t.Error("a seller was met before it was looked for")
		}
		to, ok := found[s.Self().String()]
		if !ok {
			t.Fatalf("found %v", found)
		}
		if err := buyer.Connect(within(t), to); err != nil {
			t.Errorf("what the index says of a seller: %v", err)
		}
	}
	if got := sellers[0].FindWords(within(t), 1); len(got) != 1 || got[0].Peer == sellers[0].Self() {
		t.Errorf("one other was asked for: %v", got)
	}
	none := libp2p.Local("t")
	none.Index = libp2p.NoIndex
	off, _ := start(t, p2ptest.Device(t), none, nil)
	if off.LeaveWord(within(t)) == nil || len(off.FindWords(within(t), 1)) > 0 {
		t.Error("a machine without the index takes part")
	}
}
