package announce

import (
	"context"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Has asks peer over n, which may be another network than a board's, whether its book has a live offer of that hash, and how old the sign
// of life is that came with it, by the clocks of peer and signer: 0 to market.MaxTTL. The answer counts if the offer in it bears its hash.
func Has(ctx context.Context, n p2p.Network, network string, peer identity.PeerID, offer wire.Hash) (has bool, age time.Duration, err error) {
	ask := OffersAsk{Now: time.Now().UnixMilli(), Want: [][16]byte{[16]byte(offer[:16])}}
	var answer OffersAnswer
	if err := p2p.Call(ctx, n, peer, p2p.ProtocolID(network, work.ProtoOffers), ask, &answer, maxAnswer); err != nil {
		return false, 0, err
	}
	for _, it := range answer.Items {
		o, err := market.OpenSealedOffer(it.Offer, it.Delegation)
		if err != nil || o.Hash != offer {
			continue
		}
		sign := o.Issued()
		if h, err := market.OpenHeartbeat(it.Heartbeat); err == nil && h.Device == o.Device && h.Offer == o.Prefix() {
			sign = h.Issued()
		}
		return true, min(max(time.UnixMilli(answer.Now).Sub(sign), 0), market.MaxTTL*time.Second), nil
	}
	return false, 0, nil
}
