package provider

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// rig is a provider's agent without a network, and its renter's ledger.
type rig struct {
	t             testing.TB
	owner, renter *identity.Device
	disk          *fullDisk
	dir           string
	theirs        *books.Books // the renter's
	runtime       *fakeRuntime
	mounts        *fakeMounts
	registries    fakeRegistries
	conf          Config
	a             *Agent
	cancel        context.CancelFunc
	paying        atomic.Bool
	sales         uint8
	term          uint32
}

const rigRate = money.Rate(3_600_000) // 1,000 a second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func device(t testing.TB) *identity.Device {
	_, _, dev, err := identity.Generate()
	must(t, err)
	return dev
}

func openBooks(t testing.TB, dev *identity.Device, engine kv.Engine, dir string) *books.Books {
	t.Helper()
	store, err := kv.Open(context.Background(), engine, kv.Schema{Release: "v0", Steps: []kv.Step{{
		Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil },
	}}})
	must(t, err)
	b, err := books.Open(context.Background(), books.Config{Dir: dir, Store: store, Device: dev, Log: quiet()})
	must(t, err)
	return b
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{
		t: t, owner: device(t), renter: device(t), disk: &fullDisk{}, dir: t.TempDir(), runtime: &fakeRuntime{jobs: map[string]*fakeJob{}},
		term: 3600,
	}
	r.mounts = &fakeMounts{dir: filepath.Join(r.dir, "jobs")}
	must(t, os.Mkdir(r.mounts.dir, 0o700))
	r.theirs = openBooks(t, r.renter, &kv.Memory{}, filepath.Join(r.dir, "theirs"))
	r.conf = Config{
		Network: "t", Unit: money.Credit, Accounts: []identity.AccountID{r.renter.Account()}, Methods: []string{"manual"}, LogBytes: 1 << 20,
		Reclaim: time.Minute,
		Lots: []Lot{{
			Device: wire.Sum("", []byte("device")), Price: rigRate, MinTerm: 10 * time.Second, MaxTerm: time.Hour, Cores: []int{0},
			MemoryMiB: 64, DiskMiB: 64, Pids: 64,
		}},
	}
	r.open(filepath.Join(r.dir, "ours"))
	return r
}

// open makes the agent over the ledger in dir and starts what reconcile starts.
func (r *rig) open(dir string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	known, err := delegation.New(nil, "", r.owner)
	must(r.t, err)
	r.a = newAgent(Deps{
		Delegations: known, Device: r.owner, Books: openBooks(r.t, r.owner, r.disk, dir), Runtime: r.runtime, Jobnet: fakeNetwork{}, Mounts: r.mounts, Registries: &r.registries, Devices: fakeDevices{},
		Inbox: filepath.Join(r.dir, "inbox"), InboxBytes: 1 << 30, Init: "/init", Log: quiet(),
	}, r.conf)
	must(r.t, r.a.setLimits(r.conf))
	must(r.t, r.a.readStore(ctx))
	r.a.ctx = ctx
	r.a.sandbox = RuntimeInfo{Name: "fake"}
	for _, l := range r.conf.Lots {
		r.a.capacity.Add(l.Device)
	}
	must(r.t, r.a.reconcile(ctx))
}

// close ends the agent and its ledgers.
func (r *rig) close() {
	r.t.Helper()
	r.cancel()
	r.a.keeping.Wait()
	must(r.t, r.a.books.Close())
	must(r.t, r.theirs.Close())
}

// crash goes on with a new agent from what was durable at this moment, as after kill -9.
func (r *rig) crash() {
	r.t.Helper()
	dir := r.t.(interface{ TempDir() string }).TempDir()
	must(r.t, os.CopyFS(dir, os.DirFS(filepath.Join(r.dir, "ours"))))
	next := &fullDisk{}
	var writes []kv.Write
	must(r.t, r.disk.View(context.Background(), func(rd kv.Reader) error {
		for p, err := range rd.Iterate(nil, nil) {
			if err != nil {
				return err
			}
			writes = append(writes, kv.Write{Key: bytes.Clone(p.Key), Value: bytes.Clone(p.Value)})
		}
		return nil
	}))
	must(r.t, next.Apply(context.Background(), writes))
	r.disk.full.Store(true) // nothing of the old process reaches anything from here on
	r.cancel()
	r.a.keeping.Wait()
	must(r.t, r.a.books.Close())
	r.disk = next
	r.open(dir)
}

// sale is an order as negotiate hands it over.
func (r *rig) sale() negotiate.Sale {
	r.t.Helper()
	r.sales++
	needs := work.Needs{Kind: market.KindCPU, Devices: 1}
	hash, err := needs.Hash()
	must(r.t, err)
	accept := market.Accept{
		Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Offer: wire.Sum("", []byte("offer")),
		Provider: r.owner.Account(), Lot: 1, Quantity: 1, Rate: rigRate, Unit: money.Credit, Term: r.term,
		Nonce: wire.Sum("", []byte{r.sales}), Needs: hash, Use: r.conf.Use(),
	}
	hold, err := market.Hold(rigRate, 1, 10)
	must(r.t, err)
	var voucher []byte
	must(r.t, r.theirs.Update(context.Background(), func(tx *books.Tx) (err error) {
		voucher, err = tx.Promise(books.Opening{Channel: r.theirs.Channel(r.owner.Account(), money.Credit), Lane: ledger.Lane(accept.ID()), Rate: rigRate, Devices: 1, Hold: hold})
		return err
	}))
	accept.Voucher = identity.Hash(voucher)
	raw, err := r.renter.Seal(market.DomainAccept, accept)
	must(r.t, err)
	return negotiate.Sale{
		ID: accept.ID(), Accept: accept, AcceptRaw: raw, VoucherRaw: voucher, DelegationRaw: r.renter.Delegation(), Needs: needs,
		Lot:  market.Lot{ID: 1, Price: rigRate, MinTerm: 10, MaxTerm: 3600, Slots: []market.Slot{{Device: r.conf.Lots[0].Device, Free: true}}},
		Peer: r.renter.Peer(),
	}
}

// sell sells a lease and gives its keeper.
func (r *rig) sell() *keeper {
	r.t.Helper()
	s := r.sale()
	_, err := r.a.Sell(context.Background(), s)
	must(r.t, err)
	return r.keeper(s.ID)
}

func (r *rig) keeper(id market.LeaseID) *keeper {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.a.keepers[id]
}

// ask is the renter's question.
func (r *rig) ask(ask work.Ask) (work.Status, error) {
	return r.a.job(context.Background(), r.renter.Peer(), ask)
}

func (r *rig) sign(d identity.Domain, body identity.Body) []byte {
	raw, err := r.renter.Seal(d, body)
	must(r.t, err)
	return raw
}

// prepare takes a sold lease to Preparing with a spec.
func (r *rig) prepare(k *keeper) {
	r.t.Helper()
	_, err := r.prepareWith(k, work.Spec{Image: wire.Sum("", []byte("image")), Command: []string{"x"}})
	must(r.t, err)
}

func (r *rig) prepareWith(k *keeper, spec work.Spec) (work.Status, error) {
	r.t.Helper()
	ready := market.Ready{
		Header: r.renter.Header(market.Version), Delegation: r.renter.DelegationHash(), Lease: k.id, Hash: identity.Hash(k.look().rec.Lease),
	}
	_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActReady, Signed: r.sign(market.DomainReady, ready)})
	must(r.t, err)
	return r.ask(work.Ask{Lease: k.id, Action: work.ActPrepare, Spec: &spec})
}

// attend opens a lane whose renter pays every claim while paying is set.
func (r *rig) attend(k *keeper) {
	r.t.Helper()
	l := &lane{down: make(chan work.LaneDown, laneQueue), gone: make(chan struct{})}
	must(r.t, k.do(context.Background(), func() error { k.takeLane(k.a.ctx, l); return nil }))
	go func() {
		for {
			select {
			case <-l.gone:
				return
			case <-k.done:
				return
			case m := <-l.down:
				if m.Beat != nil && m.Beat.Claim && r.paying.Load() {
					v := r.voucher(k.id, m.Beat.Charge, m.Beat.Billable)
					_ = k.do(context.Background(), func() error { return k.onUp(k.a.ctx, work.LaneUp{Beat: m.Beat.Seq, Voucher: v}) })
				}
			}
		}
	}()
}

// voucher signs an amount on a lease's lane.
func (r *rig) voucher(id market.LeaseID, amount money.Micro, ms uint64) (v []byte) {
	err := r.theirs.Update(context.Background(), func(tx *books.Tx) (err error) {
		v, err = tx.SignVoucher(ledger.Lane(id), amount, []meter.Segment{{Rate: rigRate, Devices: 1, Ms: ms}})
		return err
	})
	if err != nil {
		r.t.Error(err)
	}
	return v
}

// run takes a new lease to Running.
func (r *rig) run() *keeper {
	r.t.Helper()
	k := r.sell()
	r.prepare(k)
	r.attend(k)
	_, err := r.ask(work.Ask{Lease: k.id, Action: work.ActStart})
	must(r.t, err)
	r.await(k.id, work.Running, time.Second)
	return k
}

// stored is a lease as the store has it.
func (r *rig) stored(id market.LeaseID) (rec record) {
	r.t.Helper()
	must(r.t, r.a.books.View(context.Background(), func(b *books.Reader) (err error) {
		rec, _, err = kv.Load[record](b.Of(kv.Provider), leaseKey(id))
		return err
	}))
	return rec
}

// await waits, in the bubble's time, until the stored lease is in a state.
func (r *rig) await(id market.LeaseID, s work.State, limit time.Duration) record {
	r.t.Helper()
	return r.awaitThat(id, s.String(), limit, func(rec record) bool { return rec.State == s })
}

// awaitThat looks only while the rest of the bubble is at rest: what the agent does beside a new state is done when it returns.
func (r *rig) awaitThat(id market.LeaseID, what string, limit time.Duration, cond func(record) bool) record {
	r.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		synctest.Wait()
		rec := r.stored(id)
		if cond(rec) {
			return rec
		}
		if time.Now().After(end) {
			r.t.Fatalf("after %v the lease is %s (%s), not %s", limit, rec.State, rec.Reason, what)
		}
	}
}

// over checks that a lease ended for a reason in exactly one way and left nothing.
func (r *rig) over(id market.LeaseID, why string) record {
	r.t.Helper()
	rec := r.awaitThat(id, "tidy", 5*time.Minute, func(rec record) bool { return rec.Tidy })
	end, err := market.OpenEnd(rec.End)
	must(r.t, err)
	switch {
	case string(rec.Reason.Code) != why || end.Reason.Code != rec.Reason.Code:
		r.t.Errorf("ended with %s, signed %s, want %s", rec.Reason, end.Reason, why)
	case end.Charge != rec.Charge:
		r.t.Errorf("charge %v, signed %v", rec.Charge, end.Charge)
	case r.runtime.state(id) != "":
		r.t.Error("its container is still there")
	}
	state, _ := r.a.capacity.Look(r.conf.Lots[0].Device)
	if state.Lease != nil && *state.Lease == id {
		r.t.Error("its device is still held")
	}
	must(r.t, r.a.books.View(context.Background(), func(b *books.Reader) error {
		lane, err := b.Lane(ledger.Lane(id))
		if err == nil && (!lane.Closed() || *lane.Final != rec.Charge) {
			r.t.Errorf("the ledger's lane: closed %v", lane.Closed())
		}
		return err
	}))
	return rec
}
