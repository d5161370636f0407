package book

import (
	"bytes"
	"cmp"
	"container/heap"
	"math/bits"
	"slices"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/p2p/identity"
)

// MaxLimit is the most lots that one search gives.
const MaxLimit = 1000

// Search gives at most limit live lots that match q, in the order o; what o does not tell apart comes in the order of devices and
// lots, so that equal books give equal answers. A limit of 0 or over [MaxLimit] means MaxLimit. It takes time in proportion to the
// book, some tens of nanoseconds an offer.
func (b *Book) Search(q query.Query, o query.Order, limit int, now time.Time) []Found {
	if limit <= 0 || limit > MaxLimit {
		limit = MaxLimit
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	top := topRows{book: b, order: func(i, k int) int { return o.Compare(&b.facts[i], &b.facts[k]) }}
	for i := range b.facts {
		if !q.Match(&b.facts[i]) || !b.rows[i].alive(now) {
			continue
		}
		top.add(i, limit)
	}
	slices.SortFunc(top.rows, top.compare)
	found := make([]Found, len(top.rows))
	for n, i := range top.rows {
		found[n] = b.found(i)
	}
	return found
}

// Count is how many live lots match q.
func (b *Book) Count(q query.Query, now time.Time) int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	n := 0
	for i := range b.facts {
		if q.Match(&b.facts[i]) && b.rows[i].alive(now) {
			n++
		}
	}
	return n
}

// Near is a lot that a query refuses.
type Near struct {
	Found
	Misses []query.Miss // in the order of the query
}

// Nearest gives at most limit live lots that q refuses: those that the fewest conditions refuse first, and of them those that are least off
// in all. The census counts every live lot. A limit of 0 or over [MaxLimit] means MaxLimit.
func (b *Book) Nearest(q query.Query, limit int, now time.Time) ([]Near, *query.Census) {
	if limit <= 0 || limit > MaxLimit {
		limit = MaxLimit
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	census := q.NewCensus()
	type distance struct {
		refused int
		off     uint64
	}
	far := make([]distance, len(b.facts))
	top := topRows{book: b, order: func(i, k int) int {
		return cmp.Or(cmp.Compare(far[i].refused, far[k].refused), cmp.Compare(far[i].off, far[k].off))
	}}
	for i := range b.facts {
		if !b.rows[i].alive(now) {
			continue
		}
		if far[i].refused, far[i].off = census.Add(&b.facts[i]); far[i].refused > 0 {
			top.add(i, limit)
		}
	}
	slices.SortFunc(top.rows, top.compare)
	near := make([]Near, len(top.rows))
	for n, i := range top.rows {
		near[n] = Near{Found: b.found(i), Misses: q.Explain(&b.facts[i])}
	}
	return near, census
}

// found is a row as a search gives it.
func (b *Book) found(i int) Found {
	r := &b.rows[i]
	return Found{Entry: r.rec.Entry, Lot: r.rec.Current().Lots[r.lot], Facts: b.facts[i]}
}

// topRows is a heap of row indexes with the worst row on top.
type topRows struct {
	book  *Book
	order func(i, k int) int
	rows  []int
}

// add keeps row i if it is among the best.
func (t *topRows) add(i, limit int) {
	if len(t.rows) < limit {
		heap.Push(t, i)
	} else if t.compare(i, t.rows[0]) < 0 {
		t.rows[0] = i
		heap.Fix(t, 0)
	}
}

func (t *topRows) compare(i, k int) int {
	if c := t.order(i, k); c != 0 {
		return c
	}
	x, y := &t.book.rows[i], &t.book.rows[k]
	if c := bytes.Compare(x.rec.Device[:], y.rec.Device[:]); c != 0 {
		return c
	}
	return x.lot - y.lot
}

func (t *topRows) Len() int           { return len(t.rows) }
func (t *topRows) Less(i, j int) bool { return t.compare(t.rows[j], t.rows[i]) < 0 }
func (t *topRows) Swap(i, j int)      { t.rows[i], t.rows[j] = t.rows[j], t.rows[i] }
func (t *topRows) Push(x any)         { t.rows = append(t.rows, x.(int)) }
func (t *topRows) Pop() any {
	last := t.rows[len(t.rows)-1]
	t.rows = t.rows[:len(t.rows)-1]
	return last
}

func free(freeBits uint64, first, n int) int {
	return bits.OnesCount64(freeBits >> first & (1<<n - 1))
}

// Have is one line of a digest: which offer of which device a peer has.
type Have struct {
	ID  [16]byte `cbor:"1,keyasint"` // start of the device's key
	Seq uint64   `cbor:"2,keyasint"` // of its offer
}

// DeviceID is the start of a device's key, as digests name it.
func DeviceID(p identity.PeerID) [16]byte { return [16]byte(p[:16]) }

// Digest lists the live offers of devices after the given id, in order, at most limit.
func (b *Book) Digest(after [16]byte, limit int, now time.Time) []Have {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []Have
	for _, r := range b.ring {
		if id := DeviceID(r.Device); r.alive(now) && bytes.Compare(id[:], after[:]) > 0 {
			out = append(out, Have{ID: id, Seq: r.Seq})
		}
	}
	slices.SortFunc(out, func(x, y Have) int { return bytes.Compare(x.ID[:], y.ID[:]) })
	return out[:min(len(out), limit)]
}

// Page gives the live offers of devices after the given id (and up to until, unless that is zero) that a peer with those haves
// lacks, in order, at most limit; next is where to go on, and more is false when nothing is left.
func (b *Book) Page(after, until [16]byte, haves []Have, limit int, now time.Time) (page []Entry, next [16]byte, more bool) {
	has := make(map[[16]byte]uint64, len(haves))
	for _, h := range haves {
		has[h.ID] = max(has[h.ID], h.Seq)
	}
	bound := until // nothing after it can be on the page
	sorted := func(list []*record) []*record {
		slices.SortFunc(list, func(x, y *record) int { return bytes.Compare(x.Device[:], y.Device[:]) })
		if len(list) > limit {
			list = list[:limit+1] // one more, to know whether there is more
			bound = DeviceID(list[limit].Device)
		}
		return list
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	var lacks []*record
	for _, r := range b.ring {
		id := DeviceID(r.Device)
		if bytes.Compare(id[:], after[:]) <= 0 || (bound != [16]byte{} && bytes.Compare(id[:], bound[:]) > 0) {
			continue
		}
		if has[id] < r.Seq && r.alive(now) {
			lacks = append(lacks, r)
		}
		if len(lacks) > 4*(limit+1) {
			lacks = sorted(lacks) // so that a page of a large book costs no sort of all of it
		}
	}
	if lacks = sorted(lacks); len(lacks) > limit {
		lacks, more = lacks[:limit], true
	}
	for _, r := range lacks {
		page = append(page, r.Entry)
		next = DeviceID(r.Device)
	}
	return page, next, more
}

// FoundOf is a lot of an entry as a search gives it; the lot's slots are as they are now.
func FoundOf(e Entry, lot market.Lot) Found {
	return Found{Entry: e, Lot: lot, Facts: query.FactsOf(&e.Offer, &lot)}
}
