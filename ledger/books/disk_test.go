package books

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/disk/disktest"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
)

// lagging is a store that may lose its last transactions when the power goes, as a store that does not sync its writes; never one from
// between. It keeps the last of them, as many as a journal has records at least.
type lagging struct {
	kv.Engine
	synced *kv.Memory
	tail   [][]kv.Write
	fail   error
}

const lag = 3

func newLagging() *lagging { return &lagging{Engine: &kv.Memory{}, synced: &kv.Memory{}} }

func (l *lagging) Apply(ctx context.Context, writes []kv.Write) error {
	if l.fail != nil {
		return l.fail
	}
	l.tail = append(l.tail, writes)
	if len(l.tail) > lag {
		if err := l.synced.Apply(ctx, l.tail[0]); err != nil {
			return err
		}
		l.tail = l.tail[1:]
	}
	return l.Engine.Apply(ctx, writes)
}

// sync makes all of it durable, as a checkpoint of the store before the journal is cut.
func (l *lagging) sync(tb testing.TB) {
	for _, w := range l.tail {
		must(tb, l.synced.Apply(tb.Context(), w))
	}
	l.tail = nil
}

// cut is the store as it may be found after the power went.
func (l *lagging) cut(tb testing.TB, r disktest.Rand) *lagging {
	for _, w := range l.tail[:r(len(l.tail)+1)] {
		must(tb, l.synced.Apply(tb.Context(), w))
	}
	return &lagging{Engine: copyEngine(tb, l.synced), synced: l.synced}
}

// past is the life of one ledger on a simulated disk, and what was promised about it.
type past struct {
	tb        testing.TB
	dev       *identity.Device
	rand      disktest.Rand
	disk      *disktest.Disk
	store     *lagging
	next      uint64
	must      map[uint64]bool // transactions that must be there (true) or must not (false); the others may, whole
	trace     []string
	rotations int
}

func newPast(tb testing.TB, dev *identity.Device, seed uint64) *past {
	r := rand.New(rand.NewPCG(seed, 3)).IntN
	return &past{tb: tb, dev: dev, rand: r, disk: disktest.New(r), store: newLagging(), must: map[uint64]bool{}}
}

func (h *past) say(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

func (h *past) fatalf(format string, args ...any) {
	h.tb.Helper()
	for _, line := range h.trace {
		h.tb.Log(line)
	}
	h.tb.Fatalf(format, args...)
}

func (h *past) open() (*Books, error) {
	store, err := kv.Open(h.tb.Context(), h.store, schema)
	if err != nil {
		return nil, err
	}
	return Open(h.tb.Context(), Config{
		Dir: "simulated", Disk: h.disk, Store: store, Device: h.dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
}

// write commits one numbered transaction: a lane with its entry, and lease state, which belong together.
func (h *past) write(b *Books) error {
	n := h.next
	h.next++
	err := b.Update(h.tb.Context(), func(tx *Tx) error {
		o := Opening{Channel: b.Channel(identity.AccountID{1}, money.Credit), Lane: ledger.Lane{1, byte(n >> 8), byte(n)}, Rate: 1, Devices: 1, Hold: 5}
		if _, err := tx.Promise(o); err != nil {
			return err
		}
		return tx.Of(kv.Renter).Set(be8(n), make([]byte, h.rand(3000)))
	})
	switch {
	case err == nil:
		h.must[n] = true
	case !errors.Is(err, ErrUnknownOutcome):
		h.must[n] = false
	}
	h.say("write %d: %v", n, err)
	return err
}

// note writes the head note, and begins a new journal if rotate is set, as Books does every second and every 16 MiB.
func (h *past) note(b *Books, rotate bool) {
	b.leader <- struct{}{}
	defer func() { <-b.leader }()
	err := b.config.Store.View(h.tb.Context(), func(t *kv.Txn) error { return b.note(newReader(b, t)) })
	h.say("head note of %d: %v", b.seq, err)
	if err != nil || !rotate || b.ReadOnly() != nil {
		return
	}
	h.store.sync(h.tb)
	h.rotations++
	b.rotate()
	h.say("rotate at %d: %v", b.seq, b.ReadOnly())
}

// check opens the ledger on a disk without faults and looks for everything that was promised.
func (h *past) check() *Books {
	h.tb.Helper()
	h.disk.Plan(0, 0)
	h.disk.Room()
	b, err := h.open()
	if err != nil {
		h.fatalf("open: %v", err)
	}
	if err := b.ReadOnly(); err != nil {
		h.fatalf("opened: %v", err)
	}
	h.compare(b)
	return b
}

func (h *past) compare(b *Books) {
	h.tb.Helper()
	v, err := b.Verify(h.tb.Context())
	if err != nil || v.Result != ResultOK {
		h.fatalf("verify: %+v, %v", v, err)
	}
	found := uint64(0)
	err = b.View(h.tb.Context(), func(r *Reader) error {
		for n := range h.next {
			_, lane := r.Lane(ledger.Lane{1, byte(n >> 8), byte(n)})
			_, lease := r.Of(kv.Renter).Get(be8(n))
			must, sure := h.must[n]
			if (lane == nil) != (lease == nil) || sure && must != (lane == nil) {
				return fmt.Errorf("transaction %d (sure: %v, must be there: %v): %w, %w", n, sure, must, lane, lease)
			}
			h.must[n] = lane == nil // what was read once stays so
			if lane == nil {
				found++
			}
		}
		return nil
	})
	if err != nil {
		h.fatalf("%v", err)
	}
	if v.Entries != found || b.seq != found {
		h.fatalf("%d transactions found, with %d entries, at %d", found, v.Entries, b.seq)
	}
}

// crash gives what the machine finds after the power went, or after the process was killed.
func (h *past) crash(kill bool) {
	h.say("crash (killed: %v)", kill)
	if kill {
		h.disk, h.store = h.disk.Killed(), &lagging{Engine: h.store.Engine, synced: h.store.synced, tail: h.store.tail}
		return
	}
	h.disk, h.store = h.disk.Cut(), h.store.cut(h.tb, h.rand)
}

// life opens the ledger and uses it until it fails or has had enough. The disk may have a plan.
func (h *past) life(steps int) {
	b, err := h.open()
	if err != nil {
		h.say("open: %v", err)
		return
	}
	h.say("open: %d transactions, %v", b.seq, b.ReadOnly())
	if err := b.ReadOnly(); err != nil {
		h.fatalf("opened: %v", err)
	}
	for i := range steps {
		switch i % 5 {
		case 3:
			h.note(b, i%10 == 8)
		case 4:
			h.disk.Room()
		}
		err := h.write(b)
		stopped := errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrReadOnly)
		if readOnly := b.ReadOnly() != nil; stopped != readOnly {
			h.fatalf("write: %v, but read-only: %v", err, readOnly)
		}
		if stopped {
			if err := h.write(b); !errors.Is(err, ErrReadOnly) {
				h.fatalf("written by a ledger that is read-only: %v", err)
			}
			return
		}
	}
	if h.rand(2) == 0 {
		h.say("close: %v", b.Close())
	}
}

// Whatever call of the disk goes wrong, in whatever way, and whatever is left of what was not synced: the ledger opens again with all
// that was acknowledged, and nothing by half.
func TestEveryCallOfTheDisk(t *testing.T) {
	dev := newDevice(t)
	const steps = 12
	calls := newPast(t, dev, 0)
	calls.life(steps)
	total := calls.disk.Calls()
	if total < 30 || calls.rotations != 1 {
		t.Fatalf("the history makes %d calls and rotates %d times", total, calls.rotations)
	}
	for _, kind := range []disktest.Kind{disktest.Off, disktest.Fail, disktest.Full} {
		for at := range total {
			for _, kill := range []bool{false, true} {
				h := newPast(t, dev, uint64(at))
				h.say("kind %d at call %d", kind, at)
				h.disk.Plan(at, kind)
				h.life(steps)
				h.crash(kill)
				b := h.check()
				if err := h.write(b); err != nil {
					h.fatalf("written after the crash: %v", err)
				}
				h.crash(false)
				h.check()
			}
		}
	}
}

// Random histories of several lives, each with its own fault, also while the ledger is opened after the one before.
func TestDiskHistories(t *testing.T) {
	dev := newDevice(t)
	rapid.Check(t, func(rt *rapid.T) {
		h := newPast(t, dev, rapid.Uint64().Draw(rt, "seed"))
		for range rapid.IntRange(1, 4).Draw(rt, "lives") {
			kind := disktest.Kind(rapid.IntRange(0, 3).Draw(rt, "kind"))
			h.disk.Plan(rapid.IntRange(0, 80).Draw(rt, "at"), kind)
			h.life(rapid.IntRange(0, 25).Draw(rt, "steps"))
			h.crash(rapid.Bool().Draw(rt, "kill"))
			if rapid.Bool().Draw(rt, "look") {
				h.check()
				h.crash(rapid.Bool().Draw(rt, "kill again"))
			}
		}
		b := h.check()
		if h.rotations > 1 {
			return
		}
		// The journals alone give the same.
		must(t, b.Close())
		h.store = newLagging()
		h.check()
	})
}
