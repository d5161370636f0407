package books

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// testLimits are wide enough that tests of other things never meet them.
var testLimits = map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1_000_000, StrangersTotal: 10_000_000, KnownPercent: 50, KnownCap: 1_000_000}}

var schema = kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}

// party is one account with its ledger.
type party struct {
	*Books
	tb     testing.TB
	dev    *identity.Device
	dir    string
	engine kv.Engine
	store  *kv.Store

	records map[ledger.Lane]Terms // what signed records of another wing say, for tests of restores
}

// attempt is one of the many cases of a test: what it opened is closed and removed at its end, and not only at that of the test.
type attempt struct {
	testing.TB
	dir   string
	dirs  int
	close []func()
}

// newAttempt begins a case; end ends it.
func newAttempt(tb testing.TB) (a *attempt, end func()) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "attempt")
	must(tb, err)
	a = &attempt{TB: tb, dir: dir}
	return a, func() {
		for _, f := range slices.Backward(a.close) {
			f()
		}
		must(tb, os.RemoveAll(dir))
	}
}

// Cleanup calls f at the end of the case.
func (a *attempt) Cleanup(f func()) { a.close = append(a.close, f) }

// TempDir is a new folder.
func (a *attempt) TempDir() string {
	a.dirs++
	dir := filepath.Join(a.dir, strconv.Itoa(a.dirs))
	must(a.TB, os.Mkdir(dir, 0o700))
	return dir
}

func newDevice(tb testing.TB) *identity.Device {
	tb.Helper()
	_, _, dev, err := identity.Generate()
	must(tb, err)
	return dev
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// newParty opens a fresh ledger over a store in memory.
func newParty(tb testing.TB) *party {
	tb.Helper()
	return openParty(tb, newDevice(tb), &kv.Memory{}, filepath.Join(tb.TempDir(), "ledger"), testLimits)
}

// openParty opens the ledger in dir over engine.
func openParty(tb testing.TB, dev *identity.Device, engine kv.Engine, dir string, limits map[money.Unit]ledger.Limits) *party {
	tb.Helper()
	store, err := kv.Open(tb.Context(), engine, schema)
	must(tb, err)
	b, err := Open(tb.Context(), Config{
		Dir: dir, Store: store, Device: dev, Limits: limits, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	must(tb, err)
	p := &party{Books: b, tb: tb, dev: dev, dir: dir, engine: engine, store: store}
	tb.Cleanup(func() { b.Close() })
	return p
}

// reopen opens the ledger again without closing it, as after a crash: over the same store, or a fresh one if fresh is set.
func (p *party) reopen(fresh bool) *party {
	p.tb.Helper()
	dir := p.tb.(interface{ TempDir() string }).TempDir()
	must(p.tb, os.CopyFS(dir, os.DirFS(p.dir)))
	engine := kv.Engine(&kv.Memory{})
	if !fresh {
		engine = copyEngine(p.tb, p.engine)
	}
	return openParty(p.tb, p.dev, engine, dir, p.Books.limits)
}

// copyEngine copies what an engine holds.
func copyEngine(tb testing.TB, from kv.Engine) *kv.Memory {
	tb.Helper()
	to := &kv.Memory{}
	var writes []kv.Write
	must(tb, from.View(tb.Context(), func(r kv.Reader) error {
		for p, err := range r.Iterate(nil, nil) {
			if err != nil {
				return err
			}
			writes = append(writes, kv.Write{Key: p.Key, Value: p.Value})
		}
		return nil
	}))
	must(tb, to.Apply(tb.Context(), writes))
	return to
}

func (p *party) update(f func(*Tx) error) {
	p.tb.Helper()
	must(p.tb, p.Update(p.tb.Context(), f))
}

func (p *party) view(f func(*Reader) error) {
	p.tb.Helper()
	must(p.tb, p.View(p.tb.Context(), f))
}

// verified checks that Verify gives the result.
func (p *party) verified(want string) {
	p.tb.Helper()
	v, err := p.Verify(p.tb.Context())
	must(p.tb, err)
	if v.Result != want {
		p.tb.Fatalf("verify: %+v, want %s", v, want)
	}
}

func (p *party) lane(id ledger.Lane) (l Lane) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) {
		l, err = r.Lane(id)
		return err
	})
	return l
}

func (p *party) account(role ledger.Role, peer *party) (a Account) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) {
		a, err = r.Account(role, money.Credit, peer.Self())
		return err
	})
	return a
}

func (p *party) size() (n uint64) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) {
		n, err = r.Size()
		return err
	})
	return n
}

// pairOf is a renter and a provider that know each other's delegations.
type pairOf struct{ renter, provider *party }

func newPair(tb testing.TB) pairOf {
	tb.Helper()
	p := pairOf{renter: newParty(tb), provider: newParty(tb)}
	p.meet()
	return p
}

func (p pairOf) meet() {
	for _, two := range [][2]*party{{p.renter, p.provider}, {p.provider, p.renter}} {
		two[0].update(func(t *Tx) error {
			_, _, err := t.KeepDelegation(two[1].dev.Delegation())
			return err
		})
	}
}

const perMs = 3_600_000 // micro-units per device-hour: one per millisecond

func (p pairOf) opening(lane byte, hold money.Micro) Opening {
	return Opening{Channel: p.renter.Channel(p.provider.Self(), money.Credit), Lane: ledger.Lane{lane}, Rate: perMs, Devices: 1, Hold: hold}
}

// sell opens a lane on both sides.
func (p pairOf) sell(lane byte, hold money.Micro) ledger.Lane {
	p.renter.tb.Helper()
	o := p.opening(lane, hold)
	must(p.renter.tb, p.trySell(o))
	return o.Lane
}

func (p pairOf) trySell(o Opening) error {
	p.renter.tb.Helper()
	var first []byte
	p.renter.update(func(t *Tx) (err error) {
		first, err = t.Promise(o)
		return err
	})
	return p.provider.Update(p.provider.tb.Context(), func(t *Tx) error {
		_, err := t.OpenLane(o, first, p.renter.dev.Delegation())
		return err
	})
}

// promise signs a voucher on the renter's side only.
func (p pairOf) promise(lane ledger.Lane, amount money.Micro) (raw []byte) {
	p.renter.tb.Helper()
	p.renter.update(func(t *Tx) (err error) {
		raw, err = t.SignVoucher(lane, amount, []meter.Segment{{Rate: perMs, Devices: 1, Ms: uint64(amount)}})
		return err
	})
	return raw
}

// deliver takes a voucher on the provider's side.
func (p pairOf) deliver(raw []byte) (a Accepted, err error) {
	err = p.provider.Update(p.provider.tb.Context(), func(t *Tx) (err error) {
		a, err = t.AcceptVoucher(raw, wire.Hash{1})
		return err
	})
	return a, err
}

// pay signs, delivers and receipts a voucher.
func (p pairOf) pay(lane ledger.Lane, amount money.Micro) Accepted {
	p.renter.tb.Helper()
	a, err := p.deliver(p.promise(lane, amount))
	must(p.renter.tb, err)
	p.renter.update(func(t *Tx) error {
		_, err := t.RecordReceipt(a.Receipt)
		return err
	})
	return a
}

// close ends a lane on both sides.
func (p pairOf) close(lane ledger.Lane, final money.Micro) {
	p.renter.tb.Helper()
	for _, side := range []*party{p.renter, p.provider} {
		side.update(func(t *Tx) error {
			_, err := t.CloseLane(lane, final)
			return err
		})
	}
}

// settle proposes on one side and signs on the other.
func (p pairOf) settle(from, to *party, amount money.Micro, reference string) wire.Hash {
	from.tb.Helper()
	id, proposal, counter := wire.Hash{}, []byte(nil), []byte(nil)
	from.update(func(t *Tx) (err error) {
		id, proposal, err = t.Propose(Payment{
			Channel: p.renter.Channel(p.provider.Self(), money.Credit), Amount: amount, Method: "manual", Reference: reference,
		})
		return err
	})
	to.update(func(t *Tx) (err error) {
		if _, _, err = t.RecordProposal(proposal); err != nil {
			return err
		}
		counter, err = t.Countersign(id)
		return err
	})
	from.update(func(t *Tx) error {
		_, err := t.RecordCounter(counter)
		return err
	})
	return id
}

// equal checks that both sides have the same amounts, and that both ledgers verify.
func (p pairOf) equal() {
	tb := p.renter.tb
	tb.Helper()
	a, b := p.renter.account(ledger.AsRenter, p.provider), p.provider.account(ledger.AsProvider, p.renter)
	if a.Owed != b.Owed || a.Settled != b.Settled {
		tb.Fatalf("renter: %+v, provider: %+v", a, b)
	}
	p.renter.verified(ResultOK)
	p.provider.verified(ResultOK)
}

func TestFirstLight(t *testing.T) {
	p := newPair(t)
	lane := p.sell(1, 5000)
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Open != 5000 || got.Owed != 0 {
		t.Fatalf("after the sale: %+v", got)
	}
	first := p.pay(lane, 3000)
	if first.Added != 3000 || first.Lane.HoldLeft != 2000 {
		t.Fatalf("first voucher: %+v", first)
	}
	p.pay(lane, 7000)
	p.close(lane, 7000)
	for _, c := range []struct {
		side *party
		role ledger.Role
		peer *party
	}{{p.provider, ledger.AsProvider, p.renter}, {p.renter, ledger.AsRenter, p.provider}} {
		if got := c.side.account(c.role, c.peer); got.Owed != 7000 || got.Open != 0 {
			t.Fatalf("%s: %+v", c.role, got)
		}
	}
	p.settle(p.renter, p.provider, 7000, "transfer 1")
	p.equal()
	if got := p.provider.account(ledger.AsProvider, p.renter); got.Owed != 0 || got.Settled != 7000 {
		t.Fatalf("after settling: %+v", got)
	}
	p.provider.view(func(r *Reader) error {
		s, err := r.ShowLane(lane)
		if err != nil || s.Amount != "0.007" || len(s.Signed) != 2 || !s.Settled || s.Receipt == "" || len(s.Entries) != 3 {
			t.Errorf("%+v, %v", s, err)
		}
		l, err := r.ShowLedger()
		if err != nil || len(l.Balances) != 1 || l.Balances[0].Settled != "0.007" || l.Balances[0].OwedToMe != "0" {
			t.Errorf("%+v, %v", l, err)
		}
		list, err := r.ShowEntries(0, 100)
		if err != nil || len(list) != 4 || list[1].Amount != "0.003" {
			t.Errorf("%+v, %v", list, err)
		}
		st, err := r.ShowSettlements()
		if err != nil || len(st) != 1 || st[0].State != "signed" || st[0].ByMe {
			t.Errorf("%+v, %v", st, err)
		}
		return nil
	})
	for _, side := range []*party{p.renter, p.provider} {
		before := side.size()
		for _, fresh := range []bool{true, false} {
			again := side.reopen(fresh)
			if again.size() != before || again.ReadOnly() != nil {
				t.Fatalf("reopened (fresh store: %v): %d entries of %d, %v", fresh, again.size(), before, again.ReadOnly())
			}
			again.verified(ResultOK)
		}
	}
}

func TestFilesArePrivate(t *testing.T) {
	p := newParty(t)
	p.update(func(tx *Tx) error { return tx.Of(kv.Provider).Set([]byte("k"), []byte("v")) })
	for _, name := range []string{journalName, headName} {
		info, err := os.Stat(filepath.Join(p.dir, name))
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
}
