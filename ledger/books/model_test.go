package books

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	flag.Parse()
	// Each check waits for some hundred syncs of the disk; `go test -rapid.checks=1000` asks for more of them.
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if !set {
		if err := flag.Set("rapid.checks", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// model drives a renter and a provider whose messages are lost, repeated and reordered, and whose machines crash.
type model struct {
	pairOf
	lanes    []ledger.Lane
	vouchers [][]byte             // ever signed, to be delivered in any order, any number of times
	finals   map[ledger.Lane]bool // ended somewhere
	refused  int                  // lanes
	counters [][]byte             // settlements signed by the provider
}

func (m *model) pick(rt *rapid.T) (ledger.Lane, bool) {
	if len(m.lanes) == 0 {
		return ledger.Lane{}, false
	}
	return rapid.SampledFrom(m.lanes).Draw(rt, "lane"), true
}

func (m *model) open(rt *rapid.T) {
	o := m.opening(byte(len(m.lanes)+m.refused+1), money.Micro(rapid.Uint64Range(0, 300).Draw(rt, "hold")))
	switch err := m.trySell(o); {
	case err == nil:
		m.lanes = append(m.lanes, o.Lane)
	case errors.Is(err, ledger.ErrCreditLimit), errors.Is(err, ledger.ErrStrangersTotal):
		m.renter.update(func(tx *Tx) error { // the order was refused
			_, err := tx.CloseLane(o.Lane, 0)
			return err
		})
		m.refused++
	default:
		rt.Fatal(err)
	}
}

func (m *model) meter(rt *rapid.T) {
	lane, ok := m.pick(rt)
	if !ok {
		return
	}
	err := m.provider.Update(context.Background(), func(tx *Tx) error {
		return tx.Meter(lane, money.Micro(rapid.Uint64Range(0, 900).Draw(rt, "metered")))
	})
	if err != nil && !errors.Is(err, ErrConflict) {
		rt.Fatal(err)
	}
}

func (m *model) sign(rt *rapid.T) {
	lane, ok := m.pick(rt)
	if !ok || m.finals[lane] {
		return
	}
	amount := m.renter.lane(lane).Amount + money.Micro(rapid.Uint64Range(0, 200).Draw(rt, "more"))
	if amount > 0 {
		m.vouchers = append(m.vouchers, m.promise(lane, amount))
	}
}

func (m *model) exposure(rt *rapid.T) int64 {
	e, err := m.provider.account(ledger.AsProvider, m.renter).Exposure()
	if err != nil {
		rt.Fatal(err)
	}
	return e
}

// deliver brings any voucher that was ever signed; whatever becomes of it, exposure grows only within the limit.
func (m *model) bring(rt *rapid.T) {
	if len(m.vouchers) == 0 {
		return
	}
	raw := rapid.SampledFrom(m.vouchers).Draw(rt, "voucher")
	before := m.exposure(rt)
	got, err := m.pairOf.deliver(raw)
	after := m.exposure(rt)
	standing := m.provider.account(ledger.AsProvider, m.renter)
	limit := int64(m.provider.Limits(money.Credit).Limit(standing.Standing))
	if after > before && after > limit || err != nil && after != before {
		rt.Fatalf("exposure went from %d to %d of %d: %v", before, after, limit, err)
	}
	if err == nil && got.Receipt != nil && rapid.Bool().Draw(rt, "receipt arrives") {
		m.renter.update(func(tx *Tx) error {
			_, err := tx.RecordReceipt(got.Receipt)
			return err
		})
	}
}

func (m *model) end(rt *rapid.T) {
	lane, ok := m.pick(rt)
	if !ok || m.finals[lane] {
		return
	}
	m.finals[lane] = true
	m.close(lane, m.provider.lane(lane).Amount+money.Micro(rapid.Uint64Range(0, 20).Draw(rt, "final")))
}

func (m *model) pay(rt *rapid.T) {
	if len(m.lanes) == 0 { // nobody pays whom it has never dealt with
		return
	}
	var id wire.Hash
	var proposal []byte
	reference := fmt.Sprint(rapid.IntRange(1, 4).Draw(rt, "invoice"))
	err := m.renter.Update(context.Background(), func(tx *Tx) (err error) {
		amount := money.Micro(rapid.Uint64Range(1, 500).Draw(rt, "paid"))
		id, proposal, err = tx.Propose(Payment{
			Channel: m.renter.Channel(m.provider.Self(), money.Credit), Amount: amount, Method: "manual", Reference: reference,
		})
		return err
	})
	if errors.Is(err, ErrPaid) {
		return
	}
	if err != nil {
		rt.Fatal(err)
	}
	var counter []byte
	err = m.provider.Update(context.Background(), func(tx *Tx) (err error) {
		if _, _, err = tx.RecordProposal(proposal); err == nil {
			counter, err = tx.Countersign(id)
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrDiffer) {
		rt.Fatal(err)
	}
	if err == nil {
		m.counters = append(m.counters, counter)
	}
}

func (m *model) counter(rt *rapid.T) {
	if len(m.counters) == 0 {
		return
	}
	c := rapid.SampledFrom(m.counters).Draw(rt, "countersigned")
	m.renter.update(func(tx *Tx) error {
		_, err := tx.RecordCounter(c)
		return err
	})
}

func (m *model) crash(rt *rapid.T) {
	fresh := rapid.Bool().Draw(rt, "store lost")
	if rapid.Bool().Draw(rt, "provider") {
		m.provider = m.provider.reopen(fresh)
	} else {
		m.renter = m.renter.reopen(fresh)
	}
}

// meetAgain delivers what is still under way: every newest voucher and every signed settlement.
func (m *model) meetAgain(rt *rapid.T) {
	for _, c := range m.counters {
		m.renter.update(func(tx *Tx) error {
			_, err := tx.RecordCounter(c)
			return err
		})
	}
	most := money.Max
	m.provider.update(func(tx *Tx) error { return tx.SetLimit(m.renter.Self(), money.Credit, &most) })
	for _, lane := range m.lanes {
		l := m.renter.lane(lane)
		if l.Seq == 0 {
			continue
		}
		var raw []byte
		m.renter.view(func(r *Reader) (err error) {
			raw, err = r.Voucher(lane, l.Seq)
			return err
		})
		if _, err := m.pairOf.deliver(raw); err != nil {
			rt.Fatal(err)
		}
	}
}

// Whatever is lost, repeated, reordered or forgotten in a crash: nobody is charged twice, the credit limit holds, both ledgers verify,
// and once the newest records have met, both sides have the same amounts.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tb, end := newAttempt(t)
		defer end()
		m := &model{pairOf: newPair(tb), finals: map[ledger.Lane]bool{}}
		m.provider.SetLimits(map[money.Unit]ledger.Limits{money.Credit: {Stranger: 800, StrangersTotal: 700, KnownPercent: 50, KnownCap: 500}})
		acts := []func(*rapid.T){m.open, m.meter, m.sign, m.bring, m.bring, m.end, m.pay, m.counter, m.crash}
		for range rapid.IntRange(5, 30).Draw(rt, "steps") {
			acts[rapid.IntRange(0, len(acts)-1).Draw(rt, "act")](rt)
		}
		m.meetAgain(rt)
		a, b := m.renter.account(ledger.AsRenter, m.provider), m.provider.account(ledger.AsProvider, m.renter)
		if a.Owed != b.Owed || a.Settled != b.Settled {
			rt.Fatalf("renter owes %d, provider is owed %d; settled %d and %d", a.Owed, b.Owed, uint64(a.Settled), uint64(b.Settled))
		}
		for _, side := range []*party{m.renter, m.provider} {
			side.verified(ResultOK)
			side.reopen(true).verified(ResultOK)
		}
	})
}

// Functions that wait at the same time share a commit, and each fails alone.
func TestGroupCommit(t *testing.T) {
	p := newParty(t)
	const n = 40
	p.leader <- struct{}{} // nobody commits yet
	errs := make(chan error, n)
	boom := errors.New("boom")
	for i := range n {
		go func() {
			defer func() {
				if r := recover(); r != nil {
					errs <- fmt.Errorf("panicked: %v", r)
				}
			}()
			errs <- p.Update(context.Background(), func(tx *Tx) error {
				if err := tx.Of(kv.Provider).Set(be8(uint64(i)), []byte("x")); err != nil {
					return err
				}
				switch i {
				case 3:
					return boom
				case 4:
					panic("at four")
				}
				return nil
			})
		}()
	}
	for queued := 0; queued < n; {
		p.mu.Lock()
		queued = len(p.queue)
		p.mu.Unlock()
	}
	before := p.seq
	<-p.leader
	failed := 0
	for range n {
		if err := <-errs; err != nil {
			failed++
			if !errors.Is(err, boom) && err.Error() != "panicked: at four" {
				t.Error(err)
			}
		}
	}
	if failed != 2 || p.seq != before+1 {
		t.Fatalf("%d failed, %d commits", failed, p.seq-before)
	}
	p.reopen(true).view(func(r *Reader) error {
		for i := range uint64(n) {
			if _, err := r.Of(kv.Provider).Get(be8(i)); (err == nil) != (i != 3 && i != 4) {
				t.Errorf("%d: %v", i, err)
			}
		}
		return nil
	})
}

// A batch that would be too large for one transaction is split, and a function too large by itself fails alone.
func TestBatchTooLarge(t *testing.T) {
	p := newParty(t)
	p.leader <- struct{}{}
	const n = 6
	errs := make(chan error, n+1)
	for i := range n {
		go func() {
			errs <- p.Update(context.Background(), func(tx *Tx) error {
				return tx.Of(kv.Provider).Set(be8(uint64(i)), make([]byte, 400<<10))
			})
		}()
	}
	go func() {
		errs <- p.Update(context.Background(), func(tx *Tx) error {
			return errors.Join(tx.Of(kv.Provider).Set([]byte("a"), make([]byte, 500<<10)), tx.Of(kv.Provider).Set([]byte("b"), make([]byte, 500<<10)),
				tx.Of(kv.Provider).Set([]byte("c"), make([]byte, 500<<10)))
		})
	}()
	for queued := 0; queued < n+1; {
		p.mu.Lock()
		queued = len(p.queue)
		p.mu.Unlock()
	}
	<-p.leader
	large := 0
	for range n + 1 {
		if err := <-errs; errors.Is(err, kv.ErrTooLarge) {
			large++
		} else if err != nil {
			t.Error(err)
		}
	}
	if large != 1 {
		t.Fatalf("%d were too large", large)
	}
	p.view(func(r *Reader) error {
		for i := range uint64(n) {
			if b, err := r.Of(kv.Provider).Get(be8(i)); err != nil || len(b) != 400<<10 {
				t.Error(i, err)
			}
		}
		return nil
	})
}

func TestUpdateWithdraws(t *testing.T) {
	p := newParty(t)
	p.leader <- struct{}{}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("went home")
	done := make(chan error)
	go func() {
		done <- p.Update(ctx, func(*Tx) error {
			t.Error("ran after it was withdrawn")
			return nil
		})
	}()
	for queued := 0; queued == 0; {
		p.mu.Lock()
		queued = len(p.queue)
		p.mu.Unlock()
	}
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Fatal(err)
	}
	<-p.leader
	p.update(func(*Tx) error { return nil })
	must(t, p.Close())
	if err := p.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}
