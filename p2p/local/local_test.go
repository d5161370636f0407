package local_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/p2p/local"
)

// A daemon that is killed while a request waits for it does not run: whoever starts daemons on demand starts another.
func TestKilledDaemon(t *testing.T) {
	dir, err := os.MkdirTemp("", "gf") // short: a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		l.Close()
		if err == nil {
			c.Close() // unread: a reset, or an end of the stream
		}
	}()
	for _, what := range []string{"ends before it answers", "is gone"} {
		if err := local.NewClient(l.Addr().String()).Get(t.Context(), "/status", nil); !errors.Is(err, local.ErrNotRunning) {
			t.Errorf("a daemon that %s: %v", what, err)
		}
	}
	<-done
}
