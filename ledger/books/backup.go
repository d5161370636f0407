package books

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gpufair/gpufair/ledger/backup"
	"github.com/gpufair/gpufair/ledger/kv"
)

// Backup writes a backup of one snapshot of the whole store to w, the agents' leases with the entries that they belong to; others may
// write to the ledger meanwhile. [backup.Save] makes a file of it.
func (b *Books) Backup(ctx context.Context, w io.Writer, now time.Time) (h backup.Header, err error) {
	err = b.View(ctx, func(r *Reader) error {
		s := backup.State{Epoch: b.epoch}
		if s.Seq, _, err = load[uint64](r.own, []byte(keySeq)); err != nil {
			return err
		}
		top, err := r.head()
		if err != nil {
			return err
		}
		s.Size, s.Root = top.Size, top.Root
		if s.Checkpoint, err = r.Checkpoint(); err != nil {
			return err
		}
		h, err = backup.Write(ctx, w, b.config.Device, s, r.txn.All(), now)
		return err
	})
	return h, err
}

// CheckRestored compares a store that was filled from a backup with what its header says of the ledger in it.
func CheckRestored(ctx context.Context, store *kv.Store, h backup.Header) error {
	return store.View(ctx, func(t *kv.Txn) error {
		own := t.Of(kv.Books)
		epoch, err := epochOf(own)
		if err != nil {
			return err
		}
		top, _, err := load[head](own, []byte(keyHead))
		if err != nil {
			return err
		}
		if epoch != h.Epoch || top.Size != h.Size || h.Size > 0 && top.Root != h.Root {
			return fmt.Errorf("%w: the backup's records are of a log of %d entries in epoch %d, its header says %d in epoch %d", ErrCorrupt,
				top.Size, epoch, h.Size, h.Epoch)
		}
		return nil
	})
}
