// Package backup is one file that a ledger can be made again from: every record of a daemon's store, of one moment, under a header that
// the ledger's device signed. It owns the file's form and the rules of when a backup takes another's place, and refuses to know what the
// records say. What must follow a restore (a new epoch, asking the peers) is ledger/books'.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Domain is of the header.
const Domain identity.Domain = "gpufair/backup/1"

const (
	version   = 1
	magic     = "gpufair backup 1\n"
	maxHeader = 4 << 10 // bytes of the signed header: 1 KiB with a checkpoint and a delegation
	pairHead  = 8
)

// A file is the magic line, 4 bytes length of the header, the header, and the records of one snapshot in the order of their keys, each
//
//	4 bytes  length of the key
//	4 bytes  length of the value
//	key, value
//
// All numbers are big-endian. Badger's own stream has no checksum and sizes without a limit, so it is not used.

// State is what a ledger says of itself at the moment of a backup.
type State struct {
	Epoch      uint32
	Seq        uint64 // of its last transaction
	Size       uint64 // of its log
	Root       wire.Hash
	Checkpoint []byte // of that
}

// Header is the signed start of a backup.
type Header struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
	Proof      []byte    `cbor:"5,keyasint"` // the delegation itself
	Made       int64     `cbor:"6,keyasint"` // Unix milliseconds by the maker's clock; for people
	Epoch      uint32    `cbor:"7,keyasint"`
	Seq        uint64    `cbor:"8,keyasint"`
	Size       uint64    `cbor:"9,keyasint"`
	Root       wire.Hash `cbor:"10,keyasint"`
	Checkpoint []byte    `cbor:"11,keyasint"`
	Records    uint64    `cbor:"12,keyasint"`
	Bytes      uint64    `cbor:"13,keyasint"` // of all that follows the header
	SHA256     wire.Hash `cbor:"14,keyasint"` // of that
}

var (
	// ErrBackup says that a file is not a whole backup.
	ErrBackup = errors.New("not a whole backup")
	// ErrOther says that a backup is of another account or device.
	ErrOther = errors.New("a backup of another ledger")
)

// Show gives the header as people are told of it.
func (h Header) Show(file string) statement.Backup {
	return statement.Backup{
		File: file, Made: time.UnixMilli(h.Made).UTC(), Account: h.Account.String(), Peer: h.Device.String(), Epoch: h.Epoch, Entries: h.Size,
		Root: h.Root.String(), Records: h.Records, Bytes: h.Bytes,
	}
}

// Write writes a backup of a snapshot, which it reads twice: the header comes first. The caller makes the file durable: see [Save].
func Write(ctx context.Context, w io.Writer, dev *identity.Device, s State, snapshot kv.Reader, now time.Time) (Header, error) {
	h := Header{
		Header: dev.Header(version), Delegation: dev.DelegationHash(), Proof: dev.Delegation(), Made: now.UnixMilli(), Epoch: s.Epoch, Seq: s.Seq,
		Size: s.Size, Root: s.Root, Checkpoint: s.Checkpoint,
	}
	sum := sha256.New()
	var err error
	if h.Records, h.Bytes, err = writeRecords(ctx, sum, snapshot); err != nil {
		return h, fmt.Errorf("back up: %w", err)
	}
	h.SHA256 = wire.Hash(sum.Sum(nil))
	envelope, err := dev.Seal(Domain, h)
	if err != nil {
		return h, fmt.Errorf("back up: %w", err)
	}
	out := bufio.NewWriter(w)
	for _, part := range [][]byte{[]byte(magic), binary.BigEndian.AppendUint32(nil, uint32(len(envelope))), envelope} {
		if _, err := out.Write(part); err != nil {
			return h, fmt.Errorf("back up: %w", err)
		}
	}
	if _, _, err := writeRecords(ctx, out, snapshot); err != nil {
		return h, fmt.Errorf("back up: %w", err)
	}
	if err := out.Flush(); err != nil {
		return h, fmt.Errorf("back up: %w", err)
	}
	return h, nil
}

func writeRecords(ctx context.Context, w io.Writer, r kv.Reader) (records, size uint64, err error) {
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
		records++
	}
	return records, size, nil
}

// ReadHeader reads and checks the start of a backup: signature, delegation and checkpoint. The records are not looked at.
func ReadHeader(r io.Reader) (Header, error) {
	start := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, start); err != nil || !bytes.HasPrefix(start, []byte(magic)) {
		return Header{}, fmt.Errorf("read backup: %w: it does not start as one", ErrBackup)
	}
	size := binary.BigEndian.Uint32(start[len(magic):])
	if size == 0 || size > maxHeader {
		return Header{}, fmt.Errorf("read backup: %w: a header of %d bytes", ErrBackup, size)
	}
	envelope := make([]byte, size)
	if _, err := io.ReadFull(r, envelope); err != nil {
		return Header{}, fmt.Errorf("read backup: %w: it is cut short in its header", ErrBackup)
	}
	h, err := identity.OpenMoney[Header](Domain, version, envelope)
	if err != nil {
		return h, fmt.Errorf("read backup: %w: its header: %w", ErrBackup, err)
	}
	d, err := identity.OpenDelegation(h.Proof)
	if err != nil || identity.Hash(h.Proof) != h.Delegation || d.Device != h.Device || d.Account != h.Account {
		return h, fmt.Errorf("read backup: %w: its header is signed for an account that does not know its device: %w", ErrBackup, err)
	}
	cp, err := history.Open(h.Checkpoint, h.Device)
	if err != nil || cp.Size != h.Size || wire.Hash(cp.Root) != h.Root || cp.Origin.Epoch != uint64(h.Epoch) {
		return h, fmt.Errorf("read backup: %w: its checkpoint is of another log: %w", ErrBackup, err)
	}
	return h, nil
}

// Read checks a whole backup and calls fn with each record. Errors wrap ErrBackup if the bytes are not one; fn may have seen records by
// then, so check once before anything is made of them.
func Read(ctx context.Context, r io.Reader, fn func(kv.Pair) error) (Header, error) {
	in := bufio.NewReader(r)
	h, err := ReadHeader(in)
	if err != nil {
		return h, err
	}
	sum := sha256.New()
	body := io.TeeReader(in, sum)
	var size uint64
	for n := range h.Records {
		if err := ctx.Err(); err != nil {
			return h, fmt.Errorf("read backup: %w", err)
		}
		p, err := readRecord(body)
		if err != nil {
			return h, fmt.Errorf("read backup: record %d of %d: %w", n+1, h.Records, err)
		}
		size += uint64(pairHead + len(p.Key) + len(p.Value))
		if err := fn(p); err != nil {
			return h, fmt.Errorf("read backup: record %d of %d: %w", n+1, h.Records, err)
		}
	}
	if _, err := in.ReadByte(); size != h.Bytes || !errors.Is(err, io.EOF) {
		return h, fmt.Errorf("read backup: %w: its %d records are not all that it holds", ErrBackup, h.Records)
	}
	if wire.Hash(sum.Sum(nil)) != h.SHA256 {
		return h, fmt.Errorf("read backup: %w: its bytes were changed (SHA-256 differs); take another copy", ErrBackup)
	}
	return h, nil
}

func readRecord(r io.Reader) (kv.Pair, error) {
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

// Check reads a whole backup and gives its header.
func Check(ctx context.Context, r io.Reader) (Header, error) {
	return Read(ctx, r, func(kv.Pair) error { return nil })
}

// Fill writes records into an engine that nobody uses yet, in transactions that fit it.
type Fill struct {
	engine kv.Engine
	batch  []kv.Write
	size   int
}

// NewFill begins to fill an engine.
func NewFill(engine kv.Engine) *Fill { return &Fill{engine: engine} }

// Add adds one record.
func (f *Fill) Add(ctx context.Context, p kv.Pair) error {
	if n := len(p.Key) + len(p.Value); f.size+n > kv.MaxTxBytes || len(f.batch) == kv.MaxTxKeys {
		if err := f.Flush(ctx); err != nil {
			return err
		}
	}
	f.batch, f.size = append(f.batch, kv.Write{Key: p.Key, Value: p.Value}), f.size+len(p.Key)+len(p.Value)
	return nil
}

// Flush writes what Add has gathered.
func (f *Fill) Flush(ctx context.Context) error {
	if len(f.batch) == 0 {
		return nil
	}
	if err := f.engine.Writable(ctx); err != nil {
		return err
	}
	err := f.engine.Apply(ctx, f.batch)
	f.batch, f.size = nil, 0
	return err
}
