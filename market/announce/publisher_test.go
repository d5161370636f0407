package announce

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestLifeOfAnOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		after(time.Second)
		o := offer(owner.dev)
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		first, ok := renter.sees(owner.dev)
		if !ok || first.Account != owner.dev.Account() || first.Free != 0b10101 {
			t.Fatal("the renter does not see the offer", first)
		}
		if own, ok := owner.pub.Own(first.Hash); !ok || own.Hash != first.Hash || !owner.pub.Told() {
			t.Fatal("the owner does not know its own offer")
		}
		// A free device goes out as a heartbeat, at once.
		o = o.WithFree(0b00001)
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		if e, ok := renter.sees(owner.dev); !ok || e.Free != 0b00001 || e.Hash != first.Hash {
			t.Fatalf("free %b, %v", e.Free, ok)
		}
		// Another price is a new offer, at most every 30 s.
		o.Lots[0].Price++
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		o = o.WithFree(0b00100) // goes out at once even so
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(10 * time.Second)
		if e, _ := renter.sees(owner.dev); e.Hash != first.Hash || e.Free != 0b00100 {
			t.Fatalf("a second offer within 30 s, or free devices kept back: %b", e.Free)
		}
		after(25 * time.Second)
		second, _ := renter.sees(owner.dev)
		if second.Hash == first.Hash || second.Lots[0].Price != o.Lots[0].Price || second.Seq <= first.Seq {
			t.Fatal("no second offer after 30 s")
		}
		if _, ok := owner.pub.Own(first.Hash); !ok {
			t.Fatal("an Accept on its way names an offer that the owner forgot")
		}
		// It stands as long as it beats, past its time to live.
		for range 30 {
			after(5 * time.Minute)
			if _, ok := renter.sees(owner.dev); !ok {
				t.Fatal("a living offer is gone")
			}
		}
		for _, m := range []*machine{owner, renter} {
			m.stop()
			m.node.Close()
		}
	})
}

func TestWithdrawal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		o := offer(owner.dev)
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(3 * time.Second)
		if _, ok := renter.sees(owner.dev); !ok {
			t.Fatal("not seen")
		}
		owner.pub.Clear()
		after(time.Second)
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("a withdrawn offer stands")
		}
		if _, ok := owner.sees(owner.dev); ok {
			t.Fatal("the owner hands its withdrawn offer on")
		}
		if _, ok := owner.pub.Current(); ok {
			t.Fatal("the owner still publishes")
		}
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		if _, ok := renter.sees(owner.dev); !ok {
			t.Fatal("offered again, not seen")
		}
		owner.stop()
		after(time.Second)
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("the offer outlives a graceful exit")
		}
		owner.node.Close()
		renter.stop()
		renter.node.Close()
	})
}

func TestADeadProvidersOfferIsGoneIn45Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		if _, ok := renter.sees(owner.dev); !ok {
			t.Fatal("not seen")
		}
		owner.node.Close()
		after(46 * time.Second)
		if _, ok := renter.sees(owner.dev); ok {
			t.Fatal("still shown")
		}
		owner.stop()
		renter.stop()
		renter.node.Close()
	})
}

func TestPublishedToNobodyIsPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		if err := owner.pub.Set(offer(owner.dev)); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		if owner.pub.Told() {
			t.Fatal("told, and nobody was there")
		}
		if wait, err := owner.pub.step(t.Context()); err != nil || wait > knockEvery {
			t.Fatal("looks for members again only in", wait, err)
		}
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		net.Mesh()
		after(3 * time.Second)
		if _, ok := renter.sees(owner.dev); !ok || !owner.pub.Told() {
			t.Fatal("the first peer does not see the offer")
		}
		renter.stop()
		renter.node.Close()
		after(time.Minute)
		if owner.pub.Told() {
			t.Fatal("told, and everybody left")
		}
		owner.stop()
		owner.node.Close()
	})
}

// TestASetClockRenewsTheOffer: peers would drop an offer whose issue time is hours off until it is renewed.
func TestASetClockRenewsTheOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		owner := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		o := offer(owner.dev)
		if err := owner.pub.Set(o); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		cur, ok := owner.pub.Current()
		if !ok {
			t.Fatal("nothing is published")
		}
		now := time.Now()
		if wait := owner.pub.offerDue(&cur, o, now); wait < 20*time.Minute {
			t.Fatal("renewed early:", wait)
		}
		for _, by := range []time.Duration{3 * time.Hour, -3 * time.Hour} {
			set := cur
			set.IssuedAt += by.Milliseconds()
			if wait := owner.pub.offerDue(&set, o, now); wait > 0 {
				t.Fatal(by, "off, renewed only in", wait)
			}
		}
		owner.stop()
		owner.node.Close()
	})
}

func TestSequencesRiseOverRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		store, dev := &seqStore{}, p2ptest.Device(t)
		renter := newMachine(t, net, p2ptest.Device(t), nil)
		last := uint64(0)
		for range 3 {
			owner := newMachine(t, net, dev, store)
			net.Mesh()
			if err := owner.pub.Set(offer(dev)); err != nil {
				t.Fatal(err)
			}
			after(5 * time.Second)
			e, ok := renter.sees(dev)
			if !ok || e.Seq <= last {
				t.Fatal("after a restart:", e.Seq, ok)
			}
			last = e.Seq
			owner.node.Close() // killed: no tombstone
			owner.stop()
			after(10 * time.Second)
		}
		renter.stop()
		renter.node.Close()
	})
}

func TestSetRefusesWhatCannotBeOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		m := newMachine(t, net, p2ptest.Device(t), &seqStore{})
		bad := offer(m.dev)
		bad.Terms.Sandbox = "trust me"
		if err := m.pub.Set(bad); err == nil {
			t.Error("an invalid offer is published")
		}
		big := offer(m.dev)
		for i := range 3 {
			l := big.Lots[0]
			l.ID, l.Slots = uint8(10+i), nil
			for k := range market.MaxSlots {
				l.Slots = append(l.Slots, market.Slot{Device: markettest.Hash(fmt.Sprint(i, k))})
			}
			big.Lots = append(big.Lots, l)
		}
		if err := big.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := m.pub.Set(big); !errors.Is(err, wire.ErrTooLarge) {
			t.Error("an offer over 2 KiB is published", err)
		}
		if _, err := NewPublisher(m.board, p2ptest.Device(t), &seqStore{}); err == nil {
			t.Error("a publisher for another device")
		}
		m.stop()
		m.node.Close()
	})
}
