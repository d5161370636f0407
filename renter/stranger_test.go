package renter

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

const (
	testNet  = "test"
	testRate = money.Rate(3_600_000) // 1,000 micro-units a second: 1 a millisecond
	giveUp   = 15 * time.Second
)

// rig is a renter's agent and one provider, in memory, inside a synctest bubble.
type rig struct {
	t     *testing.T
	net   *p2ptest.Net
	owner *stranger
	dev   *identity.Device
	node  *p2ptest.Node
	books *books.Books
	dir   string
	agent *Agent
	stop  func() // the agent, as its process ends
	image image
	away  time.Duration // that an order asks an allowance for
}

// image is an image that every provider has already, unless a test takes it away.
type image struct{ name string }

func (i image) Manifest() wire.Hash { return wire.Sum("", []byte(i.name)) }
func (i image) Blobs() []ImageBlob {
	return []ImageBlob{{Hash: i.Manifest(), Size: int64(len(i.name))}}
}
func (i image) Source() string { return "" }
func (i image) Close() error   { return nil }
func (i image) Blob(context.Context, wire.Hash) (blob.Reader, error) {
	return nil, blob.ErrNotFound
}

// Open gives the image itself, whatever lies at path.
func (r *rig) Open(context.Context, string, string) (Image, error) { return r.image, nil }

func openBooks(t *testing.T, dev *identity.Device) *books.Books {
	t.Helper()
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(t, err)
	b, err := books.Open(t.Context(), books.Config{
		Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1 << 40, StrangersTotal: 1 << 40, KnownPercent: 50, KnownCap: 1 << 40}},
	})
	must(t, err)
	t.Cleanup(func() { b.Close() })
	return b
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n := p2ptest.NewNet(t)
	r := &rig{t: t, net: n, dev: p2ptest.Device(t), dir: t.TempDir(), image: image{"an image"}}
	r.node, r.books = n.Join(r.dev), openBooks(t, r.dev)
	r.owner = newStranger(t, n)
	n.Mesh()
	r.start()
	return r
}

// start runs an agent over what an earlier one left.
func (r *rig) start() {
	s, err := settle.New(settle.Config{Network: r.node, Protocol: p2p.ProtocolID(testNet, work.ProtoSettle), Books: r.books})
	must(r.t, err)
	known, err := delegation.New(r.node, p2p.ProtocolID(testNet, work.ProtoIdentity), r.dev)
	must(r.t, err)
	a, err := New(Deps{
		Device: r.dev, Network: r.node, Books: r.books, Delegations: known, Settle: s, Images: r, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	}, Config{Network: testNet, Dir: r.dir, Results: 2 << 20, GiveUp: giveUp})
	must(r.t, err)
	zero := time.Now()
	a.clock = func() uint64 { return uint64(time.Since(zero) / time.Millisecond) }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.agent = a
	r.stop = sync.OnceFunc(func() {
		cancel()
		must(r.t, <-done)
	})
}

// end stops everything, so that the bubble may end.
func (r *rig) end() {
	r.stop()
	r.node.Close()
	r.owner.node.Close()
}

// order buys and starts a job, as Submit does for an offer it chose.
func (r *rig) order(budget money.Micro) market.LeaseID {
	r.t.Helper()
	<-r.agent.ready
	f := newFiles()
	f.image = r.image
	p := &planned{
		req: api.RunRequest{Image: "x", Output: filepath.Join(r.dir, "out"), Command: []string{"job"}}, budget: budget, files: f,
		needs: work.Needs{Kind: market.KindCPU, Devices: 1}, away: r.away,
	}
	defer f.drop()
	lot, _ := r.owner.offer.Lot(markettest.CPULot)
	j, err := r.agent.order(r.t.Context(), p, book.Found{Entry: book.Entry{SealedOffer: r.owner.offer}, Lot: lot})
	must(r.t, err)
	must(r.t, r.agent.start(j))
	return j.id
}

// job is the job as the store or, if it lives, the agent has it.
func (r *rig) job(id market.LeaseID) record {
	r.t.Helper()
	if j := r.agent.find(id); j != nil {
		return j.record()
	}
	rec, ok, err := r.agent.load(r.t.Context(), id)
	must(r.t, err)
	if !ok {
		r.t.Fatalf("job %s is not stored", id.Short())
	}
	return rec
}

// until lets the bubble's time go on until cond holds.
func (r *rig) until(what string, limit time.Duration, cond func() bool) time.Duration {
	r.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			r.t.Fatalf("not in %v: %s", limit, what)
		}
		time.Sleep(max(100*time.Millisecond, limit/1000))
	}
	return time.Since(start)
}

func (r *rig) ends(id market.LeaseID, limit time.Duration) record {
	r.t.Helper()
	r.until("the job's end", limit, func() bool { return r.job(id).Final })
	return r.job(id)
}

func (r *rig) runs(id market.LeaseID) {
	r.t.Helper()
	r.until("the job runs", time.Minute, func() bool { return r.job(id).State == work.Running })
}

func laneOf(t *testing.T, b *books.Books, id market.LeaseID) (l books.Lane) {
	t.Helper()
	must(t, b.View(t.Context(), func(r *books.Reader) (err error) { l, err = r.Lane(ledger.Lane(id)); return err }))
	return l
}

// nothingHeld checks that no hold and no open lane is left, and that the ledger verifies.
func (r *rig) nothingHeld() {
	r.t.Helper()
	must(r.t, r.books.View(r.t.Context(), func(b *books.Reader) error {
		totals, err := b.Totals()
		for _, x := range totals {
			if x.HeldByMe > 0 {
				r.t.Errorf("%v is still held", x.HeldByMe)
			}
		}
		if err != nil {
			return err
		}
		return b.EachLane(func(l books.Lane) error {
			if !l.Closed() {
				r.t.Errorf("lane %s is still open", l.Lane.Short())
			}
			return nil
		})
	}))
	v, err := r.books.Verify(r.t.Context())
	must(r.t, err)
	if v.Result != books.ResultOK {
		r.t.Errorf("the ledger does not verify: %+v", v)
	}
}

// stranger is a provider that speaks the protocol by hand: honest, but for what a test changes before the first order.
type stranger struct {
	t     *testing.T
	net   *p2ptest.Net
	dev   *identity.Device
	node  *p2ptest.Node
	books *books.Books
	offer market.SealedOffer

	// Lies. Nil or zero: the truth.
	sold    func(raw []byte, err error) ([]byte, error)                    // in place of a lease
	claim   func(ms uint64) (money.Micro, uint64)                          // charge and billable time after ms of running
	beat    func(*work.Beat) *work.Beat                                    // in place of a beat; nil: none
	receipt func([]byte) []byte                                            // in place of a receipt
	end     func(*market.End)                                              // before it is signed
	status  func(*work.Status)                                             // before it is told
	ask     func(context.Context, work.Ask) (work.Status, error, bool)     // in place of an answer
	lane    func(context.Context, p2p.Stream) (served bool, err error)     // in place of the lane
	fetch   func(ctx context.Context, r blob.Request) (blob.Source, error) // what results are

	mu       sync.Mutex
	id       market.LeaseID // guarded by mu; of the only lease
	accept   market.Accept  // guarded by mu
	lease    market.Lease   // guarded by mu
	raw      []byte         // guarded by mu
	state    work.State     // guarded by mu
	started  time.Time      // guarded by mu
	seq      uint64         // guarded by mu
	why      reason.Reason  // guarded by mu
	signed   []byte         // guarded by mu; end
	released int            // guarded by mu; releases taken
	ready    int            // guarded by mu; readies taken
	outputs  wire.Hash      // guarded by mu
	orders   int            // guarded by mu
	claimed  wire.Hash      // of the evidence of the newest claim; of the lane's goroutine
}

func newStranger(t *testing.T, n *p2ptest.Net) *stranger {
	t.Helper()
	s := &stranger{t: t, net: n, dev: p2ptest.Device(t)}
	s.books = openBooks(t, s.dev)
	s.join()
	o := markettest.Offer(s.dev, 1, time.Now())
	o.Addrs = s.node.Addrs()
	o.Lots[1].Price, o.Lots[1].MinTerm = testRate, 10
	o.Credit.Stranger, o.Credit.StrangersTotal = 1<<30, 1<<30 // as its books
	s.offer = markettest.Sealed(t, s.dev, o)
	return s
}

// join puts the stranger on the network; again after node.Close, as after a kill and a start.
func (s *stranger) join() {
	s.node = s.net.Join(s.dev)
	id := func(name string) p2p.Protocol { return p2p.ProtocolID(testNet, name) }
	seller, err := negotiate.NewSeller(s.dev, s, s, nil)
	must(s.t, err)
	st, err := settle.New(settle.Config{Network: s.node, Protocol: id(work.ProtoSettle), Books: s.books})
	must(s.t, err)
	s.node.Handle(id(work.ProtoTrade), negotiate.Limits(), seller.Handler())
	s.node.Handle(id(work.ProtoSettle), settle.Limits(), st.Handler())
	s.node.Handle(id(work.ProtoJob), p2p.Limits{}, p2p.Answer(work.MaxMessage, s.answer))
	s.node.Handle(id(work.ProtoLane), p2p.Limits{}, s.speak)
	s.node.Handle(id(work.ProtoBlob), blob.ServerLimits(), blob.Serve(s))
}

// Own fulfils [negotiate.Offers].
func (s *stranger) Own(h wire.Hash) (market.SealedOffer, bool) { return s.offer, h == s.offer.Hash }

// Sold fulfils [negotiate.Sales].
func (s *stranger) Sold(_ context.Context, id market.LeaseID) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.orders++
	if s.id != id {
		return nil, nil
	}
	if s.sold != nil {
		return s.sold(s.raw, nil)
	}
	return s.raw, nil
}

// Sell fulfils [negotiate.Sales].
func (s *stranger) Sell(ctx context.Context, sale negotiate.Sale) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := negotiate.Lease(s.dev, sale, []market.SlotGeneration{{Device: sale.Lot.Slots[0].Device, Generation: 1}}, 1<<40)
	if err != nil {
		return nil, err
	}
	err = s.books.Update(ctx, func(tx *books.Tx) error {
		_, err := tx.OpenLane(books.Opening{
			Channel: ledger.Channel{Renter: sale.Accept.Account, Provider: s.dev.Account(), Unit: money.Credit, Epoch: 1},
			Lane:    ledger.Lane(sale.ID), Rate: sale.Accept.Rate, Devices: sale.Accept.Quantity, Hold: l.Hold,
		}, sale.VoucherRaw, sale.DelegationRaw)
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := s.dev.Seal(market.DomainLease, l)
	s.id, s.accept, s.lease, s.raw, s.state = sale.ID, sale.Accept, l, raw, work.Agreed
	if s.sold != nil {
		return s.sold(raw, err)
	}
	return raw, err
}

// Push fulfils [blob.Authorizer].
func (s *stranger) Push(context.Context, blob.Request) (*blob.Store, error) {
	return nil, blob.ErrForbidden
}

// Fetch fulfils [blob.Authorizer].
func (s *stranger) Fetch(ctx context.Context, r blob.Request) (blob.Source, error) {
	if s.fetch == nil {
		return nil, blob.ErrNotFound
	}
	return s.fetch(ctx, r)
}

// answer answers what is asked about the lease.
func (s *stranger) answer(ctx context.Context, _ identity.PeerID, a work.Ask) (work.Status, error) {
	if s.ask != nil {
		if st, err, ok := s.ask(ctx, a); ok {
			return st, negotiate.Refusal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Lease != s.id {
		return work.Status{}, p2p.Errorf(p2p.KindNotFound, "no such lease")
	}
	switch {
	case a.Action == work.ActReady && s.state == work.Agreed:
		s.state = work.Preparing
		s.ready++
	case a.Action == work.ActStart && s.state == work.Preparing:
		s.state, s.started = work.Running, time.Now()
	case a.Action == work.ActStop:
		s.finish(reason.New(reason.StoppedRenter, ""))
	case a.Action == work.ActRelease:
		s.released++
		s.finish(reason.New(reason.StoppedRenter, ""))
	}
	return s.told(), nil
}

func (s *stranger) truth() (money.Micro, uint64) {
	if s.started.IsZero() {
		return 0, 0
	}
	ms := uint64(time.Since(s.started) / time.Millisecond)
	if s.claim != nil {
		return s.claim(ms)
	}
	return money.Micro(ms), ms
}

// finish ends the lease. The caller holds mu.
func (s *stranger) finish(why reason.Reason) {
	if s.state == work.Ended {
		return
	}
	charge, ms := s.truth()
	e := market.End{
		Header: s.dev.Header(market.Version), Delegation: s.dev.DelegationHash(), Lease: s.id, Slots: s.lease.Slots, Reason: why, Charge: charge, Billable: ms,
	}
	if s.end != nil {
		s.end(&e)
	}
	raw, err := s.dev.Seal(market.DomainEnd, e)
	must(s.t, err)
	must(s.t, s.books.Update(context.Background(), func(tx *books.Tx) error {
		_, err := tx.CloseLane(ledger.Lane(s.id), e.Charge)
		return err
	}))
	s.state, s.why, s.signed = work.Ended, why, raw
}

// ends ends the job as if it had exited.
func (s *stranger) ends() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(reason.New(reason.Completed, ""))
}

// told is the status. The caller holds mu.
func (s *stranger) told() work.Status {
	st := work.Status{State: s.state, Reason: s.why, End: s.signed, Complete: s.state == work.Ended, Outputs: s.outputs}
	if s.status != nil {
		s.status(&st)
	}
	return st
}

// speak serves the lane: a beat every two seconds, with the status in each, and a claim in every fifth or at the end.
func (s *stranger) speak(ctx context.Context, stream p2p.Stream) error {
	var open work.LaneOpen
	if err := wire.ReadFrame(stream, &open, work.MaxBeat); err != nil {
		return err
	}
	if err := p2p.Respond(stream, work.LaneOpened{}, nil, work.MaxBeat); err != nil {
		return err
	}
	if s.lane != nil {
		if served, err := s.lane(ctx, stream); served {
			return err
		}
	}
	defer stream.Reset(p2p.KindUnavailable)
	for {
		s.mu.Lock()
		s.seq++
		charge, ms := s.truth()
		st := s.told()
		if s.signed != nil {
			e, err := market.OpenEnd(s.signed)
			must(s.t, err)
			charge, ms = e.Charge, e.Billable
		}
		b := &work.Beat{Seq: s.seq, State: s.state, Charge: charge, Billable: ms, Claim: charge > 0 && (s.seq%5 == 0 || s.state == work.Ended), Status: &st}
		s.mu.Unlock()
		if s.beat != nil {
			b = s.beat(b)
		}
		if b != nil {
			if err := wire.WriteFrame(stream, work.LaneDown{Beat: b}, work.MaxBeat); err != nil {
				return err
			}
			if err := s.hear(stream); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(work.BeatInterval * time.Second):
		}
	}
}

// hear takes the acknowledgement of a beat, and answers its voucher with a receipt.
func (s *stranger) hear(stream p2p.Stream) error {
	var up work.LaneUp
	if err := wire.ReadFrame(stream, &up, work.MaxBeat); err != nil || up.Voucher == nil {
		return err
	}
	var got books.Accepted
	err := s.books.Update(context.Background(), func(tx *books.Tx) (err error) {
		got, err = tx.AcceptVoucher(up.Voucher, s.claimed)
		return err
	})
	if err != nil {
		return err
	}
	if s.receipt != nil {
		got.Receipt = s.receipt(got.Receipt)
	}
	if got.Receipt == nil {
		return nil
	}
	return wire.WriteFrame(stream, work.LaneDown{Receipt: got.Receipt}, work.MaxBeat)
}
