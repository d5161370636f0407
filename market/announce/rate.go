package announce

import (
	"math/rand/v2"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/p2p/identity"
)

// Rates of adverts (spec: p2p, section 5, Anti-spam).
const (
	forwardRate  = 20 // messages a second of one forwarding peer: five times what a calm shard brings
	forwardBurst = 200
	beatEvery    = 10 * time.Second
	offerEvery   = 30 * time.Second
	signerBurst  = 5
	pageRate     = 50 // pages a second that one peer gets
	pageBurst    = 200

	maxForwarders = 1024    // about the connections of a machine
	maxSigners    = 1 << 14 // the busiest; an older one only gets a full bucket again
)

type signerRates struct{ beats, offers *rate.Limiter }

// rates holds the buckets. Safe for concurrent use.
type rates struct {
	mu       *sync.Mutex // for making a bucket once
	forward  *lru.Cache[identity.PeerID, *rate.Limiter]
	pages    *lru.Cache[identity.PeerID, *rate.Limiter]
	bySigner *lru.Cache[identity.PeerID, signerRates]
}

func newRates() (rates, error) {
	forward, err := lru.New[identity.PeerID, *rate.Limiter](maxForwarders)
	if err != nil {
		return rates{}, err
	}
	pages, err := lru.New[identity.PeerID, *rate.Limiter](maxForwarders)
	if err != nil {
		return rates{}, err
	}
	signers, err := lru.New[identity.PeerID, signerRates](maxSigners)
	if err != nil {
		return rates{}, err
	}
	return rates{mu: &sync.Mutex{}, forward: forward, pages: pages, bySigner: signers}, nil
}

func bucket[V any](mu *sync.Mutex, c *lru.Cache[identity.PeerID, V], p identity.PeerID, fill func() V) V {
	mu.Lock()
	defer mu.Unlock()
	v, ok := c.Get(p)
	if !ok {
		v = fill()
		c.Add(p, v)
	}
	return v
}

func (r rates) forwarder(p identity.PeerID, now time.Time) bool {
	return bucket(r.mu, r.forward, p, func() *rate.Limiter { return rate.NewLimiter(forwardRate, forwardBurst) }).AllowN(now, 1)
}

func (r rates) page(p identity.PeerID, now time.Time) bool {
	return bucket(r.mu, r.pages, p, func() *rate.Limiter { return rate.NewLimiter(pageRate, pageBurst) }).AllowN(now, 1)
}

func (r rates) signer(p identity.PeerID, kind Kind, now time.Time) bool {
	s := bucket(r.mu, r.bySigner, p, func() signerRates {
		return signerRates{
			beats: rate.NewLimiter(rate.Every(beatEvery), signerBurst), offers: rate.NewLimiter(rate.Every(offerEvery), signerBurst),
		}
	})
	if kind == KindOffer {
		return s.offers.AllowN(now, 1)
	}
	return s.beats.AllowN(now, 1)
}

func pick(n int) int { return rand.IntN(n) }

// jitter is d give or take a fifth, so that heartbeats of a shard do not come at once.
func jitter(d time.Duration) time.Duration { return d*4/5 + rand.N(d*2/5+1) }
