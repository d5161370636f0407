package libp2p

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	pb "github.com/libp2p/go-libp2p-pubsub/pb"
	"google.golang.org/protobuf/proto"
)

func newInbound() *inbound {
	return &inbound{filter: "/gpufair/t/", said: map[string]*pb.RPC_SubOpts{}}
}

func says(t *testing.T, subscribe bool, topics ...string) []byte {
	t.Helper()
	var rpc pb.RPC
	for _, topic := range topics {
		rpc.Subscriptions = append(rpc.Subscriptions, &pb.RPC_SubOpts{Subscribe: &subscribe, Topicid: &topic})
	}
	raw, err := proto.Marshal(&rpc)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// repeats are the topics in what an inbound stream would say again.
func repeats(t *testing.T, in *inbound) []string {
	t.Helper()
	frame := in.repeat()
	size, n := binary.Uvarint(frame)
	if frame != nil && int(size) != len(frame)-n {
		t.Fatalf("a frame of %d bytes claims %d", len(frame)-n, size)
	}
	var rpc pb.RPC
	if err := proto.Unmarshal(frame[n:], &rpc); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range rpc.GetSubscriptions() {
		if !s.GetSubscribe() {
			t.Errorf("%s is repeated as left", s.GetTopicid())
		}
		out = append(out, s.GetTopicid())
	}
	slices.Sort(out)
	return out
}

func TestOnlyWhatAPeerIsSubscribedToIsRepeated(t *testing.T) {
	in := newInbound()
	if in.repeat() != nil {
		t.Error("a peer that has said nothing is repeated")
	}
	in.note(framed(says(t, true, "/gpufair/t/a", "/gpufair/t/b", "/gpufair/other/c")))
	in.note(framed(says(t, false, "/gpufair/t/a")))
	if got := repeats(t, in); !slices.Equal(got, []string{"/gpufair/t/b"}) {
		t.Errorf("repeated: %v", got)
	}
	for i := range 2 * maxTopics {
		in.note(framed(says(t, true, fmt.Sprint("/gpufair/t/", i))))
	}
	if got := len(repeats(t, in)); got != maxTopics {
		t.Errorf("%d topics of a stranger are remembered, want %d", got, maxTopics)
	}
}

// FuzzNote reads frames of strangers; what is remembered of them is bounded and can be said again.
func FuzzNote(f *testing.F) {
	f.Add([]byte{}, []byte("\xff"))
	yes, topic := true, "/gpufair/t/offers"
	raw, err := proto.Marshal(&pb.RPC{Subscriptions: []*pb.RPC_SubOpts{{Subscribe: &yes, Topicid: &topic}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw, bytes.Repeat(raw, 50))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		in := newInbound()
		in.note(framed(a))
		in.note(framed(b))
		again := newInbound()
		if frame := in.repeat(); frame != nil {
			again.note(frame)
		}
		if len(in.said) > maxTopics || !slices.Equal(slices.Sorted(maps.Keys(in.said)), slices.Sorted(maps.Keys(again.said))) {
			t.Errorf("remembered %v, said again %v", in.said, again.said)
		}
	})
}
