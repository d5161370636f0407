package book

import (
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
)

// graves remembers what was withdrawn, so that a replay of the offer does not bring it back.
type graves map[identity.PeerID]grave

type grave struct {
	seq uint64
	dug time.Time
}

func (g graves) holds(device identity.PeerID, seq uint64, now time.Time) bool {
	one, ok := g[device]
	return ok && seq <= one.seq && now.Sub(one.dug) <= graveTime
}

// dig remembers a withdrawal. When there are too many, that of a device which never had an offer here is not remembered, so that
// strangers' tombstones cannot push out the ones that matter.
func (g graves) dig(device identity.PeerID, seq uint64, known bool, now time.Time) {
	if _, again := g[device]; !again && len(g) >= maxGraves {
		g.expire(now)
		if len(g) >= maxGraves && !known {
			return
		}
		for other := range g {
			if len(g) < maxGraves {
				break
			}
			delete(g, other)
		}
	}
	g[device] = grave{seq, now}
}

func (g graves) expire(now time.Time) {
	for device, one := range g {
		if now.Sub(one.dug) > graveTime {
			delete(g, device)
		}
	}
}
