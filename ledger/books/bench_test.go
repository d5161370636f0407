package books

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var benchEntries = flag.Int("books.entries", 20_000, "entries of the ledger that BenchmarkVerify checks; 1000000 is what the target names, and takes some minutes to make")

// benchParty is a ledger over the real store, with limits and batches as a daemon has them.
func benchParty(b *testing.B) *party {
	b.Helper()
	dir := b.TempDir()
	db := openBadger(b, filepath.Join(dir, "store"))
	p := openParty(b, newDevice(b), db, filepath.Join(dir, "ledger"), map[money.Unit]ledger.Limits{
		money.Credit: {Stranger: money.Max / 4, StrangersTotal: money.Max / 4, KnownPercent: 50},
	})
	b.Cleanup(func() {
		must(b, p.Close())
		must(b, db.Close())
	})
	return p
}

func benchPair(b *testing.B) pairOf {
	p := pairOf{renter: benchParty(b), provider: benchParty(b)}
	p.meet()
	return p
}

// fsyncRate is how often the disk syncs an append of 4 KiB in a second, alone and one after the other.
func fsyncRate(b *testing.B) float64 {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
	must(b, err)
	defer f.Close()
	const n = 200
	start := time.Now()
	for range n {
		_, err := f.Write(make([]byte, 4096))
		must(b, err)
		must(b, f.Sync())
	}
	return n / time.Since(start).Seconds()
}

// reportTicks says how many ticks a second became durable, and how much that is of the disk's rate of syncs.
func reportTicks(b *testing.B, ticks int, fsyncs float64) {
	rate := float64(ticks) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "ticks/s")
	b.ReportMetric(fsyncs, "fsyncs/s")
	b.ReportMetric(100*rate/fsyncs, "%_of_fsyncs")
}

func laneOf(i int) ledger.Lane { return ledger.Lane{1, byte(i >> 16), byte(i >> 8), byte(i)} }

func (p pairOf) openLanes(n int) {
	for i := range n {
		o := p.opening(1, 0)
		o.Lane = laneOf(i)
		must(p.renter.tb, p.trySell(o))
	}
}

// lanes is how many tick at once in BenchmarkTick.
const benchLanes = 256

// BenchmarkTick measures ticks of 256 lanes at once, each made durable: at the renter a voucher is signed, at the provider the meter is
// kept and the voucher judged and receipted.
func BenchmarkTick(b *testing.B) {
	each := func(b *testing.B, tick func(lane ledger.Lane, n int)) {
		fsyncs := fsyncRate(b)
		var lanes sync.WaitGroup
		b.ResetTimer()
		for lane := range benchLanes {
			lanes.Go(func() {
				for n := lane; n < b.N; n += benchLanes {
					tick(laneOf(lane), n/benchLanes)
				}
			})
		}
		lanes.Wait()
		reportTicks(b, b.N, fsyncs)
	}
	sign := func(p pairOf, lane ledger.Lane, n int) (raw []byte) {
		amount := money.Micro(n + 1)
		p.renter.update(func(tx *Tx) (err error) {
			raw, err = tx.SignVoucher(lane, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}})
			return err
		})
		return raw
	}
	b.Run("renter", func(b *testing.B) {
		p := benchPair(b)
		p.openLanes(benchLanes)
		each(b, func(lane ledger.Lane, n int) { sign(p, lane, n) })
	})
	b.Run("provider", func(b *testing.B) {
		p := benchPair(b)
		p.openLanes(benchLanes)
		signed := make([][]byte, b.N)
		for n := range signed {
			signed[n] = sign(p, laneOf(n%benchLanes), n/benchLanes)
		}
		each(b, func(lane ledger.Lane, n int) {
			raw := signed[n*benchLanes+int(lane[2])<<8+int(lane[3])]
			p.provider.update(func(tx *Tx) error {
				if err := tx.Meter(lane, money.Micro(n+1)); err != nil {
					return err
				}
				_, err := tx.AcceptVoucher(raw, wire.Hash{1})
				return err
			})
		})
	})
}

// BenchmarkThousandLanesTick measures one tick of 1,000 lanes of a provider: from the first call to the last answer, all durable.
func BenchmarkThousandLanesTick(b *testing.B) {
	const lanes = 1000
	p := benchPair(b)
	p.openLanes(lanes)
	fsyncs := fsyncRate(b)
	before := p.provider.seq
	for n := 0; b.Loop(); n++ {
		var all sync.WaitGroup
		for i := range lanes {
			all.Go(func() {
				p.provider.update(func(tx *Tx) error { return tx.Meter(laneOf(i), money.Micro(n+1)) })
			})
		}
		all.Wait()
	}
	reportTicks(b, b.N*lanes, fsyncs)
	b.ReportMetric(float64(p.provider.seq-before)/float64(b.N), "commits/op")
}

// BenchmarkVerify measures the check of a whole ledger of a provider beside the bare checks of as many signatures.
func BenchmarkVerify(b *testing.B) {
	p := pairOf{renter: benchParty(b), provider: newParty(b)}
	p.meet()
	const lanes = 200
	p.openLanes(lanes)
	r := p.renter
	for n := 0; n < *benchEntries; n += lanes { // a few lanes in each transaction
		for at := 0; at < lanes; at += 50 {
			r.update(func(tx *Tx) error {
				for i := at; i < at+50; i++ {
					amount := money.Micro(n + 1)
					if _, err := tx.SignVoucher(laneOf(i), amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}}); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	var checked uint64
	var took, bare, bareAll time.Duration
	var spent, spentBare float64
	for b.Loop() { // side by side, since others want the machine, too
		at, start := processorSeconds(b), time.Now()
		v, err := r.Verify(b.Context())
		must(b, err)
		if v.Result != ResultOK {
			b.Fatalf("%+v", v)
		}
		checked, took, spent = v.Checked, took+time.Since(start), spent+processorSeconds(b)-at
		b.StopTimer()
		at = processorSeconds(b)
		bare += signatures(b, r, checked, 1)
		spentBare += processorSeconds(b) - at
		bareAll += signatures(b, r, checked, runtime.GOMAXPROCS(0))
		b.StartTimer()
	}
	b.ReportMetric(float64(r.size()), "entries")
	b.ReportMetric(float64(checked), "signatures")
	b.ReportMetric(took.Seconds()/float64(b.N), "s/verify")
	b.ReportMetric(bare.Seconds()/float64(b.N), "s/signatures")
	b.ReportMetric(took.Seconds()/bare.Seconds(), "x_signatures")
	b.ReportMetric(took.Seconds()/bareAll.Seconds(), "x_signatures_on_all_cores")
	b.ReportMetric(spent/spentBare, "x_signatures_in_processor_time")
}

// signatures is how long the bare checks of n signatures of the ledger's vouchers take.
func signatures(b *testing.B, p *party, n uint64, cores int) time.Duration {
	var raws [][]byte
	p.view(func(r *Reader) error {
		for pair, err := range r.own.Iterate([]byte("v/"), nil) {
			if err != nil {
				return err
			}
			if raws = append(raws, pair.Value); len(raws) == 1000 {
				break
			}
		}
		return nil
	})
	var all sync.WaitGroup
	start := time.Now()
	for c := range cores {
		all.Go(func() {
			for i := c; i < int(n); i += cores {
				if _, err := voucher.Open(raws[i%len(raws)]); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	return time.Since(start)
}

// BenchmarkStore measures what an hour of a lease leaves on the disks of both sides: a tick every 10 s, each with its voucher and its
// receipt, in the store after compaction and in the journal.
func BenchmarkStore(b *testing.B) {
	const ticks = 360
	var store, journal [2]int64
	for b.Loop() {
		dir := b.TempDir()
		var p pairOf
		var engines []kv.Engine
		for i, side := range []**party{&p.renter, &p.provider} {
			db := openBadger(b, filepath.Join(dir, fmt.Sprint("store", i)))
			engines = append(engines, db)
			*side = openParty(b, newDevice(b), db, filepath.Join(dir, fmt.Sprint("ledger", i)), testLimits)
		}
		p.meet()
		lane := p.sell(1, 0)
		for i := range money.Micro(ticks) {
			p.provider.update(func(tx *Tx) error { return tx.Meter(lane, i+1) })
			p.pay(lane, i+1)
		}
		p.close(lane, ticks)
		for i, side := range []*party{p.renter, p.provider} {
			must(b, side.Close())
			must(b, engines[i].Close())
			store[i] = used(b, filepath.Join(dir, fmt.Sprint("store", i), "*.sst")) + used(b, filepath.Join(dir, fmt.Sprint("store", i), "*.vlog"))
			journal[i] = used(b, filepath.Join(dir, fmt.Sprint("ledger", i), "journal*"))
		}
	}
	for i, name := range []string{"renter", "provider"} {
		b.ReportMetric(float64(store[i])/1024, name+"_store_KiB/h")
		b.ReportMetric(float64(journal[i])/1024, name+"_journal_KiB/h")
	}
}

// used is the length of files.
func used(b *testing.B, pattern string) (n int64) {
	names, err := filepath.Glob(pattern)
	must(b, err)
	for _, name := range names {
		st, err := os.Stat(name)
		must(b, err)
		n += st.Size()
	}
	return n
}

// BenchmarkStrangers measures the question whether a renter's credit allows more, at a provider that knows many accounts, of which a
// hundredth owe something now.
func BenchmarkStrangers(b *testing.B) {
	for _, accounts := range []int{1, 10_000} {
		b.Run(fmt.Sprint(accounts), func(b *testing.B) {
			p := pairOf{renter: newParty(b), provider: newParty(b)}
			p.meet()
			for i := range accounts {
				p.provider.update(func(tx *Tx) error {
					var a identity.AccountID
					binary.BigEndian.PutUint64(a[:], uint64(i+1))
					return tx.change(ledger.AsProvider, money.Credit, a, func(a *Account) error { a.Open = money.Micro(i % 100 / 99); return nil })
				})
			}
			for b.Loop() {
				p.provider.view(func(r *Reader) error { return r.CheckCredit(p.renter.Self(), money.Credit, 1) })
			}
		})
	}
}
