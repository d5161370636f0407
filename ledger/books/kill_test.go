package books

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/p2p/identity"
)

// childDir names the folder in which the test binary, started again, writes until it is killed.
const childDir = "GPUFAIR_TEST_BOOKS_DIR"

const keyName = "device.hex"

// child opens the ledger of its folder and prints each number once it is committed.
func child(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("child:", err)
			os.Exit(1)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, keyName))
	fail(err)
	seed, err := hex.DecodeString(string(b))
	fail(err)
	key := ed25519.NewKeyFromSeed(seed)
	raw, err := identity.Delegate(key, identity.PeerID(key.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
	fail(err)
	dev, err := identity.NewDevice(key, raw)
	fail(err)
	ctx := context.Background()
	store, err := kv.Open(ctx, &kv.Memory{}, schema)
	fail(err)
	books, err := Open(ctx, Config{Dir: dir, Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	fail(err)
	fail(books.ReadOnly())
	channel := books.Channel(identity.AccountID{1}, "CREDIT")
	for n := books.seq; ; n++ {
		fail(books.Update(ctx, func(tx *Tx) error {
			o := Opening{Channel: channel, Rate: 1, Devices: 1, Hold: 5}
			copy(o.Lane[:], "lane"+strconv.FormatUint(n, 10))
			if _, err := tx.Promise(o); err != nil {
				return err
			}
			return tx.Of(kv.Renter).Set(be8(n), []byte("lease"))
		}))
		fmt.Println(n)
	}
}

// Usage reported, crash before marking it, billed twice (opencomputer#276): a process that is killed at any moment finds everything that
// it had acknowledged, whole, and nothing twice.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, keyName), []byte(hex.EncodeToString(key.Seed())), 0o600))
	acknowledged := uint64(0)
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 5 + 7*round {
			if !lines.Scan() {
				t.Fatal("the child ended by itself")
			}
			n, err := strconv.ParseUint(lines.Text(), 10, 64)
			if err != nil {
				t.Fatal(lines.Text())
			}
			acknowledged = n + 1
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() { // what it printed before the kill is acknowledged, too
			if n, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				acknowledged = max(acknowledged, n+1)
			}
		}
		_ = cmd.Wait() // it was killed
	}
	raw, err := identity.Delegate(key, identity.PeerID(key.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
	must(t, err)
	dev, err := identity.NewDevice(key, raw)
	must(t, err)
	p := openParty(t, dev, &kv.Memory{}, dir, nil)
	must(t, p.ReadOnly())
	p.verified(ResultOK)
	if p.seq < acknowledged || p.size() != p.seq {
		t.Fatalf("%d acknowledged, %d transactions with %d entries found", acknowledged, p.seq, p.size())
	}
	p.view(func(r *Reader) error {
		for n := range p.seq {
			if _, err := r.Of(kv.Renter).Get(be8(n)); err != nil {
				t.Errorf("lease state %d: %v", n, err)
			}
		}
		return nil
	})
}
