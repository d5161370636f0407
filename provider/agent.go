package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/tunnel"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/capacity"
)

// Devices is what the owner's machine has, and how it is measured.
type Devices interface {
	// List gives the devices that are configured and those that the driver shows.
	List(ctx context.Context) ([]Device, error)
	// Measure runs a benchmark; progress is told the step's name and how much of it all is done, from 0 to 1.
	Measure(ctx context.Context, device wire.Hash, profile benchmark.Profile, progress func(step string, done float64)) (benchmark.Report, error)
	// Read says what devices do now; they may be leased. It answers within a beat.
	Read(ctx context.Context, devices []wire.Hash) (Reading, error)
}

// Device is one device of this machine.
type Device struct {
	benchmark.Device
	UUID    string // as the driver gives it; of a CPU the hash in hex
	Problem string // why it can't be offered; empty: it can, once it is measured
}

// Deps is what an agent works with. All of it is needed.
type Deps struct {
	Device      *identity.Device
	Network     p2p.Network
	Books       *books.Books
	Board       *announce.Board
	Delegations *delegation.Directory
	Runtime     Runtime
	Jobnet      Network
	Resolv      string // path of the resolv.conf for jobs with egress
	Mounts      Mounts
	Registries  Registries
	Devices     Devices
	Inbox       string // folder of its own for what renters push, until it is unpacked
	InboxBytes  int64  // that it may hold; every lot has an equal share
	Init        string // path of the static gpufair-init
	Log         *slog.Logger
}

// Agent is the owner's side of the market. Safe for concurrent use.
type Agent struct {
	dev         *identity.Device
	net         p2p.Network
	books       *books.Books
	board       *announce.Board
	publisher   *announce.Publisher
	seller      *negotiate.Seller
	quoter      *negotiate.Quoter
	delegations *delegation.Directory
	runtime     Runtime
	network     Network
	mounts      Mounts
	registries  Registries
	devices     Devices
	inbox       string
	inboxBytes  int64
	initPath    string
	resolv      string
	epoch       time.Time // zero of the meters' clock
	log         *slog.Logger
	capacity    *capacity.Table

	ctx     context.Context // of Run; keepers live in it
	selling sync.Mutex      // one sale at a time: the first Accept wins
	calling sync.Mutex      // one auction is opened at a time: two that call at once get one

	auctions auctions

	mu         sync.Mutex
	conf       Config                           // guarded by mu
	keepers    map[market.LeaseID]*keeper       // guarded by mu
	found      []Device                         // guarded by mu; as listed last
	passports  map[wire.Hash]benchmark.Passport // guarded by mu; valid ones
	rawPass    map[wire.Hash][]byte             // guarded by mu; sealed, by device
	measuring  map[wire.Hash]string             // guarded by mu; device: step
	unanswered []unanswered                     // guarded by mu; oldest first
	pause      pauseRecord                      // guarded by mu
	sandbox    RuntimeInfo                      // guarded by mu; empty: the runtime does not answer
	why        string                           // guarded by mu; why nothing is offered
	short      map[wire.Hash]string             // guarded by mu; why a device's lease has no room on disk; not there: it has
	refuses    string                           // guarded by mu; why the store takes no writes; empty: it does, or the ledger is read-only
	news       chan struct{}                    // guarded by mu; closed at each change
	wanted     map[market.LeaseID]string        // guarded by mu; digests of images that open leases name
	removing   string                           // guarded by mu; digest of the image that is being removed
	failed     map[wire.Hash]time.Time          // guarded by mu; when a device's measurement failed
	yield      context.CancelFunc               // guarded by mu; ends the agent's own measuring; nil: there is none
	relist     chan struct{}                    // a reload may have named other devices
	quoted     map[wire.Hash]heldLot            // guarded by mu; devices that a quote keeps from others, by the quote's hash
	closed     bool                             // guarded by mu; Run is over: nothing is sold any more
	keeping    sync.WaitGroup                   // keepers, and what runs beside them
}

// pauseRecord is the owner's wish to stop renting out, over restarts.
type pauseRecord struct {
	On    bool  `cbor:"1,keyasint"`
	Until int64 `cbor:"2,keyasint"` // Unix milliseconds; 0: until resumed
}

func (p pauseRecord) active(now time.Time) bool {
	return p.On && (p.Until == 0 || now.UnixMilli() < p.Until)
}

// New checks the configuration and reads what the store knows. It starts nothing.
func New(ctx context.Context, d Deps, c Config) (*Agent, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := newAgent(d, c)
	publisher, err := announce.NewPublisher(d.Board, d.Device, seqStore{a})
	if err != nil {
		return nil, err
	}
	a.publisher = publisher
	if err := a.openQuotes(publisher); err != nil {
		return nil, err
	}
	if err := a.openAuctions(d.Network, c.Network); err != nil {
		return nil, err
	}
	if err := a.setLimits(c); err != nil {
		return nil, err
	}
	return a, a.readStore(ctx)
}

// newAgent is an agent that publishes nothing and has read nothing.
func newAgent(d Deps, c Config) *Agent {
	return &Agent{
		dev: d.Device, net: d.Network, books: d.Books, board: d.Board, delegations: d.Delegations, runtime: d.Runtime, network: d.Jobnet,
		mounts: d.Mounts, registries: d.Registries, devices: d.Devices, inbox: d.Inbox, inboxBytes: d.InboxBytes, initPath: d.Init, resolv: d.Resolv, log: d.Log, epoch: time.Now(),
		conf: c, wanted: map[market.LeaseID]string{}, failed: map[wire.Hash]time.Time{}, relist: make(chan struct{}, 1), keepers: map[market.LeaseID]*keeper{}, passports: map[wire.Hash]benchmark.Passport{},
		rawPass: map[wire.Hash][]byte{}, measuring: map[wire.Hash]string{}, quoted: map[wire.Hash]heldLot{}, news: make(chan struct{}),
	}
}

// readStore reads slots, passports and the owner's pause.
func (a *Agent) readStore(ctx context.Context) error {
	return a.books.View(ctx, func(r *books.Reader) error {
		tx := r.Of(kv.Provider)
		slots, err := kv.All[capacity.Slot](tx, keySlot)
		if err != nil {
			return err
		}
		a.raiseGenerations(slots)
		a.capacity = capacity.New(slots)
		a.pause, _, err = kv.Load[pauseRecord](tx, []byte(keyPause))
		if err != nil {
			return err
		}
		for pair, err := range tx.Iterate([]byte(keyPassport), nil) {
			if err != nil {
				return err
			}
			p, err := benchmark.OpenPassport(pair.Value)
			if err != nil {
				a.log.Warn("stored passport dropped", "err", err)
				continue
			}
			a.passports[p.DeviceHash], a.rawPass[p.DeviceHash] = p, pair.Value
		}
		return nil
	})
}

// setLimits tells the ledger the credit limits; what runs already counts as a lot, so that taking it off the offer does not end it.
func (a *Agent) setLimits(c Config) error {
	var dearest money.Rate
	a.mu.Lock()
	for _, k := range a.keepers {
		dearest = max(dearest, k.accept.Rate)
	}
	a.mu.Unlock()
	limits, err := c.limits(dearest)
	if err != nil {
		return err
	}
	a.books.SetLimits(map[money.Unit]ledger.Limits{c.Unit: limits})
	return nil
}

// config is the owner's wish now.
func (a *Agent) config() Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conf
}

// Reload takes other settings; leases that run keep their price and terms.
func (a *Agent) Reload(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if old := a.config(); old.Network != c.Network || old.Unit != c.Unit {
		return fmt.Errorf("%w: network and unit can't change while the daemon runs: restart it", ErrConfig)
	}
	if err := a.setLimits(c); err != nil {
		return err
	}
	a.mu.Lock()
	a.conf = c
	clear(a.failed)
	a.mu.Unlock()
	select {
	case a.relist <- struct{}{}:
	default: // it will look anyway
	}
	a.changed()
	return nil
}

// changed wakes whoever watches the agent, the offer among them.
func (a *Agent) changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.news)
	a.news = make(chan struct{})
}

// Changed is closed at the next change of anything that Status shows.
func (a *Agent) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.news
}

// Run serves until ctx ends. Jobs that run then go on, and are adopted at the next start.
func (a *Agent) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	a.ctx = ctx
	if err := errors.Join(a.reconcile(ctx), a.resumeAuctions(ctx), a.quoter.Resume(ctx, time.Now())); err != nil {
		return err
	}
	a.handle()
	g.Go(func() error { return a.auctions.floor.Run(ctx) })
	g.Go(func() error { return a.auctions.house.Run(ctx) })
	g.Go(func() error { return a.quoter.Run(ctx) })
	g.Go(func() error { return a.publisher.Run(ctx) })
	g.Go(func() error { return a.tend(ctx) })
	g.Go(func() error { return a.watchRuntime(ctx) })
	g.Go(func() error { return a.measureAll(ctx) })
	g.Go(func() error { return a.sweepAll(ctx) })
	err := g.Wait()
	a.selling.Lock() // a sale under way still starts its keeper
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.selling.Unlock()
	a.keeping.Wait()
	return err
}

func (a *Agent) handle() {
	network := a.config().Network
	on := func(name string, limits p2p.Limits, h p2p.Handler) {
		a.net.Handle(p2p.ProtocolID(network, name), limits, h)
	}
	on(work.ProtoJob, p2p.Limits{Streams: 128, PeerStreams: 8, Idle: 30 * time.Second}, p2p.Answer(work.MaxMessage, a.job))
	on(work.ProtoLane, p2p.Limits{Streams: 256, PeerStreams: 32, Idle: time.Minute}, a.laneHandler)
	on(work.ProtoBlob, blob.ServerLimits(), blob.Serve(a))
	on(work.ProtoLogs, tunnel.LogLimits(), tunnel.ServeLogs(a.openLog))
	on(work.ProtoPassport, p2p.Limits{Streams: 32, PeerStreams: 4, Idle: 10 * time.Second}, p2p.Answer(work.MaxMessage, a.passport))
	on(work.ProtoTrade, negotiate.Limits(), a.seller.Handler())
	on(work.ProtoQuote, negotiate.QuoteLimits(), a.quoter.Handler())
}

// passport answers with a sealed benchmark passport by its hash.
func (a *Agent) passport(_ context.Context, _ identity.PeerID, want wire.Hash) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, raw := range a.rawPass {
		if identity.Hash(raw) == want {
			return raw, nil
		}
	}
	return nil, p2p.Errorf(p2p.KindNotFound, "no passport of that hash: the device was measured again; read the newest offer")
}

// seqStore keeps the serial numbers of adverts.
type seqStore struct{ a *Agent }

// ReserveSeq gives the first of n serial numbers that were never used.
func (s seqStore) ReserveSeq(ctx context.Context, n uint64) (first uint64, err error) {
	err = s.a.books.Update(ctx, func(tx *books.Tx) error {
		last, _, err := kv.Load[uint64](tx.Of(kv.Provider), []byte(keySeq))
		if err != nil {
			return err
		}
		last = max(last, s.a.usedBefore())
		first = last + 1
		return kv.Save(tx.Of(kv.Provider), []byte(keySeq), last+n)
	})
	return first, err
}
