package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// fixed is an authorizer that says yes.
type fixed struct{ dst *Store }

func (f fixed) Push(context.Context, Request) (*Store, error)  { return f.dst, nil }
func (f fixed) Fetch(context.Context, Request) (Source, error) { return f.dst, nil }

// line joins two machines over one real transport on loopback.
func line(b *testing.B, transport string) (from, to *libp2p.Network) {
	b.Helper()
	var nets [2]*libp2p.Network
	for i := range nets {
		var err error
		if nets[i], err = libp2p.New(p2ptest.Device(b), libp2p.Local("bench"), nil, slog.New(slog.DiscardHandler)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { nets[i].Close() })
	}
	at := p2p.PeerAddr{Peer: nets[1].Self()}
	for _, a := range nets[1].Addrs() {
		if strings.Contains(a, transport) {
			at.Addrs = append(at.Addrs, a)
		}
	}
	if err := nets[0].Connect(b.Context(), at); err != nil {
		b.Fatal(err)
	}
	return nets[0], nets[1]
}

func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := OpenStore(b.TempDir(), 1<<30)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

// BenchmarkPush moves 64 MiB over real TCP and QUIC on loopback, as a blob (read, sent, hashed, written, synced) and beside it as a
// bare stream: the ratio is what counts, and on few cores it is the ratio of work, since both ends share them.
func BenchmarkPush(b *testing.B) {
	const size = 64 << 20
	data := noise(1, size)
	for _, transport := range []string{"tcp", "quic"} {
		from, to := line(b, transport)
		src := benchStore(b)
		h, _, err := src.PutStream(b.Context(), bytes.NewReader(data))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(transport+"/blob", func(b *testing.B) {
			b.SetBytes(size)
			dst := benchStore(b)
			to.Handle(proto, ServerLimits(), Serve(fixed{dst}))
			c := Client{Network: from, Protocol: proto, Peer: to.Self()}
			for b.Loop() {
				if err := errors.Join(c.Push(b.Context(), src, h, nil), dst.Remove(h)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(transport+"/stream", func(b *testing.B) {
			b.SetBytes(size)
			to.Handle("/bare", p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
				_, err := io.Copy(io.Discard, s)
				_, writeErr := s.Write([]byte{1})
				return errors.Join(err, writeErr)
			})
			for b.Loop() {
				if err := bare(b.Context(), from, to, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// bare sends data over a stream and waits until the other side has it.
func bare(ctx context.Context, from, to *libp2p.Network, data []byte) error {
	s, err := from.Open(ctx, to.Self(), "/bare")
	if err != nil {
		return err
	}
	defer s.Close()
	if _, err := io.Copy(s, bytes.NewReader(data)); err != nil {
		return err
	}
	if err := s.CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(s, make([]byte, 1))
	return err
}
