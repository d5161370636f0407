package announce

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

func encode(t testing.TB, m Message) []byte {
	t.Helper()
	b, err := wire.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newBoard makes a board that judges messages; it does not run.
func newBoard(t testing.TB) *Board {
	t.Helper()
	k, err := book.New(book.Config{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(p2ptest.NewNet(t).Join(p2ptest.Device(t)), k, Config{Network: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func forwarder(i int) identity.PeerID { return identity.PeerID{byte(i), byte(i >> 8), 1} }

func TestVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		dev, other := p2ptest.Device(t), p2ptest.Device(t)
		now := time.Now()
		message := func(d *identity.Device, seq uint64, at time.Time) Message {
			raw := markettest.Seal(t, d, market.DomainOffer, markettest.Offer(d, seq, at))
			return Message{Kind: KindOffer, Envelope: raw, Delegation: d.Delegation()}
		}
		tenth := message(dev, 10, now)
		sealed, err := market.OpenSealedOffer(tenth.Envelope, tenth.Delegation)
		if err != nil {
			t.Fatal(err)
		}
		beat := func(seq uint64, at time.Time) Message {
			_, raw := markettest.Beat(t, dev, sealed, seq, 1, at)
			return Message{Kind: KindHeartbeat, Envelope: raw}
		}
		tomb := func(seq uint64) Message {
			m := market.Tombstone{Header: dev.Header(market.Version), Seq: seq, IssuedAt: now.UnixMilli()}
			return Message{Kind: KindTombstone, Envelope: markettest.Seal(t, dev, market.DomainTombstone, m)}
		}
		flip := func(m Message) Message {
			m.Envelope = slices.Clone(m.Envelope)
			m.Envelope[len(m.Envelope)-1] ^= 1 // the signature's last byte
			return m
		}
		invalid := markettest.Offer(dev, 30, now)
		invalid.TTL = 1
		late := now.Add(-market.Skew - time.Second)
		for _, tt := range []struct {
			name string
			data []byte
			want p2p.Verdict
		}{
			{"oversized", make([]byte, MaxMessage+1), p2p.Reject},
			{"garbage", []byte("garbage"), p2p.Reject},
			{"empty", nil, p2p.Reject},
			{"unknown kind", encode(t, Message{Kind: 9, Envelope: []byte("x")}), p2p.Reject},
			{"kind and envelope differ", encode(t, Message{Kind: KindHeartbeat, Envelope: tomb(1).Envelope}), p2p.Reject},
			{"an offer", encode(t, tenth), p2p.Accept},
			{"the same again", encode(t, tenth), p2p.Ignore},
			{"an older one", encode(t, message(dev, 9, now)), p2p.Ignore},
			{"an older one, badly signed: dropped before the signature", encode(t, flip(message(dev, 9, now))), p2p.Ignore},
			{"badly signed", encode(t, flip(message(dev, 11, now))), p2p.Reject},
			{"another's delegation", encode(t, Message{Kind: KindOffer, Envelope: message(dev, 11, now).Envelope, Delegation: other.Delegation()}), p2p.Reject},
			{"no delegation", encode(t, Message{Kind: KindOffer, Envelope: message(dev, 11, now).Envelope}), p2p.Reject},
			{"issued 10 minutes ago", encode(t, message(dev, 11, late)), p2p.Ignore},
			{"issued in 3 hours", encode(t, message(dev, 11, now.Add(3*time.Hour))), p2p.Ignore},
			{"a figure out of limits", encode(t, Message{
				Kind: KindOffer, Envelope: markettest.Seal(t, dev, market.DomainOffer, invalid), Delegation: dev.Delegation(),
			}), p2p.Reject},
			{"a heartbeat", encode(t, beat(11, now)), p2p.Accept},
			{"a replayed heartbeat", encode(t, beat(11, now)), p2p.Ignore},
			{"a heartbeat of long ago", encode(t, beat(12, late)), p2p.Ignore},
			{"a badly signed heartbeat", encode(t, flip(beat(12, now))), p2p.Reject},
			{"a heartbeat with a delegation", encode(t, Message{Kind: KindHeartbeat, Envelope: beat(12, now).Envelope, Delegation: dev.Delegation()}), p2p.Reject},
			{"a badly signed tombstone", encode(t, flip(tomb(20))), p2p.Reject},
			{"a tombstone", encode(t, tomb(20)), p2p.Accept},
			{"an offer from before it", encode(t, message(dev, 15, now)), p2p.Ignore},
		} {
			b.rates = freshRates(t) // so that no rate limit decides
			if got := b.validate(t.Context(), forwarder(1), tt.data); got != tt.want {
				t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
			}
		}
	})
}

func freshRates(t testing.TB) rates {
	t.Helper()
	r, err := newRates()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		dev := p2ptest.Device(t)
		o := markettest.Sealed(t, dev, markettest.Offer(dev, 1, time.Now()))
		b.book.Put(o, time.Now())
		seq := uint64(1)
		send := func(from identity.PeerID) p2p.Verdict {
			seq++
			_, raw := markettest.Beat(t, dev, o, seq, 0, time.Now())
			return b.validate(t.Context(), from, encode(t, Message{Kind: KindHeartbeat, Envelope: raw}))
		}
		// One signer, over many forwarders: five at once, then one in ten seconds.
		for i := range signerBurst {
			if got := send(forwarder(i)); got != p2p.Accept {
				t.Fatal(i, got)
			}
		}
		if got := send(forwarder(99)); got != p2p.Ignore || b.Stats().Limited != 1 {
			t.Fatal("a sixth heartbeat at once:", got)
		}
		after(beatEvery)
		if send(forwarder(99)) != p2p.Accept || send(forwarder(99)) != p2p.Ignore {
			t.Fatal("one in ten seconds")
		}
		// A forged id does not empty its victim's bucket.
		after(time.Minute)
		o2 := markettest.Sealed(t, dev, markettest.Offer(dev, 1000, time.Now()))
		b.book.Put(o2, time.Now())
		o, seq = o2, 1000
		for i := range 50 {
			_, raw := markettest.Beat(t, dev, o, 5000, 0, time.Now())
			raw[len(raw)-1] ^= 1
			if got := b.validate(t.Context(), forwarder(i), encode(t, Message{Kind: KindHeartbeat, Envelope: raw})); got != p2p.Reject {
				t.Fatal(got)
			}
		}
		if got := send(forwarder(1)); got != p2p.Accept {
			t.Fatal("the victim is silenced:", got)
		}
		// A forwarder that floods is ignored before anything is decoded.
		flood := forwarder(777)
		rejected := 0
		for range 2 * forwardBurst {
			if b.validate(t.Context(), flood, []byte("garbage")) == p2p.Reject {
				rejected++
			}
		}
		if rejected != forwardBurst {
			t.Fatal(rejected, "messages of a flood were looked at")
		}
	})
}

func TestWrongClocksAreCountedBySigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		for i := range 5 {
			dev := p2ptest.Device(t)
			raw := markettest.Seal(t, dev, market.DomainOffer, markettest.Offer(dev, 1, time.Now().Add(-3*time.Hour)))
			m := Message{Kind: KindOffer, Envelope: raw, Delegation: dev.Delegation()}
			for range 3 { // a repeat counts once
				if got := b.validate(t.Context(), forwarder(i), encode(t, m)); got != p2p.Ignore {
					t.Fatal(got)
				}
			}
			forged := markettest.Seal(t, dev, market.DomainOffer, markettest.Offer(dev, 1, time.Now().Add(9*time.Hour)))
			forged[len(forged)-1] ^= 1
			b.validate(t.Context(), forwarder(i), encode(t, Message{Kind: KindOffer, Envelope: forged, Delegation: dev.Delegation()}))
		}
		if s := b.Skew(); s.Peers != 5 || s.String() != "clock 3 h ahead of 5 peers" || !s.Wrong() {
			t.Fatal(s, s.Peers)
		}
		if b.book.Len() != 0 || b.Stats().Skewed != 20 {
			t.Fatal("junk was kept", b.Stats())
		}
	})
}

func TestSkewAsText(t *testing.T) {
	for _, tt := range []struct {
		s    Skew
		want string
	}{
		{Skew{}, ""},
		{Skew{Offset: time.Hour}, ""}, // nobody told
		{Skew{market.Skew, 3}, ""},
		{Skew{market.Skew + time.Minute, 3}, "clock 11 min ahead of 3 peers"},
		{Skew{-90 * time.Minute, 1}, "clock 90 min behind 1 peer"},
		{Skew{-3 * time.Hour, 2}, "clock 3 h behind 2 peers"},
		{Skew{72 * time.Hour, 2}, "clock 3 days ahead of 2 peers"},
	} {
		if got := tt.s.String(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.s.Offset, got, tt.want)
		}
	}
}

func TestInterval(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 15 * time.Second, 60: 15 * time.Second, 400: 100 * time.Second, 1 << 20: 15 * time.Minute} {
		if got := Interval(n); got != want {
			t.Errorf("%d members: %v, want %v", n, got, want)
		}
	}
	for range 1000 {
		if d := jitter(100 * time.Second); d < 80*time.Second || d > 120*time.Second {
			t.Fatal(d)
		}
	}
}

// FuzzValidate: no message panics the validator, and none that was not signed is accepted or changes the book.
func FuzzValidate(f *testing.F) {
	b := newBoard(f)
	dev := p2ptest.Device(f)
	at := time.Now()
	o := markettest.Sealed(f, dev, markettest.Offer(dev, 1, at))
	_, beat := markettest.Beat(f, dev, o, 2, 3, at)
	f.Add(encode(f, Message{Kind: KindOffer, Envelope: o.Raw, Delegation: o.DelegationRaw})[:100])
	f.Add(encode(f, Message{Kind: KindHeartbeat, Envelope: beat})[:100])
	f.Add([]byte{0xa2, 1, 3, 2, 0x41, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		b.rates = freshRates(t)
		if b.validate(t.Context(), forwarder(1), data) == p2p.Accept || b.book.Len() != 0 {
			t.Fatalf("accepted %x", data)
		}
	})
}
