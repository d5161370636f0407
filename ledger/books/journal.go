package books

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/wire"
)

// The journal is an append-only file: a magic line, 16 random bytes and their CRC-32C, then records of
//
//	4 bytes  length of the body, big endian
//	4 bytes  CRC-32C of the random bytes and the body
//	body     CBOR of a record
//
// The random bytes keep a peer from sending something that, stored inside a record, looks like a record itself.
// The Sync after a record is the one commit of its transaction (spec: ledger, Rules). When the file is longer than rotateAt, it becomes
// journal.old and a new one is begun: what it held is then in the store durably, by the contract of [kv.Engine].
const (
	journalName = "journal"
	oldName     = "journal.old"
	newName     = "journal.new"
	magic       = "gpufair journal 1\n"
	rotateAt    = 16 << 20
	maxRecord   = 4 << 20 // a transaction writes 1 MiB of keys and values at most (kv.MaxTxBytes), and CBOR adds a little to each
	recordHead  = 8
	seedSize    = 16
	fileHead    = len(magic) + seedSize + 4
)

// record is one transaction: everything it wrote, signed bytes included.
type record struct {
	Seq    uint64     `cbor:"1,keyasint"` // from 1, without gaps
	Writes []kv.Write `cbor:"2,keyasint"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seed is a file's random bytes.
type seed [seedSize]byte

func (s seed) checksum(body []byte) uint32 {
	return crc32.Update(crc32.Checksum(s[:], castagnoli), castagnoli, body)
}

// header is how a file with this seed starts.
func (s seed) header() []byte {
	return binary.BigEndian.AppendUint32(append([]byte(magic), s[:]...), s.checksum(nil))
}

func (r record) encode(s seed) ([]byte, error) {
	body, err := wire.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > maxRecord {
		return nil, fmt.Errorf("journal record of %d bytes: %w (limit %d)", len(body), kv.ErrTooLarge, maxRecord)
	}
	out := make([]byte, recordHead, recordHead+len(body))
	binary.BigEndian.PutUint32(out, uint32(len(body)))
	binary.BigEndian.PutUint32(out[4:], s.checksum(body))
	return append(out, body...), nil
}

// decodeRecord reads the record at the start of b and its length; ok is false if there is no whole and undamaged one.
func decodeRecord(s seed, b []byte) (r record, n int, ok bool) {
	if len(b) < recordHead {
		return r, 0, false
	}
	size := binary.BigEndian.Uint32(b)
	if size == 0 || size > maxRecord || uint64(size) > uint64(len(b)-recordHead) {
		return r, 0, false
	}
	body := b[recordHead : recordHead+int(size)]
	if s.checksum(body) != binary.BigEndian.Uint32(b[4:]) || wire.UnmarshalStrict(body, &r) != nil {
		return r, 0, false
	}
	return r, recordHead + int(size), true
}

// scan is what a journal file holds.
type scan struct {
	records []record
	seed    seed
	last    int64  // where the last record before any damage starts
	good    int64  // bytes up to its end
	alien   bool   // the file's start is damaged: nothing in it can be read
	torn    bool   // there is something behind good
	lost    uint64 // highest sequence of a record that still reads behind the damage: then it is no torn tail
}

// scanJournal reads a journal's bytes.
func scanJournal(b []byte) scan {
	var s scan
	if len(b) < fileHead { // a crash while the file was begun
		s.torn = len(b) > 0
		return s
	}
	s.seed = seed(b[len(magic) : fileHead-4])
	if !bytes.Equal(b[:fileHead], s.seed.header()) {
		s.alien = true
		return s
	}
	at := fileHead
	s.last = int64(at)
	for at < len(b) {
		r, n, ok := decodeRecord(s.seed, b[at:])
		if !ok {
			s.torn, s.lost = true, resync(s.seed, b[at:])
			break
		}
		s.records, s.last = append(s.records, r), int64(at)
		at += n
	}
	s.good = int64(at)
	return s
}

// resync looks for records behind damage, at every byte: a torn tail has none.
func resync(s seed, b []byte) (highest uint64) {
	for at := 1; at < len(b); at++ {
		if r, n, ok := decodeRecord(s, b[at:]); ok {
			highest = max(highest, r.Seq)
			at += n - 1
		}
	}
	return highest
}

// readJournals gives the records of the disk's journals in their order, and the highest sequence of a record that lies behind damage, 0
// if none does.
func readJournals(d disk.Disk) (records []record, lost uint64, err error) {
	for _, name := range []string{oldName, journalName} {
		b, err := d.Read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("read journal: %w", err)
		}
		s := scanJournal(b)
		records = append(records, s.records...)
		lost = max(lost, s.lost)
	}
	return records, lost, nil
}

// secureJournal makes the journal durable as it reads now, before the store follows it. Its last record is written once more, since the
// Sync of that may have failed before: then the system shows it, takes it for written, and has given it up.
func secureJournal(d disk.Disk) error {
	b, err := d.Read(journalName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the newest record is in journal.old, which was synced
	}
	if err != nil {
		return fmt.Errorf("read journal: %w", err)
	}
	s := scanJournal(b)
	f, err := d.Open(journalName)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	if _, err = f.WriteAt(b[s.last:s.good], s.last); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write journal's last record again: %w", err)
	}
	return d.Sync()
}

// errNotWritten says that a record is certainly not in the journal, and that the next one may be appended.
var errNotWritten = errors.New("nothing was written")

// journal is an open journal file. One goroutine at a time.
type journal struct {
	disk disk.Disk
	file disk.File
	seed seed
	size int64
}

// startJournal opens the journal for appending, its torn tail cut. A file with damage in its middle, all of which is in the store, is
// kept under another name for people to look at, and a new one begun; aside is that name, or empty.
func startJournal(d disk.Disk) (j *journal, aside string, err error) {
	b, err := d.Read(journalName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("open journal: %w", err)
	}
	s := scanJournal(b)
	if s.lost > 0 || s.alien {
		aside = fmt.Sprintf("%s.damaged-%d", journalName, s.lost)
		if err := d.Rename(journalName, aside); err != nil {
			return nil, "", fmt.Errorf("set damaged journal aside: %w", err)
		}
		s = scan{}
	}
	j = &journal{disk: d}
	if s.good == 0 {
		return j, aside, j.begin()
	}
	j.seed, j.size = s.seed, s.good
	if j.file, err = d.Open(journalName); err != nil {
		return nil, "", fmt.Errorf("open journal: %w", err)
	}
	if err := j.cut(); err != nil {
		return nil, "", errors.Join(err, j.file.Close())
	}
	return j, aside, nil
}

// cut removes what is behind the last whole record.
func (j *journal) cut() error {
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cut journal: %w", err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("cut journal: %w", err)
	}
	return j.disk.Sync()
}

// begin starts a new file and appends to that from now on. It has its head before it has its name, so a journal is never without. What
// had the name before becomes journal.old first, and durably so. After an error that wraps errNotWritten this file goes on; after another
// nothing more may be appended.
func (j *journal) begin() error {
	next := journal{disk: j.disk, size: int64(fileHead)}
	if _, err := rand.Read(next.seed[:]); err != nil {
		return fmt.Errorf("begin journal: %w: %w", errNotWritten, err)
	}
	if err := writeFile(j.disk, newName, next.seed.header()); err != nil {
		return fmt.Errorf("begin journal: %w: %w", errNotWritten, err)
	}
	if j.file != nil {
		if err := j.file.Close(); err != nil {
			return fmt.Errorf("rotate journal: %w", err)
		}
		if err := j.disk.Rename(journalName, oldName); err != nil {
			return fmt.Errorf("rotate journal: %w", err)
		}
		if err := j.disk.Sync(); err != nil {
			return fmt.Errorf("rotate journal: %w", err)
		}
	}
	if err := j.disk.Rename(newName, journalName); err != nil {
		return fmt.Errorf("begin journal: %w", err)
	}
	f, err := j.disk.Open(journalName)
	if err != nil {
		return fmt.Errorf("begin journal: %w", err)
	}
	next.file = f
	*j = next
	return j.disk.Sync()
}

// writeFile writes a whole file and makes its bytes, but not its name, durable.
func writeFile(d disk.Disk, name string, b []byte) error {
	f, err := d.Open(name)
	if err != nil {
		return err
	}
	if err = f.Truncate(0); err == nil {
		if _, err = f.WriteAt(b, 0); err == nil {
			err = f.Sync()
		}
	}
	return errors.Join(err, f.Close())
}

// append writes one record and waits until it is on the disk. After an error the file's end is unknown and nothing more may be appended
// before it is opened again, unless the error wraps errNotWritten: the disk was full, and what did get written is cut off again.
func (j *journal) append(r record) error {
	encoded, err := r.encode(j.seed)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotWritten, err)
	}
	if _, err := j.file.WriteAt(encoded, j.size); err != nil {
		if cut := errors.Join(j.file.Truncate(j.size), j.file.Sync()); cut != nil {
			return fmt.Errorf("append to journal: %w", errors.Join(err, cut))
		}
		return fmt.Errorf("append to journal: %w: %w", errNotWritten, err)
	}
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	j.size += int64(len(encoded))
	return nil
}

func (j *journal) close() error { return j.file.Close() }
