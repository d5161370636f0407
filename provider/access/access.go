// Package access is the job's side of what its renter reaches it by; first its output. It owns the format of the log on disk: the writer
// that runs beside each job, and the source that p2p/tunnel serves. It knows no network, no runtime and no lease.
//
// A log is a folder of segments named by the number of data bytes before them. A segment is a row of records:
//
//	0  magic 0x67   1  stream   2  data length (u32)   6  Unix nanoseconds (i64)   14  offset (u64)   22  CRC-32C of 0..21 and the data (u32)   26  data
//
// Numbers are little-endian. Offsets count the bytes of data of both streams, over all that was ever written. Records are only appended, so
// a writer that was killed leaves at most one broken record, at the end; segments are dropped whole, oldest first.
package access

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Stream says where output came from. On disk and, for the first two, on the wire as in p2p/tunnel.
type Stream uint8

// The streams. They are never renumbered.
const (
	Stdout Stream = 1
	Stderr Stream = 2
	end    Stream = 3 // last record of a log: the job closed its output
)

const (
	magic     = 0x67
	headerLen = 26
	// MaxRecord is the most bytes of data in one record: as much as p2p/tunnel carries in one chunk.
	MaxRecord = 32 << 10
	// MinLog is the smallest cap of a log: two of the largest records, so that the newest always fits beside the one before.
	MinLog = 2 * (headerLen + MaxRecord)
	suffix = ".log"
)

var errBroken = errors.New("broken record")

// record is one record of a segment.
type record struct {
	stream Stream
	time   int64
	offset uint64
	data   []byte
}

func (r record) end() uint64 { return r.offset + uint64(len(r.data)) }

func crcTable() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) } // the standard library makes the table once

// appendRecord encodes r behind b.
func appendRecord(b []byte, r record) []byte {
	start := len(b)
	b = append(b, magic, byte(r.stream))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.data)))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.time))
	b = binary.LittleEndian.AppendUint64(b, r.offset)
	crc := crc32.Update(crc32.Checksum(b[start:], crcTable()), crcTable(), r.data)
	b = binary.LittleEndian.AppendUint32(b, crc)
	return append(b, r.data...)
}

// parseRecord reads the record at the front of b and how long it is there. With (record{}, 0, nil) b holds too little of it yet.
func parseRecord(b []byte) (record, int, error) {
	if len(b) < headerLen {
		return record{}, 0, nil
	}
	size := binary.LittleEndian.Uint32(b[2:])
	r := record{
		stream: Stream(b[1]), time: int64(binary.LittleEndian.Uint64(b[6:])), offset: binary.LittleEndian.Uint64(b[14:]),
	}
	if b[0] != magic || r.stream < Stdout || r.stream > end || size > MaxRecord {
		return record{}, 0, errBroken
	}
	n := headerLen + int(size)
	if len(b) < n {
		return record{}, 0, nil
	}
	r.data = b[headerLen:n]
	if crc32.Update(crc32.Checksum(b[:22], crcTable()), crcTable(), r.data) != binary.LittleEndian.Uint32(b[22:]) {
		return record{}, 0, errBroken
	}
	return r, n, nil
}

// segment is one file of a log.
type segment struct {
	path  string
	start uint64 // offset of its first record
	size  int64  // bytes on disk
}

func segmentPath(dir string, start uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", start, suffix))
}

// segments lists the segments of the log in dir by their start. A folder that is not there has none.
func segments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list log %s: %w", dir, err)
	}
	var segs []segment
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		start, err := strconv.ParseUint(name, 10, 64)
		if !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // dropped between the two calls
		}
		segs = append(segs, segment{path: filepath.Join(dir, e.Name()), start: start, size: info.Size()})
	}
	slices.SortFunc(segs, func(a, b segment) int {
		if a.start < b.start {
			return -1
		}
		return 1
	})
	return segs, nil
}
