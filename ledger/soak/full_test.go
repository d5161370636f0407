//go:build linux

package soak

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufair/gpufair/ledger/kv"
)

// fill writes until there is no room for one byte more, and gives how much it wrote.
func fill(t *testing.T, dir string) (size int) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	for step := 1 << 20; step > 0; {
		n, err := f.Write(make([]byte, step))
		size += n
		if err == nil {
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		step /= 2
	}
	return size
}

// openFull opens a ledger on a full disk: that is refused in words, and nothing else happens.
func openFull(t *testing.T, dir string, p place) {
	t.Helper()
	for range 3 {
		got, err := openAny(t.Context(), p)
		if err == nil { // with the room of its ballast; somebody takes that, too
			must(t, got.close())
			fill(t, dir)
			continue
		}
		if !errors.Is(err, kv.ErrReadOnly) || !strings.Contains(err.Error(), "free some space") {
			t.Fatalf("opened on a full disk: %v", err)
		}
		return
	}
	t.Fatal("a full disk was never refused")
}

// Others fill the disk before the ledgers are made, while a provider and a renter write, and while both are down: each says so, nobody dies
// of it, nothing is lost, and writing goes on by itself once there is room.
func TestSoakFullDisk(t *testing.T) {
	n, _, done := suite(t, 3, 50)
	if n == 0 {
		return
	}
	if os.Geteuid() != 0 {
		notRun(t, "a small disk is needed, and only root can mount one")
		return
	}
	dir, small := t.TempDir(), t.TempDir()
	must(t, command("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", small))
	t.Cleanup(func() { must(t, command("umount", small)) })
	p, to := newPair(t, dir, small), newPromised()
	socket := filepath.Join(dir, "s")
	fill(t, small)
	openFull(t, small, p.provider)
	fulls := 0
	for range n {
		must(t, os.Remove(filepath.Join(small, "filler")))
		provider, renter := start(t, "provider", p.provider, socket, to), start(t, "renter", p.renter, socket, to)
		for range min(n, 2) { // the second time after room was made under the living
			to.await(100, provider, renter)
			fill(t, small)
			for before := to.noRoom(); to.noRoom() < before+workers; {
				to.await(1, provider, renter)
				provider.alive(t)
				renter.alive(t)
			}
			fulls++
			must(t, os.Remove(filepath.Join(small, "filler")))
		}
		to.await(100, provider, renter)
		fill(t, small)
		provider.kill(t)
		renter.kill(t)
		for _, side := range []place{p.provider, p.renter} {
			openFull(t, small, side)
		}
	}
	must(t, os.Remove(filepath.Join(small, "filler")))
	vouchers := p.check(t, to)
	done("rounds=%d full=%d vouchers=%d lost=0", n, fulls, vouchers)
}
