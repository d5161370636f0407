package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ErrTooLarge says that a frame is bigger than its protocol allows. The reader has read only its length.
var ErrTooLarge = errors.New("frame too large")

// WriteFrame sends v as one frame: a 4-byte big-endian length, then the deterministic CBOR of v, in a single Write.
// A body over limit bytes is ErrTooLarge and nothing is sent.
func WriteFrame(w io.Writer, v any, limit int) error {
	body, err := Marshal(v)
	if err != nil {
		return err
	}
	return WriteRaw(w, body, limit)
}

// WriteRaw sends body, which may be any bytes, as one frame.
func WriteRaw(w io.Writer, body []byte, limit int) error {
	if len(body) > limit {
		return fmt.Errorf("write frame of %d bytes: %w (limit %d)", len(body), ErrTooLarge, limit)
	}
	buf := make([]byte, 4+len(body))
	binary.BigEndian.PutUint32(buf, uint32(len(body)))
	copy(buf[4:], body)
	if _, err := w.Write(buf); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// ReadFrame reads one frame of at most limit bytes and decodes it strictly into v: frames are spoken between two peers that agreed
// on a protocol version, so a key that v does not have is a mistake. io.EOF means that the stream ended cleanly before a frame.
func ReadFrame(r io.Reader, v any, limit int) error {
	body, err := ReadRaw(r, limit)
	if err != nil {
		return err
	}
	return UnmarshalStrict(body, v)
}

// ReadRaw reads the bytes of one frame of at most limit bytes. It allocates as the bytes arrive, never on the word of the length alone.
func ReadRaw(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("read frame length: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return nil, fmt.Errorf("read frame of %d bytes: %w (limit %d)", n, ErrTooLarge, limit)
	}
	body, err := io.ReadAll(io.LimitReader(r, int64(n)))
	if err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	if len(body) != int(n) {
		return nil, fmt.Errorf("read frame: %d of %d bytes: %w", len(body), n, io.ErrUnexpectedEOF)
	}
	return body, nil
}
