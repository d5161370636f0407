package provider

import (
	"context"
	"fmt"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/wire"
)

// SoldDevices says what a lease was for.
type SoldDevices struct {
	Model   string
	Devices []wire.Hash
}

// DevicesOf gives the devices of each lease that is stored, ended or not.
func (a *Agent) DevicesOf(ctx context.Context) (map[market.LeaseID]SoldDevices, error) {
	out := map[market.LeaseID]SoldDevices{}
	err := a.books.View(ctx, func(r *books.Reader) error {
		return eachLease(r.Of(kv.Provider), nil, func(id market.LeaseID, rec record) error {
			out[id] = SoldDevices{Model: rec.Model, Devices: rec.Devices}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("devices of stored leases: %w", err)
	}
	return out, nil
}
