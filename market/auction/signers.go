package auction

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// errAbsent says that the delegation of a record is not there, so that nothing can be said of it.
var errAbsent = errors.New("its delegation is not in the file")

// signers is the delegations at hand, by hash.
type signers map[wire.Hash]identity.Delegation

// readSigners keeps what is a delegation of those given.
func readSigners(raws [][]byte) signers {
	opened := make([]*identity.Delegation, len(raws))
	each(len(raws), func(i int) {
		if len(raws[i]) > market.MaxDelegation {
			return
		}
		if d, err := identity.OpenDelegation(raws[i]); err == nil {
			opened[i] = &d
		}
	})
	s := make(signers, len(raws))
	for i, d := range opened {
		if d != nil {
			s[identity.Hash(raws[i])] = *d
		}
	}
	return s
}

// allow checks that the record with header h, which names its delegation, was signed within power. The error wraps errAbsent or
// identity.ErrPower.
func (s signers) allow(named wire.Hash, h identity.Header, power identity.Powers) error {
	d, ok := s[named]
	if !ok {
		return fmt.Errorf("device %s of account %s: %w", h.Device.Short(), h.Account.Short(), errAbsent)
	}
	return d.Allows(h, power)
}

// each calls f for 0 to n-1 on all cores. Signatures are nearly all that a verification costs; f writes only to what is at its index,
// so the result does not depend on the order.
func each(n int, f func(i int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
