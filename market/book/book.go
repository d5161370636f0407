// Package book holds the live offers: one for each device, the newest by sequence, gone when its heartbeats stop. It judges
// freshness by a time it is given, finds by query, and refuses to know how offers arrive or whether their signatures were checked:
// whoever puts one in has done that.
package book

import (
	"errors"
	"sync"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of a book.
const (
	DefaultMaxOffers = 100_000         // about 400 MB at 4 KB each in the worst case
	MaxOffersLimit   = 1_000_000       // one shard never gets near it
	graveTime        = 2 * market.Skew // older adverts are junk by their issue time, so no replay needs longer memory
	maxGraves        = 1 << 16         // remembered withdrawals
	late             = 1500            // thousandths of its heartbeat: an offer silent for longer may be evicted from a full book
	evictScan        = 64              // offers looked at to find a late one
)

// Result is what became of an advert.
type Result uint8

// The results.
const (
	Added      Result = iota + 1 // a device that the book did not have
	Updated                      // a newer offer, or a newer heartbeat, of a device
	Stale                        // not newer than what the book has, or withdrawn, or lapsed
	Unknown                      // a heartbeat for an offer that the book does not have: fetch it
	Full                         // the book is full of live offers
	WrongOwner                   // a heartbeat by another account than the offer's
)

// Config sets a book up. The zero Config takes the defaults.
type Config struct {
	MaxOffers int // 0: [DefaultMaxOffers]
}

// Validate checks the limits.
func (c Config) Validate() error {
	if c.MaxOffers < 0 || c.MaxOffers > MaxOffersLimit {
		return errors.New("book: max offers must be between 0 (the default) and 1,000,000")
	}
	return nil
}

// Entry is one live offer. It is a snapshot: the book does not change it, and the caller must not either. Raw bytes are shared.
type Entry struct {
	market.SealedOffer
	Free      uint64    // what the newest heartbeat says, see [market.Offer.FreeBits]
	Heard     time.Time // last sign of life, by the local clock
	Beat      []byte    // the newest heartbeat's envelope; nil: none since the offer
	BeatSeq   uint64
	FirstSeen time.Time // of the device
}

// Current is the offer with its devices free as the newest heartbeat says.
func (e Entry) Current() market.Offer { return e.WithFree(e.Free) }

// Found is one lot that matches a search.
type Found struct {
	Entry Entry
	Lot   market.Lot // with its slots free as the newest heartbeat says
	Facts query.Facts
}

// Book is the set of live offers. Safe for concurrent use.
type Book struct {
	max int

	mu     sync.RWMutex
	byDev  map[identity.PeerID]*record // guarded by mu
	byHash map[[16]byte]*record        // guarded by mu
	facts  []query.Facts               // guarded by mu; one for each lot, in no order: what a search scans
	rows   []row                       // guarded by mu; of the same lots
	graves graves                      // guarded by mu
	ring   []*record                   // guarded by mu; the offers in no order, for paging of sweeps and eviction
	hand   int                         // guarded by mu; where the next eviction starts looking
}

// New makes an empty book.
func New(c Config) (*Book, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MaxOffers == 0 {
		c.MaxOffers = DefaultMaxOffers
	}
	return &Book{
		max: c.MaxOffers, byDev: map[identity.PeerID]*record{}, byHash: map[[16]byte]*record{},
		graves: graves{},
	}, nil
}

// record is a device's place in the book.
type record struct {
	Entry
	ring int   // its index in Book.ring
	rows []int // its lots' indexes in Book.rows
}

// row is what a search needs of a lot that matches, kept apart from the facts, so that a scan reads little memory.
type row struct {
	rec    *record
	silent time.Time // dead after it, unless heard
	lapses time.Time // dead after it, heard or not; wall clock
	lot    int       // index in the offer
	first  int       // index of its first device among the offer's devices
	n      int       // devices
}

func (w *row) alive(now time.Time) bool { return !now.After(w.silent) && !now.After(w.lapses) }

// alive reports whether the offer counts as live at now.
func (r *record) alive(now time.Time) bool {
	return now.Sub(r.Heard) <= r.Silence() && !r.Lapsed(now)
}

// Put takes a checked offer that was heard at now. Whether it is fresh enough to prove life is for the caller, since a snapshot's
// proof may be a heartbeat beside it.
func (b *Book) Put(o market.SealedOffer, now time.Time) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.put(o, 0, now)
}

// PutBeating takes a checked offer together with a checked heartbeat of it, both heard at now; raw is the heartbeat's envelope. It
// brings back an offer that expired here, which the offer alone cannot: a replay of it proves no life.
func (b *Book) PutBeating(o market.SealedOffer, h market.Heartbeat, raw []byte, now time.Time) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	put := b.put(o, h.Seq, now)
	if beat := b.heartbeat(h, raw, now); put == Stale {
		return beat
	}
	return put
}

// put takes an offer; beat is the sequence of a heartbeat that proves its life, or 0.
func (b *Book) put(o market.SealedOffer, beat uint64, now time.Time) Result {
	if o.Lapsed(now) || b.graves.buries(o, beat, now) {
		return Stale
	}
	old := b.byDev[o.Device]
	if old != nil && o.Seq <= old.Seq {
		return Stale
	}
	e := Entry{SealedOffer: o, Free: o.FreeBits(), Heard: now, FirstSeen: now}
	result := Added
	switch {
	case old != nil:
		e.FirstSeen, e.BeatSeq = old.FirstSeen, old.BeatSeq
		b.drop(old)
		result = Updated
	case len(b.ring) >= b.max && !b.evict(now):
		return Full
	}
	b.add(&record{Entry: e})
	return result
}

// Heartbeat takes a checked heartbeat that was heard at now; raw is its envelope.
func (b *Book) Heartbeat(h market.Heartbeat, raw []byte, now time.Time) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.heartbeat(h, raw, now)
}

func (b *Book) heartbeat(h market.Heartbeat, raw []byte, now time.Time) Result {
	r := b.byDev[h.Device]
	switch {
	case b.graves.silences(h.Device, h.Seq, now):
		return Stale
	case r == nil:
		return Unknown
	case h.Account != r.Account:
		return WrongOwner
	case h.Seq <= r.BeatSeq:
		return Stale
	case h.Offer != r.Prefix() && h.Seq < r.Seq:
		return Stale // of the offer before this one
	case h.Offer != r.Prefix():
		return Unknown
	case r.Lapsed(now):
		return Stale
	}
	r.Entry.Heard, r.Entry.Beat, r.Entry.BeatSeq, r.Entry.Free = now, raw, h.Seq, h.Free
	b.refresh(r)
	return Updated
}

// Tombstone withdraws a device's offers up to its sequence, and remembers that for as long as a replay could pass as fresh.
func (b *Book) Tombstone(t market.Tombstone, now time.Time) Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.graves.withdrew(t.Device, t.Seq, now) {
		return Stale
	}
	r := b.byDev[t.Device]
	switch {
	case r != nil && r.Account != t.Account:
		return WrongOwner
	case r != nil && r.Seq > t.Seq:
		return Stale
	case r != nil:
		b.drop(r)
	}
	b.graves.dig(t.Device, grave{withdrawn: t.Seq, offer: t.Seq, beat: t.Seq, dug: now}, r != nil)
	return Updated
}

// Remove drops a device's offer: for one whose provider says that it offers nothing now. A new heartbeat brings it back.
func (b *Book) Remove(device identity.PeerID, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.byDev[device]; r != nil {
		b.bury(r, now)
	}
}

// Signer is who signed a live offer, and by which delegation.
type Signer struct {
	identity.Header
	Delegation []byte // sealed; shared
}

// Signers lists who signed the offers that the book holds, in no order.
func (b *Book) Signers() []Signer {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := make([]Signer, len(b.ring))
	for i, r := range b.ring {
		out[i] = Signer{r.Header, r.DelegationRaw}
	}
	return out
}

// Expire drops what is dead at now and says how many that were. Searches leave the dead out anyway; this frees their memory.
func (b *Book) Expire(now time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.graves.expire(now)
	n := 0
	for i := 0; i < len(b.ring); {
		if b.ring[i].alive(now) {
			i++
			continue
		}
		b.bury(b.ring[i], now) // puts another one at i
		n++
	}
	return n
}

// Len is how many offers the book holds, the dead that were not expired yet included.
func (b *Book) Len() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.ring)
}

// Get is a device's live offer.
func (b *Book) Get(device identity.PeerID, now time.Time) (Entry, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return live(b.byDev[device], now)
}

// ByHash is the live offer of that hash.
func (b *Book) ByHash(h wire.Hash, now time.Time) (Entry, bool) {
	e, ok := b.ByPrefix([16]byte(h[:16]), now)
	return e, ok && e.Hash == h
}

// ByPrefix is the live offer whose hash starts so, as heartbeats name it.
func (b *Book) ByPrefix(prefix [16]byte, now time.Time) (Entry, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return live(b.byHash[prefix], now)
}

func live(r *record, now time.Time) (Entry, bool) {
	if r == nil || !r.alive(now) {
		return Entry{}, false
	}
	return r.Entry, true
}

// Seen is the newest sequences that the book knows of a device: of its offer and its heartbeats, and of its withdrawal.
func (b *Book) Seen(device identity.PeerID, now time.Time) (offer, beat uint64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if r := b.byDev[device]; r != nil {
		offer, beat = r.Seq, r.BeatSeq
	}
	if g, ok := b.graves.at(device, now); ok {
		offer, beat = max(offer, g.offer), max(beat, g.beat)
	}
	return offer, beat
}

// evict makes room in a full book: it drops an offer that is dead, or silent for longer than one and a half heartbeats. A flood of
// new offers therefore never displaces one that is heard; when none is late, the newcomer is refused.
func (b *Book) evict(now time.Time) bool {
	for range min(evictScan, len(b.ring)) {
		b.hand = (b.hand + 1) % len(b.ring)
		r := b.ring[b.hand]
		patience := time.Duration(r.Offer.Heartbeat) * time.Second * late / 1000
		if !r.alive(now) || now.Sub(r.Heard) > patience {
			b.bury(r, now)
			return true
		}
	}
	return false
}

// bury drops r and remembers its sequences, so that a replay does not bring it back.
func (b *Book) bury(r *record, now time.Time) {
	b.drop(r)
	b.graves.dig(r.Device, grave{offer: r.Seq, beat: max(r.BeatSeq, r.Seq), dug: now}, true)
}

func (b *Book) add(r *record) {
	r.ring = len(b.ring)
	b.ring = append(b.ring, r)
	b.byDev[r.Device] = r
	b.byHash[r.Prefix()] = r
	first := 0
	for i := range r.Lots {
		r.rows = append(r.rows, len(b.rows))
		b.facts = append(b.facts, query.FactsOf(&r.Offer, &r.Lots[i]))
		b.rows = append(b.rows, row{
			rec: r, lot: i, first: first, n: len(r.Lots[i].Slots),
			silent: r.Heard.Add(r.Silence()), lapses: r.Issued().Add(time.Duration(r.TTL)*time.Second + market.Skew),
		})
		first += len(r.Lots[i].Slots)
	}
}

// drop takes r out. The last of ring and rows move into its places.
func (b *Book) drop(r *record) {
	last := len(b.ring) - 1
	b.ring[r.ring] = b.ring[last]
	b.ring[r.ring].ring = r.ring
	b.ring[last] = nil
	b.ring = b.ring[:last]
	delete(b.byDev, r.Device)
	if b.byHash[r.Prefix()] == r {
		delete(b.byHash, r.Prefix())
	}
	for n := range r.rows {
		at, end := r.rows[n], len(b.rows)-1
		b.rows[at], b.facts[at] = b.rows[end], b.facts[end]
		b.rows[at].rec.rows[b.rows[at].lot] = at
		b.rows[end], b.facts[end] = row{}, query.Facts{}
		b.rows, b.facts = b.rows[:end], b.facts[:end]
	}
}

// refresh brings the lots' facts to the record's free bits.
func (b *Book) refresh(r *record) {
	for _, at := range r.rows {
		w := &b.rows[at]
		b.facts[at].SetFree(free(r.Free, w.first, w.n))
		w.silent = r.Heard.Add(r.Silence())
	}
}
