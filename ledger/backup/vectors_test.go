package backup_test

import (
	"testing"

	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The exact bytes of a header, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	dev := identitytest.Provider(t).Device
	hash := func(s string) wire.Hash { return wire.Sum("gpufair/test", []byte(s)) }
	header, _ := identitytest.Signed(t, "backup's header", dev, backup.Domain, backup.Header{
		Header: dev.Header(1), Delegation: dev.DelegationHash(), Proof: dev.Delegation(), Made: 1_796_029_200_000, Epoch: 1, Seq: 9, Size: 7,
		Root: hash("root"), Checkpoint: []byte("a signed note\n"), Records: 3, Bytes: 99, SHA256: hash("records"),
	})
	identitytest.Check(t, "testdata/vectors.json", []identitytest.Vector{header})
}
