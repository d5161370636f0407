package p2ptest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Loopback is 127.0.0.1 with a port that is free for TCP and UDP, for what is stopped and started at the same address. The port lies below
// those that systems give to port 0 and to outgoing connections (from 32768 on Linux, from 49152 elsewhere), since one of these can be taken
// by any program in between.
func Loopback(t testing.TB) string {
	t.Helper()
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000))
		l, err := net.Listen("tcp", at)
		if err != nil {
			continue
		}
		u, err := net.ListenPacket("udp", at)
		if cerr := l.Close(); cerr != nil {
			t.Fatal(cerr)
		}
		if err != nil {
			continue
		}
		if err := u.Close(); err != nil {
			t.Fatal(err)
		}
		return at
	}
	t.Fatal("no port is free for TCP and UDP")
	return ""
}
