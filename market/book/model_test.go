package book_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p/identity"
)

// TestModel plays random histories against a plain model of the rules: what is live, and how many devices are free.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, err := book.New(book.Config{MaxOffers: 1000})
		if err != nil {
			t.Fatal(err)
		}
		type state struct {
			seq, beat, free uint64
			heard           time.Time
		}
		model := map[identity.PeerID]state{}
		gone := map[identity.PeerID]uint64{}
		now, seq := start, uint64(0)
		id := rapid.IntRange(0, 7)
		t.Repeat(map[string]func(*rapid.T){
			"offer": func(t *rapid.T) {
				seq++
				o := unsigned(id.Draw(t, "id"), seq, now)
				b.Put(o, now)
				model[o.Device] = state{seq: seq, beat: model[o.Device].beat, free: o.FreeBits(), heard: now}
			},
			"replay": func(t *rapid.T) {
				if seq == 0 {
					t.Skip()
				}
				o := unsigned(id.Draw(t, "id"), rapid.Uint64Range(1, seq).Draw(t, "seq"), now)
				if s, ok := model[o.Device]; (ok && o.Seq <= s.seq) || o.Seq <= gone[o.Device] {
					if got := b.Put(o, now); got != book.Stale {
						t.Fatalf("a replay is %d", got)
					}
				}
			},
			"beat": func(t *rapid.T) {
				o := unsigned(id.Draw(t, "id"), 0, now)
				s, ok := model[o.Device]
				if !ok {
					t.Skip()
				}
				seq++
				cur, live := b.Get(o.Device, now)
				if !live {
					t.Skip()
				}
				free := rapid.Uint64Range(0, 31).Draw(t, "free")
				if got := b.Heartbeat(beat(cur.SealedOffer, seq, free), nil, now); got != book.Updated {
					t.Fatal(got)
				}
				s.beat, s.free, s.heard = seq, free, now
				model[o.Device] = s
			},
			"withdraw": func(t *rapid.T) {
				seq++
				o := unsigned(id.Draw(t, "id"), 0, now)
				b.Tombstone(tomb(o, seq), now)
				delete(model, o.Device)
				gone[o.Device] = seq
			},
			"wait":   func(t *rapid.T) { now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "s")) * time.Second) },
			"expire": func(t *rapid.T) { b.Expire(now) },
			"": func(t *rapid.T) {
				want := 0
				for device, s := range model {
					if now.Sub(s.heard) > 45*time.Second {
						if _, ok := b.Get(device, now); ok {
							t.Fatal("a dead offer is shown")
						}
						continue
					}
					e, ok := b.Get(device, now)
					if !ok || e.Seq != s.seq || e.Free != s.free {
						t.Fatalf("have %v seq %d free %b, want seq %d free %b", ok, e.Seq, e.Free, s.seq, s.free)
					}
					if s.free&0b1111 != 0 {
						want++
					}
					if s.free&0b10000 != 0 {
						want++
					}
				}
				if found := searchRapid(t, b, now); len(found) != want {
					t.Fatalf("%d lots found, want %d", len(found), want)
				}
			},
		})
	})
}
