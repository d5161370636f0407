package p2p_test

import (
	"testing"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
)

// The exact bytes of an invite, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	dev := identitytest.Provider(t).Device
	v, _ := identitytest.Signed(t, "invite", dev, p2p.DomainInvite, p2p.Invite{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), Network: "main", Addrs: []string{"/ip4/192.0.2.7/udp/4701/quic-v1"},
		Credit: "2.5 CREDIT",
	})
	identitytest.Check(t, "testdata/vectors.json", []identitytest.Vector{v})
}
