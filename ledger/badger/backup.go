package badger

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpufair/gpufair/ledger/kv"
)

// A backup is a header and the pairs of one snapshot in order of keys:
//
//	"gpufair/backup/1\n"  magic
//	uint64                pairs
//	uint64                bytes of the body
//	[32]byte              SHA-256 of the body
//	body                  per pair: uint32 key length, uint32 value length, key, value
//
// All numbers are big-endian. Badger's own stream has no checksum and sizes without a limit, so it is not used. The header is what a
// later signature covers (spec: ledger, Badger v4).
const backupMagic = "gpufair/backup/1\n"

const (
	headerLen = len(backupMagic) + 8 + 8 + sha256.Size
	pairHead  = 8
)

// ErrBackup says that a file is not a whole backup.
var ErrBackup = errors.New("not a whole backup")

// Summary says what a backup holds.
type Summary struct {
	Pairs  uint64   // keys with their values
	Bytes  uint64   // of the body
	SHA256 [32]byte // of the body
}

func (s Summary) header() []byte {
	b := binary.BigEndian.AppendUint64([]byte(backupMagic), s.Pairs)
	return append(binary.BigEndian.AppendUint64(b, s.Bytes), s.SHA256[:]...)
}

// Backup writes one snapshot of the store to w; others may write to the store meanwhile. It reads the snapshot twice, since the header
// comes first. The caller makes the file durable and never puts a smaller backup in the place of a bigger one (lnd#4377).
func (d *DB) Backup(ctx context.Context, w io.Writer) (Summary, error) {
	var sum Summary
	err := d.View(ctx, func(r kv.Reader) error {
		hash := sha256.New()
		var err error
		if sum.Pairs, sum.Bytes, err = writePairs(ctx, hash, r); err != nil {
			return err
		}
		hash.Sum(sum.SHA256[:0])
		out := bufio.NewWriter(w)
		if _, err := out.Write(sum.header()); err != nil {
			return err
		}
		if _, _, err := writePairs(ctx, out, r); err != nil {
			return err
		}
		return out.Flush()
	})
	if err != nil {
		return Summary{}, fmt.Errorf("back up store in %s: %w", d.conf.Dir, err)
	}
	return sum, nil
}

func writePairs(ctx context.Context, w io.Writer, r kv.Reader) (pairs, size uint64, err error) {
	for p, err := range r.Iterate(nil, nil) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, 0, err
		}
		head := binary.BigEndian.AppendUint32(nil, uint32(len(p.Key)))
		head = binary.BigEndian.AppendUint32(head, uint32(len(p.Value)))
		for _, b := range [][]byte{head, p.Key, p.Value} {
			if _, err := w.Write(b); err != nil {
				return 0, 0, err
			}
			size += uint64(len(b))
		}
		pairs++
	}
	return pairs, size, nil
}

// ReadBackup checks a whole backup and calls fn with each pair. Errors wrap ErrBackup if the bytes are not one; fn may have seen pairs
// by then.
func ReadBackup(ctx context.Context, r io.Reader, fn func(kv.Pair) error) (Summary, error) {
	in := bufio.NewReader(r)
	head := make([]byte, headerLen)
	if _, err := io.ReadFull(in, head); err != nil || !bytes.HasPrefix(head, []byte(backupMagic)) {
		return Summary{}, fmt.Errorf("read backup: %w: it does not start as one", ErrBackup)
	}
	rest := head[len(backupMagic):]
	sum := Summary{Pairs: binary.BigEndian.Uint64(rest), Bytes: binary.BigEndian.Uint64(rest[8:]), SHA256: [32]byte(rest[16:])}
	hash := sha256.New()
	body := io.TeeReader(in, hash)
	var size uint64
	for n := range sum.Pairs {
		if err := ctx.Err(); err != nil {
			return Summary{}, fmt.Errorf("read backup: %w", err)
		}
		p, err := readPair(body)
		if err != nil {
			return Summary{}, fmt.Errorf("read backup: pair %d of %d: %w", n+1, sum.Pairs, err)
		}
		size += uint64(pairHead + len(p.Key) + len(p.Value))
		if err := fn(p); err != nil {
			return Summary{}, fmt.Errorf("read backup: pair %d of %d: %w", n+1, sum.Pairs, err)
		}
	}
	if _, err := in.ReadByte(); size != sum.Bytes || !errors.Is(err, io.EOF) {
		return Summary{}, fmt.Errorf("read backup: %w: its %d pairs are not all that it holds", ErrBackup, sum.Pairs)
	}
	if [32]byte(hash.Sum(nil)) != sum.SHA256 {
		return Summary{}, fmt.Errorf("read backup: %w: its bytes were changed (SHA-256 differs); take another copy", ErrBackup)
	}
	return sum, nil
}

func readPair(r io.Reader) (kv.Pair, error) {
	var head [pairHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return kv.Pair{}, fmt.Errorf("%w: it is cut short", ErrBackup)
	}
	k, v := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	if k == 0 || k > kv.MaxKey || v > kv.MaxValue {
		return kv.Pair{}, fmt.Errorf("%w: a key of %d bytes with a value of %d", ErrBackup, k, v)
	}
	b := make([]byte, k+v)
	if _, err := io.ReadFull(r, b); err != nil {
		return kv.Pair{}, fmt.Errorf("%w: it is cut short", ErrBackup)
	}
	return kv.Pair{Key: b[:k:k], Value: b[k:]}, nil
}

// Restore makes the store of c from a backup. The backup is checked whole before anything is made; the store is filled beside its place
// and moved there at the end, so a crash leaves no half store. It refuses a c.Dir that is there already: the store in it may know
// more than the backup. What must follow (a new epoch, the peers' newest vouchers) is the ledger's (spec: ledger, Rules).
func Restore(ctx context.Context, c Config, r io.ReadSeeker) (Summary, error) {
	if _, err := os.Lstat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		return Summary{}, fmt.Errorf("restore store: %w: %s is there already; move it away first", fs.ErrExist, c.Dir)
	}
	sum, err := ReadBackup(ctx, r, func(kv.Pair) error { return nil })
	if err != nil {
		return Summary{}, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return Summary{}, fmt.Errorf("restore store: read the backup again: %w", err)
	}
	place := c.Dir
	c.Dir = filepath.Clean(place) + ".restoring"
	if err := os.RemoveAll(c.Dir); err != nil {
		return Summary{}, fmt.Errorf("restore store: remove an earlier try: %w", err)
	}
	if err := fill(ctx, c, r); err != nil {
		return Summary{}, errors.Join(fmt.Errorf("restore store to %s: %w", place, err), os.RemoveAll(c.Dir))
	}
	if err := os.Rename(c.Dir, place); err != nil {
		return Summary{}, fmt.Errorf("restore store: %w", err)
	}
	return sum, nil
}

// fill writes the pairs of a checked backup to a new store.
func fill(ctx context.Context, c Config, r io.Reader) (err error) {
	d, err := Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var batch []kv.Write
	size := 0
	flush := func() error {
		if err := d.Writable(ctx); err != nil {
			return err
		}
		err := d.Apply(ctx, batch)
		batch, size = nil, 0
		return err
	}
	_, err = ReadBackup(ctx, r, func(p kv.Pair) error {
		if n := len(p.Key) + len(p.Value); size+n > kv.MaxTxBytes || len(batch) == kv.MaxTxKeys {
			if err := flush(); err != nil {
				return err
			}
		}
		batch, size = append(batch, kv.Write{Key: p.Key, Value: p.Value}), size+len(p.Key)+len(p.Value)
		return nil
	})
	if err == nil && len(batch) > 0 {
		err = flush()
	}
	return err
}
