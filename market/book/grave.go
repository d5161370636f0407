package book

import (
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
)

// graves remembers which offers were withdrawn or died, so that replays do not bring them back.
type graves map[identity.PeerID]grave

type grave struct {
	withdrawn   uint64 // everything up to this sequence is over for good; 0: died, and may come back
	offer, beat uint64 // newest sequences of the device
	dug         time.Time
}

// at is a device's grave, as long as a replay of what lies there could pass as fresh.
func (g graves) at(device identity.PeerID, now time.Time) (grave, bool) {
	one, ok := g[device]
	return one, ok && now.Sub(one.dug) <= graveTime
}

// withdrew reports whether a withdrawal covers seq.
func (g graves) withdrew(device identity.PeerID, seq uint64, now time.Time) bool {
	one, ok := g.at(device, now)
	return ok && seq <= one.withdrawn
}

// silences reports whether a heartbeat is not newer than what lies there.
func (g graves) silences(device identity.PeerID, seq uint64, now time.Time) bool {
	one, ok := g.at(device, now)
	return ok && seq <= one.beat
}

// buries reports whether an offer is not newer than what lies there, and no newer heartbeat (beat) proves that it came back.
func (g graves) buries(o market.SealedOffer, beat uint64, now time.Time) bool {
	one, ok := g.at(o.Device, now)
	return ok && (o.Seq <= one.withdrawn || (o.Seq <= one.offer && beat <= one.beat))
}

// dig remembers a death. When there are too many, that of a device which never had an offer here is not remembered, so that
// strangers' tombstones cannot push out the ones that matter.
func (g graves) dig(device identity.PeerID, one grave, known bool) {
	old, again := g.at(device, one.dug)
	if again {
		one.withdrawn, one.offer, one.beat = max(one.withdrawn, old.withdrawn), max(one.offer, old.offer), max(one.beat, old.beat)
	} else if len(g) >= maxGraves {
		g.expire(one.dug)
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
	g[device] = one
}

func (g graves) expire(now time.Time) {
	for device, one := range g {
		if now.Sub(one.dug) > graveTime {
			delete(g, device)
		}
	}
}
