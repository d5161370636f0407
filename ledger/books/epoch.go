package books

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
)

// ErrEpoch says that a lane was opened in an epoch that its renter's device has left: by a copy of its ledger that is older than the one
// it uses now.
var ErrEpoch = errors.New("the renter's ledger has left this epoch")

// keyEpoch holds the ledger's epoch. It is written only while a store is made from a backup or from what is left of another
// ([NewEpoch]), so it is no part of any transaction in the journal. No key: [ledger.FirstEpoch].
const keyEpoch = "epoch"

// readEpoch reads the ledger's epoch.
func (b *Books) readEpoch(ctx context.Context) error {
	return b.config.Store.View(ctx, func(t *kv.Txn) (err error) {
		b.epoch, err = epochOf(t.Of(kv.Books))
		return err
	})
}

func epochOf(own kv.Reader) (uint32, error) {
	epoch, ok, err := load[uint32](own, []byte(keyEpoch))
	if err == nil && !ok {
		epoch = ledger.FirstEpoch
	}
	return epoch, err
}

// Epoch is that of this ledger's log and of the lanes that its device opens. It stays as it is until the ledger is restored.
func (b *Books) Epoch() uint32 { return b.epoch }

// enterEpoch checks that a lane's opening voucher is of the newest epoch that its device was seen in here, and remembers it.
func (t *Tx) enterEpoch(v voucher.Signed) error {
	k := epochKey(v.Device)
	seen, _, err := load[uint32](t.own, k)
	switch {
	case err != nil || seen == v.Channel.Epoch:
		return err
	case v.Channel.Epoch < seen:
		return fmt.Errorf("open lane %s: %w: %d, device %s is in %d: its copy of the ledger is an old one", v.Lane.Short(), ErrEpoch,
			v.Channel.Epoch, v.Device.Short(), seen)
	}
	return save(t.own, k, v.Channel.Epoch)
}

func epochKey(device identity.PeerID) []byte { return key("ep/", device[:]) }
