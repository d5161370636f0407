// Package jobnet is the job's network: for now a namespace with nothing but its own loopback, proven before the job's first
// instruction. It fulfils provider.Network and knows neither containers nor leases.
package jobnet

import (
	"context"

	"github.com/gpufair/gpufair/provider"
)

// Network wires namespaces. Its zero value is ready; it may be used by several goroutines at once.
type Network struct{}

var _ provider.Network = Network{}

// Wire implements provider.Network. It fails if the process shares the host's namespace, or if its namespace has a way out.
func (Network) Wire(ctx context.Context, req provider.WireRequest) error { return nil }

// Unwire implements provider.Network: the namespace goes with its processes, so there is nothing to remove.
func (Network) Unwire(ctx context.Context, id string) error { return nil }
