package libp2p

import (
	"context"
	"encoding/binary"
	"errors"

	coreconnmgr "github.com/libp2p/go-libp2p/core/connmgr"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// The longest messages of the index, in bytes. The DHT would take in 4 MiB, and makes up to 60 times as much of a message before anybody judges it.
const (
	maxAsk  = 16 << 10  // what others ask here; a word is under 1 KiB
	maxTold = 256 << 10 // what is answered there: 256 words and the addresses of 20 peers
)

// errLong is a message of the index that is longer than what it may be.
var errLong = errors.New("message of the index is too long")

// small is the host that the DHT sees: its streams carry short messages only, and it keeps no connection open for its routing table.
type small struct{ host.Host }

// ConnManager protects nobody: a routing table would keep 40 peers connected, whoever they are.
func (small) ConnManager() coreconnmgr.ConnManager { return &coreconnmgr.NullConnMgr{} }

// SetStreamHandler is the DHT's way to answer.
func (h small) SetStreamHandler(id protocol.ID, f network.StreamHandler) {
	h.Host.SetStreamHandler(id, func(s network.Stream) { f(&smallStream{Stream: s, most: maxAsk}) })
}

// NewStream is the DHT's way to ask.
func (h small) NewStream(ctx context.Context, p peer.ID, ids ...protocol.ID) (network.Stream, error) {
	s, err := h.Host.NewStream(ctx, p, ids...)
	if err != nil {
		return nil, err
	}
	return &smallStream{Stream: s, most: maxTold}, nil
}

// smallStream passes messages on, each a varint of its length and so many bytes. Read resets the stream where a message is announced that is
// over most bytes, and fails with [errLong] before the reader knows of it. For one reader at a time, like the DHT's.
type smallStream struct {
	network.Stream
	most uint64
	head []byte // of the message's length, what was not passed on yet
	left uint64 // of the message
}

func (s *smallStream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if len(s.head) == 0 && s.left == 0 {
		if err := s.next(); err != nil {
			return 0, err
		}
	}
	if len(s.head) > 0 {
		n := copy(b, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	n, err := s.Stream.Read(b[:min(uint64(len(b)), s.left)])
	s.left -= uint64(n)
	return n, err
}

// next reads a message's length.
func (s *smallStream) next() error {
	var head []byte
	for len(head) < 4 {
		var b [1]byte
		n, err := s.Stream.Read(b[:])
		if n == 0 {
			if err != nil {
				return err
			}
			continue
		}
		if head = append(head, b[0]); b[0] >= 0x80 {
			continue
		}
		size, _ := binary.Uvarint(head)
		if size > s.most {
			break
		}
		s.head, s.left = head, size
		return nil
	}
	_ = s.Reset()
	return errLong
}
