package settle_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/rail"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
)

// lives is a renter and a provider whose programs can be ended and started again: their ledgers are in folders, and nothing else stays.
type lives struct {
	t                *testing.T
	dir              string
	net              *p2ptest.Net
	renter, provider side
}

// deviceIn gives the device whose key lies in a folder; it is made at first.
func deviceIn(t *testing.T, dir string) *identity.Device {
	t.Helper()
	name := filepath.Join(dir, "device.hex")
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(nil)
		must(t, err)
		text = []byte(hex.EncodeToString(key.Seed()))
		must(t, errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(name, text, 0o600)))
	} else {
		must(t, err)
	}
	seed, err := hex.DecodeString(string(text))
	must(t, err)
	key := ed25519.NewKeyFromSeed(seed)
	raw, err := identity.Delegate(key, identity.PeerID(key.Public().(ed25519.PublicKey)), 1, identity.AllPowers, identity.DefaultCap)
	must(t, err)
	dev, err := identity.NewDevice(key, raw)
	must(t, err)
	return dev
}

func (l *lives) open(name string) side {
	l.t.Helper()
	dir := filepath.Join(l.dir, name)
	dev := deviceIn(l.t, dir)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(l.t.Context(), &kv.Memory{}, schema)
	must(l.t, err)
	b, err := books.Open(l.t.Context(), books.Config{
		Dir: filepath.Join(dir, "ledger"), Store: store, Device: dev, Log: slog.New(slog.DiscardHandler),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 30, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
	})
	must(l.t, err)
	node := l.net.Join(dev)
	s, err := settle.New(settle.Config{Network: node, Protocol: protocol, Books: b})
	must(l.t, err)
	node.Handle(protocol, settle.Limits(), s.Handler())
	return side{Service: s, books: b, dev: dev, net: node}
}

// start opens both from their folders.
func start(t *testing.T, dir string) *lives {
	t.Helper()
	l := &lives{t: t, dir: dir, net: p2ptest.NewNet(t)}
	l.renter, l.provider = l.open("renter"), l.open("provider")
	l.net.Mesh()
	return l
}

func (l *lives) close() {
	for _, s := range []side{l.renter, l.provider} {
		s.books.Close()
		s.net.(*p2ptest.Node).Close()
	}
}

// owes has the renter owe for one lease that has ended, before anything is paid.
func owes(t *testing.T, dir string) {
	t.Helper()
	l := start(t, dir)
	rent(t, l.renter, l.provider, 1, 1000, 14)
	l.close()
}

// look lets both programs look after payments a few times, and reports whether both have signed.
func (l *lives) look(ctx context.Context, asRenter, asProvider settle.Rail) bool {
	l.t.Helper()
	make := func(s side, role ledger.Role, r settle.Rail) *settle.Billing {
		b, err := settle.NewBilling(settle.BillingConfig{
			Network: s.net, Books: s.books, Settle: s.Service, Claims: s.claims(l.t), Role: role, Rail: r, Methods: []string{"bank"},
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		must(l.t, err)
		return b
	}
	renter, provider := make(l.renter, ledger.AsRenter, asRenter), make(l.provider, ledger.AsProvider, asProvider)
	for range 4 { // a crash shows as an error of the ledger
		if provider.Look(ctx, l.renter.peerOf) != nil || renter.Look(ctx, l.provider.peerOf) != nil {
			return false
		}
	}
	for _, s := range []side{l.renter, l.provider} {
		signed := false
		err := s.books.View(ctx, func(r *books.Reader) error {
			list, err := r.ShowSettlements()
			for _, v := range list {
				signed = signed || v.State == "signed"
			}
			return err
		})
		if err != nil || !signed {
			return false
		}
	}
	return true
}

// dying is a rail of a program that dies before or after a run of it.
type dying struct {
	settle.Rail
	left  *int // runs to live
	after bool
	die   func()
}

func (d dying) Do(ctx context.Context, r rail.Request) (rail.Answer, error) {
	*d.left--
	if *d.left == 0 && !d.after {
		d.die()
		return rail.Answer{}, errKilled
	}
	a, err := d.Rail.Do(ctx, r)
	if *d.left == 0 {
		d.die()
	}
	return a, err
}

// A program that dies at any run of the hook, before it or between its answer and the signature, asks for no second invoice, pays nothing
// twice and loses nothing.
func TestPaymentsOverCrashes(t *testing.T) {
	for n, all := 1, false; !all; n++ { // until it is never run so often
		for _, after := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				dir, b, left, deaths := t.TempDir(), newBank(), n, 0
				owes(t, dir)
				done := false
				for range 12 {
					l := start(t, dir)
					die := func() {
						deaths++
						l.renter.books.Close()
						l.provider.books.Close()
					}
					r := dying{b, &left, after, die}
					done = l.look(t.Context(), r, r)
					if done {
						same(t, l.renter, l.provider, 0, 1000)
					}
					l.close()
					time.Sleep(time.Hour)
					synctest.Wait()
					if done {
						break
					}
				}
				invoices, payments, paid := b.made("INV-1")
				all = deaths == 0
				if !done || invoices != 1 || payments != 1 || paid != "0.001" || deaths == 0 && n < 4 {
					t.Errorf("died %d times at run %d (after it: %v): done %v, %d invoices, %d payments", deaths, n, after, done, invoices, payments)
				}
			})
		}
	}
}

// payingDir names the folder in which this test's own program, started again, pays until it is killed.
const payingDir = "GPUFAIR_TEST_PAYING_DIR"

// hook is the program for payments of the children. It makes invoices and payments as folders, so that a second one would show, and stops in
// the middle when it is told to.
const hook = `#!/bin/sh
dir=$1
read -r line
field() { printf '%s' "$line" | sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'; }
action=$(field action) key=$(field key) reference=$(field reference)
stop() { if rm "$dir/arm/$action-$1" 2>/dev/null; then touch "$dir/now"; sleep 30; fi; }
stop before
case $action in
invoice)
	mkdir -p "$dir/invoices/$key"
	answer='{"reference":"INV-'$(printf %.8s "$key")'","pay":"account 7"}' ;;
pay)
	mkdir -p "$dir/payments/$reference-$key"
	answer='{"state":"paid"}' ;;
check)
	if ls "$dir/payments" | grep -q "^$reference-"; then answer='{"state":"paid","amount":"'$(field amount)'"}'; else answer='{"state":"open"}'; fi ;;
esac
stop after
touch "$dir/answers"
echo "$answer"
`

// TestPayingChild is the program that [TestPaymentsKilled] kills; by itself it does nothing.
func TestPayingChild(t *testing.T) {
	dir := os.Getenv(payingDir)
	if dir == "" {
		return
	}
	l := start(t, dir)
	defer l.close()
	c := rail.Command{Args: []string{filepath.Join(dir, "bank", "hook"), filepath.Join(dir, "bank")}}
	if l.look(t.Context(), c, c) {
		same(t, l.renter, l.provider, 0, 1000)
		fmt.Println("paid")
	}
}

// A process that is killed with SIGKILL while the hook runs, or right after its answer, goes on where it was: one invoice, one payment, both
// signatures.
func TestPaymentsKilled(t *testing.T) {
	for _, arm := range []string{"invoice-before", "invoice-after", "pay-before", "pay-after", "check-after", ""} {
		dir, err := os.MkdirTemp("", "pay") // the hook's user must reach it
		must(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		owes(t, dir)
		bank := filepath.Join(dir, "bank")
		must(t, os.Chmod(dir, 0o711))
		for _, d := range []string{"", "arm", "invoices", "payments"} {
			must(t, errors.Join(os.MkdirAll(filepath.Join(bank, d), 0o755), os.Chmod(filepath.Join(bank, d), 0o777)))
		}
		must(t, os.WriteFile(filepath.Join(bank, "hook"), []byte(hook), 0o755))
		if arm != "" {
			must(t, os.WriteFile(filepath.Join(bank, "arm", arm), nil, 0o644))
		}
		done, killed := false, 0
		for lives := 0; lives < 20 && !done; lives++ {
			done = payingChild(t, dir, func() bool {
				name, wait := "now", time.Duration(0)
				if arm == "" && lives < 6 { // any time after an answer
					name, wait = "answers", rand.N(8*time.Millisecond)
				}
				if os.Remove(filepath.Join(bank, name)) != nil {
					return false
				}
				time.Sleep(wait)
				killed++
				return true
			})
		}
		invoices, err1 := os.ReadDir(filepath.Join(bank, "invoices"))
		payments, err2 := os.ReadDir(filepath.Join(bank, "payments"))
		must(t, errors.Join(err1, err2))
		if !done || killed == 0 || len(invoices) != 1 || len(payments) != 1 {
			t.Errorf("%q: killed %d times, done %v, %d invoices, %d payments", arm, killed, done, len(invoices), len(payments))
		}
	}
}

// payingChild runs the program until it ends or now says that it is to be killed, and reports whether everything is paid.
func payingChild(t *testing.T, dir string, now func() bool) (done bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestPayingChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), payingDir+"="+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			done = done || strings.TrimSpace(lines.Text()) == "paid"
		}
		close(ended)
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			_ = cmd.Wait() // it may have been killed
			return done
		case <-tick.C:
			if now() {
				must(t, cmd.Process.Kill())
			}
		}
	}
}
