package books

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/wire"
)

// behindName is the file with a head of this ledger that a peer showed and that this ledger does not begin as: it lies beside the head
// note, so that neither a restart nor an older copy of the store forgets it.
const behindName = "behind"

// maxBehind bounds the file: a signed note.
const maxBehind = 1 << 10

// Behind is told of a head of this ledger that a peer holds. If this device signed it and the ledger does not begin so, then the ledger is
// an older copy, has lost its end, or was changed: it becomes read-only now and after every restart, until it has what the head is of or
// has begun a new epoch, and the error wraps ErrBehind (and ErrForged, where it has other entries of that size). A head that fits is nil.
// It must not be called by a function of Update.
func (b *Books) Behind(ctx context.Context, note []byte) error {
	b.leader <- struct{}{} // nothing is committed meanwhile
	defer func() { <-b.leader }()
	own, cp, err := history.Trim(note, b.config.Device.Peer())
	if err != nil {
		return fmt.Errorf("compare the ledger with a peer's word: %w", err)
	}
	cause, err := b.contradicted(ctx, cp)
	if cause == nil || err != nil {
		return err
	}
	b.mu.Lock()
	first := b.readOnly == nil
	if first {
		b.readOnly = cause
	}
	b.mu.Unlock()
	if first {
		b.config.Log.Error("ledger is read-only: a peer holds what this device signed and this ledger lacks", "err", cause)
	}
	return errors.Join(cause, b.keepBehind(ctx, own, cp))
}

// Showed notes that from now on others are shown what this device signs with the heads of this ledger.
func (b *Books) Showed() {
	b.mu.Lock()
	b.showed = b.showed || b.readOnly == nil
	b.mu.Unlock()
}

// shown reports whether somebody may hold a head of size entries that is of this very history. None is, as far as is known, of what was
// booked since the start if nobody was shown anything, nor by a ledger that a peer's word has kept read-only since the start.
func (b *Books) shown(size uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.mute && (b.showed || size <= b.opened)
}

// contradicted is nil if the ledger begins as cp says, or how it does not.
func (b *Books) contradicted(ctx context.Context, cp history.Checkpoint) (cause, err error) {
	err = b.View(ctx, func(r *Reader) error {
		state, err := r.judge(cp)
		if err != nil {
			return err
		}
		h, err := r.head()
		switch state {
		case future:
			cause = fmt.Errorf("%w: a peer holds its signed head of %d entries in epoch %d, the store has %d in epoch %d; fetch the records back from your peers",
				ErrBehind, cp.Size, cp.Origin.Epoch, h.Size, b.Epoch())
		case changed:
			cause = fmt.Errorf("%w: %w: a peer holds its signed head of %d entries with root %s, and here the first %d are others: an older copy was put back, or the ledger was changed",
				ErrBehind, ErrForged, cp.Size, wire.Hash(cp.Root).Short(), cp.Size)
		}
		return err
	})
	return cause, err
}

// keepBehind makes a head durable beside the head note, unless one that is further ahead is there.
func (b *Books) keepBehind(ctx context.Context, note []byte, cp history.Checkpoint) error {
	var have history.Checkpoint
	ok := false
	err := b.View(ctx, func(r *Reader) (err error) {
		have, ok, err = r.readBehind()
		return err
	})
	if err == nil && ok {
		if o := have.Origin.Epoch; o > cp.Origin.Epoch || o == cp.Origin.Epoch && have.Size >= cp.Size {
			return nil
		}
	}
	if err := replaceFile(b.disk, behindName, note); err != nil {
		return fmt.Errorf("keep a peer's word on the ledger: %w", err)
	}
	return nil
}

// readBehind reads the file; ok is false if there is none.
func (r *Reader) readBehind() (cp history.Checkpoint, ok bool, err error) {
	raw, err := r.b.disk.Read(behindName)
	if errors.Is(err, fs.ErrNotExist) {
		return cp, false, nil
	}
	if err != nil {
		return cp, false, fmt.Errorf("read a peer's word on the ledger: %w", err)
	}
	if len(raw) <= maxBehind {
		if cp, err = r.openOwn(raw); err == nil {
			return cp, true, nil
		}
	}
	return cp, true, fmt.Errorf("%w: the file %s, a head of this ledger that a peer showed, can't be read; compare the ledger with your peers, then remove the file",
		ErrCorrupt, behindName)
}

// compareBehind compares the ledger with the head that a peer once showed. One of an earlier epoch says nothing any more.
func (b *Books) compareBehind(ctx context.Context) error {
	var cp history.Checkpoint
	ok := false
	err := b.View(ctx, func(r *Reader) (err error) {
		cp, ok, err = r.readBehind()
		return err
	})
	if err != nil && !ok {
		return err
	}
	if err != nil {
		b.readOnly = errors.Join(b.readOnly, fmt.Errorf("ledger in %s: %w", b.config.Dir, err))
		return nil
	}
	if !ok {
		return nil
	}
	cause, err := b.contradicted(ctx, cp)
	if cause != nil {
		b.readOnly, b.mute = errors.Join(b.readOnly, cause), true
	}
	return err
}
