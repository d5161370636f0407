package libp2p

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// BenchmarkStream sends 1 MiB writes one way, over our stream and over libp2p's own on the same connection.
func BenchmarkStream(b *testing.B) {
	for _, transport := range []string{"tcp", "quic"} {
		var nets [2]*Network
		for i := range nets {
			_, _, dev, err := identity.Generate()
			if err != nil {
				b.Fatal(err)
			}
			if nets[i], err = New(dev, Local("bench"), nil, slog.New(slog.DiscardHandler)); err != nil {
				b.Fatal(err)
			}
			defer nets[i].Close()
		}
		to := p2p.PeerAddr{Peer: nets[1].Self()}
		for _, a := range nets[1].Addrs() {
			if strings.Contains(a, transport) {
				to.Addrs = append(to.Addrs, a)
			}
		}
		if err := nets[0].Connect(b.Context(), to); err != nil {
			b.Fatal(err)
		}
		nets[1].Handle("/ours", p2p.Limits{}, func(_ context.Context, s p2p.Stream) error {
			_, err := io.Copy(io.Discard, s)
			return err
		})
		nets[1].host.SetStreamHandler("/raw", func(s network.Stream) {
			_, _ = io.Copy(io.Discard, s)
			s.Close()
		})
		b.Run(transport+"/ours", func(b *testing.B) {
			s, err := nets[0].Open(b.Context(), to.Peer, "/ours")
			if err != nil {
				b.Fatal(err)
			}
			pump(b, s)
		})
		b.Run(transport+"/libp2p", func(b *testing.B) {
			s, err := nets[0].host.NewStream(b.Context(), peer.ID(to.Peer.Libp2p()), "/raw")
			if err != nil {
				b.Fatal(err)
			}
			pump(b, s)
		})
	}
}

// pump writes until the benchmark is over and waits for the reader's end.
func pump(b *testing.B, s interface {
	io.ReadWriter
	CloseWrite() error
	Close() error
},
) {
	b.Helper()
	defer s.Close()
	data := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := s.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.CloseWrite(); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // the contract says ==
		b.Fatal(err)
	}
}
