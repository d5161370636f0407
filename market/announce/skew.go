package announce

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// maxSamples is how many peers' clocks are remembered; a median needs no more.
const maxSamples = 256

// Skew is how this machine's clock stands against its peers'.
type Skew struct {
	Offset time.Duration // median; positive: our clock is ahead
	Peers  int           // how many clocks it is the median of; 0: nobody told
}

// Wrong reports whether the clocks are so far apart that adverts are dropped.
func (s Skew) Wrong() bool { return s.Peers > 0 && s.Offset.Abs() > market.Skew }

// String is "clock 3 h ahead of 5 peers", or "" while the clocks are near enough.
func (s Skew) String() string {
	if !s.Wrong() {
		return ""
	}
	where, peers := "ahead of", "peers"
	if s.Offset < 0 {
		where = "behind"
	}
	if s.Peers == 1 {
		peers = "peer"
	}
	d, unit := s.Offset.Abs().Round(time.Minute), "min"
	amount := int64(d / time.Minute)
	switch {
	case d >= 48*time.Hour:
		amount, unit = int64(d.Round(24*time.Hour)/(24*time.Hour)), "days"
	case d >= 2*time.Hour:
		amount, unit = int64(d.Round(time.Hour)/time.Hour), "h"
	}
	return fmt.Sprintf("clock %d %s %s %d %s", amount, unit, where, s.Peers, peers)
}

// clocks collects how far peers' clocks are from ours. Safe for concurrent use.
type clocks struct {
	mu      sync.Mutex
	samples map[identity.PeerID]time.Duration // guarded by mu; ours minus theirs
}

// note remembers that peer said it was theirs when it was ours here.
func (c *clocks) note(peer identity.PeerID, theirs, ours time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.samples == nil {
		c.samples = map[identity.PeerID]time.Duration{}
	}
	if _, again := c.samples[peer]; !again && len(c.samples) >= maxSamples {
		for other := range c.samples {
			delete(c.samples, other) // any one: what is wanted is a sample
			break
		}
	}
	c.samples[peer] = ours.Sub(theirs)
}

func (c *clocks) skew() Skew {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.samples) == 0 {
		return Skew{}
	}
	all := make([]time.Duration, 0, len(c.samples))
	for _, d := range c.samples {
		all = append(all, d)
	}
	slices.Sort(all)
	return Skew{Offset: all[len(all)/2], Peers: len(all)}
}
