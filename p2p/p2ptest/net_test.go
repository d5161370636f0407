package p2ptest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is the in-memory network as a fabric.
type memory struct{ net *p2ptest.Net }

func (m memory) Start(t *testing.T, dev *identity.Device, keep ...p2p.PeerAddr) p2ptest.Machine {
	t.Helper()
	n := m.net.Join(dev)
	for _, to := range keep {
		if err := n.Keep(to); err != nil {
			t.Fatal(err)
		}
	}
	return p2ptest.Machine{Network: n, Stop: n.Close}
}

func TestConformance(t *testing.T) {
	p2ptest.Conformance(t, func(t *testing.T) p2ptest.Fabric { return memory{p2ptest.NewNet(t)} })
}
