package p2ptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func topicName() string { return p2p.OffersTopic(NetworkName, "any", "any") }

func acceptAll(context.Context, identity.PeerID, []byte) p2p.Verdict { return p2p.Accept }

func join(t *testing.T, m Machine, v p2p.Validator) p2p.Topic {
	t.Helper()
	topic, err := m.Join(topicName(), 1024, v)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// until calls try every 100 ms until it says true.
func until(t *testing.T, what string, try func() bool) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !try() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not in %v", what, patience)
		case <-tick.C:
		}
	}
}

// wantMember waits until a topic knows peer.
func wantMember(t *testing.T, topic p2p.Topic, peer Machine) {
	t.Helper()
	until(t, "topic member "+peer.Self().Short(), func() bool { return slices.Contains(topic.Peers(), peer.Self()) })
}

// collect reads a topic into a list until the test ends.
func collect(t *testing.T, topic p2p.Topic) func() []string {
	t.Helper()
	var (
		mu   sync.Mutex
		list []string
		wg   sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		for {
			data, _, err := topic.Next(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			list = append(list, string(data))
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

func testTopic(t *testing.T, f Fabric) {
	a, b := two(t, f)
	ta := join(t, a, acceptAll)
	if err := ta.Publish(deadline(t), []byte("nobody listens")); err != nil {
		t.Errorf("publish with nobody there: %v", err)
	}
	if data, from, err := ta.Next(deadline(t)); err != nil || string(data) != "nobody listens" || from != a.Self() {
		t.Errorf("own message: %q from %s, %v", data, from.Short(), err)
	}
	tb := join(t, b, acceptAll)
	wantMember(t, ta, b)
	wantMember(t, tb, a)
	if err := ta.Publish(deadline(t), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if data, from, err := tb.Next(deadline(t)); err != nil || string(data) != "hello" || from != a.Self() {
		t.Errorf("a's message: %q from %s, %v", data, from.Short(), err)
	}
	if _, err := a.Join(topicName(), 1024, acceptAll); err == nil {
		t.Error("a topic was joined twice")
	}
	waiting := make(chan error, 1)
	go func() {
		_, _, err := tb.Next(context.Background())
		waiting <- err
	}()
	if err := tb.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, waiting, "Next to end with Leave"); err == nil {
		t.Error("Next on a topic that was left: no error")
	}
	if tb, err := b.Join(topicName(), 1024, acceptAll); err != nil {
		t.Errorf("join again after Leave: %v", err)
	} else if err := tb.Leave(); err != nil {
		t.Error(err)
	}
}

// testTopicVerdicts sends through b, which rejects and ignores some: c must never see those.
func testTopicVerdicts(t *testing.T, f Fabric) {
	a, b := two(t, f)
	c := f.Start(t, Device(t))
	connect(t, b, c)
	var mu sync.Mutex
	judged := map[string]int{} // by b
	judge := func(_ context.Context, from identity.PeerID, data []byte) p2p.Verdict {
		mu.Lock()
		defer mu.Unlock()
		judged[string(data)]++
		switch {
		case bytes.HasPrefix(data, []byte("reject")):
			return p2p.Reject
		case bytes.HasPrefix(data, []byte("ignore")):
			return p2p.Ignore
		case bytes.HasPrefix(data, []byte("panic")):
			panic("validator")
		}
		return p2p.Accept
	}
	ta, tb, tc := join(t, a, acceptAll), join(t, b, judge), join(t, c, acceptAll)
	wantMember(t, ta, b)
	wantMember(t, tb, a)
	wantMember(t, tb, c)
	atB, atC := collect(t, tb), collect(t, tc)
	n := 0
	until(t, "an accepted message to pass", func() bool {
		n++
		for _, word := range []string{"reject", "ignore", "panic", "accept"} {
			if err := ta.Publish(deadline(t), fmt.Appendf(nil, "%s %d", word, n)); err != nil {
				t.Fatal(err)
			}
		}
		return slices.ContainsFunc(atC(), func(s string) bool { return s != "accept 1" }) // by then the first of each kind had its time
	})
	for _, got := range append(atC(), atB()...) {
		if got[:6] != "accept" {
			t.Errorf("%q was delivered", got)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, word := range []string{"reject 1", "ignore 1", "panic 1", "accept 1"} {
		if judged[word] != 1 {
			t.Errorf("%q was judged %d times, want once", word, judged[word])
		}
	}
}

func testTopicOwn(t *testing.T, f Fabric) {
	a := f.Start(t, Device(t))
	refuse := func(_ context.Context, _ identity.PeerID, data []byte) p2p.Verdict {
		if string(data) == "mine" {
			return p2p.Reject
		}
		return p2p.Accept
	}
	if _, err := a.Join(topicName(), 0, refuse); err == nil {
		t.Error("a topic without a size limit was joined")
	}
	if _, err := a.Join(topicName(), 1<<30, refuse); err == nil {
		t.Error("a topic of 1 GiB messages was joined")
	}
	topic := join(t, a, refuse)
	if err := topic.Publish(deadline(t), []byte("mine")); err == nil {
		t.Error("a message that our own validator rejects was published")
	}
	if err := topic.Publish(deadline(t), make([]byte, 1025)); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("a message over the limit: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := topic.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Next with nothing there: %v", err)
	}
}
