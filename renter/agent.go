// Package renter is the renter's side: it searches, rents, pushes, runs, pays by vouchers, follows logs and brings results home, and
// goes on with all of it after a restart. It refuses to know libp2p, registries and terminals.
package renter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// FromRegistry starts the path of an image that is in no file but in a registry, by its whole name there: "docker://host/name:tag", as
// skopeo writes it.
const FromRegistry = "docker://"

// Image is a container image on this machine, ready to be pushed: its blobs by digest. Close it after use.
type Image interface {
	blob.Source
	// Manifest names the image manifest for the provider's platform.
	Manifest() wire.Hash
	// Blobs lists what the manifest needs, itself first, with sizes in bytes.
	Blobs() []ImageBlob
	// Source is the repository that the provider can pull it from; empty for an image on this machine. Its layers can't be read then.
	Source() string
	// Close lets go of the files.
	Close() error
}

// ImageBlob is one blob of an image.
type ImageBlob struct {
	Hash wire.Hash
	Size int64
}

// Images opens images: OCI archives, docker archives, OCI layouts, and what registries have.
type Images interface {
	// Open reads what lies at path for a platform such as linux/amd64. Errors say what it is instead, and what to do.
	Open(ctx context.Context, path, platform string) (Image, error)
}

// Config is what a renter wants.
type Config struct {
	Network string
	Dir     string        // of jobs' logs and unfetched results; 0700
	Results int64         // bytes that the results of one job may take
	GiveUp  time.Duration // without a beat: the lease is released
}

// Validate says what is wrong.
func (c Config) Validate() error {
	switch {
	case c.Network == "" || c.Dir == "":
		return errors.New("renter config: network and folder are needed")
	case c.Results < 1<<20:
		return fmt.Errorf("renter config: %d bytes for results: want 1 MiB or more", c.Results)
	case c.GiveUp < 2*work.Suspected*time.Second:
		return fmt.Errorf("renter config: giving a provider up after %v: want %d s or more", c.GiveUp, 2*work.Suspected)
	}
	return nil
}

// Deps is what an agent works with. All of it is needed.
type Deps struct {
	Device      *identity.Device
	Network     p2p.Network
	Books       *books.Books
	Board       *announce.Board
	Delegations *delegation.Directory
	Settle      *settle.Service
	Images      Images
	Log         *slog.Logger
}

// Agent is the renter's side of the market. Safe for concurrent use.
type Agent struct {
	Deps
	conf  Config
	clock func() uint64 // milliseconds that never step

	ctx     context.Context // of Run; jobs live in it
	ready   chan struct{}   // closed once ctx is set and the jobs of an earlier process are taken up
	running sync.WaitGroup  // jobs
	nudge   chan struct{}   // wakes deliver
	landing sync.Mutex      // one copy of results at a time
	bidding sync.Mutex      // one bid at a time is made
	floor   *negotiate.Floor

	mu      sync.Mutex
	stopped bool                        // guarded by mu; no job starts any more
	jobs    map[market.LeaseID]*job     // guarded by mu; those that have not ended
	parcels map[identity.PeerID]*parcel // guarded by mu; what is to be delivered
	news    chan struct{}               // guarded by mu; closed at each change of any job
}

// New checks the configuration and makes the folders. It starts nothing.
func New(d Deps, c Config) (*Agent, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	for _, dir := range []string{"jobs", "results"} {
		if err := os.MkdirAll(filepath.Join(c.Dir, dir), 0o700); err != nil {
			return nil, fmt.Errorf("folder of jobs: %w", err)
		}
	}
	floor, err := negotiate.NewFloor(d.Network, d.Device, c.Network, d.Log)
	if err != nil {
		return nil, err
	}
	return &Agent{
		Deps: d, conf: c, floor: floor, clock: monotonic, ready: make(chan struct{}), nudge: make(chan struct{}, 1), jobs: map[market.LeaseID]*job{},
		parcels: map[identity.PeerID]*parcel{}, news: make(chan struct{}),
	}, nil
}

// Close ends the agent's use of its folders, after Run.
func (a *Agent) Close() error { return nil }

// Run goes on with the jobs of an earlier process and serves until ctx ends. Jobs then go on at their providers as long as credit and
// patience last there. Call it once; methods that need jobs wait for it.
func (a *Agent) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	a.ctx = ctx
	err := a.goOn(ctx)
	close(a.ready)
	if err == nil {
		g.Go(func() error { return a.floor.Run(ctx) })
		g.Go(func() error { return a.deliver(ctx) })
		g.Go(func() error { return a.tidy(ctx) })
		err = g.Wait()
	}
	a.mu.Lock()
	a.stopped = true
	a.mu.Unlock()
	a.running.Wait()
	return err
}

// goOn takes stored jobs and deliveries up again.
func (a *Agent) goOn(ctx context.Context) error {
	records, err := a.records(ctx)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if rec.Final {
			if rec.Deliver {
				a.undelivered(rec.Peer, rec.ID)
			}
			continue
		}
		j, err := a.newJob(rec, newFiles())
		if err != nil {
			return fmt.Errorf("stored job: %w", err)
		}
		if err := a.start(j); err != nil {
			return err
		}
	}
	return nil
}

// records reads every stored job.
func (a *Agent) records(ctx context.Context) (list []record, err error) {
	err = a.Books.View(ctx, func(r *books.Reader) (err error) {
		list, err = kv.All[record](r.Of(kv.Renter), keyJob)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("stored jobs: %w", err)
	}
	return list, nil
}

// errStopped says that the agent ends: what was ordered is stored, and the next process goes on.
var errStopped = errors.New("the agent is stopping: it goes on with the job when it is started again")

// start runs a job until it is over.
func (a *Agent) start(j *job) error {
	a.mu.Lock()
	if a.stopped {
		a.mu.Unlock()
		j.files.drop()
		return errStopped
	}
	a.jobs[j.id] = j
	a.running.Go(func() {
		j.run(a.ctx)
		a.mu.Lock()
		if j.over() {
			delete(a.jobs, j.id)
		}
		a.mu.Unlock()
		a.changed()
	})
	a.mu.Unlock()
	return nil
}

func (a *Agent) changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.news)
	a.news = make(chan struct{})
}

// Changed is closed at the next change of any job.
func (a *Agent) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.news
}

// Live counts the jobs that have not ended.
func (a *Agent) Live() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.jobs)
}

// find is a job that has not ended, or nil. It waits until Run has taken up the jobs of an earlier process.
func (a *Agent) find(id market.LeaseID) *job {
	<-a.ready
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.jobs[id]
}

func (a *Agent) protocol(name string) p2p.Protocol { return p2p.ProtocolID(a.conf.Network, name) }

// PeerOf finds the device of a provider that was dealt with last.
func (a *Agent) PeerOf(ctx context.Context, account identity.AccountID) (identity.PeerID, error) {
	var peer identity.PeerID
	var ok bool
	err := a.Books.View(ctx, func(r *books.Reader) (err error) {
		peer, ok, err = kv.Load[identity.PeerID](r.Of(kv.Renter), peerKey(account))
		return err
	})
	if err == nil && !ok {
		err = fmt.Errorf("account %s: never rented from: there is nothing to settle", account.Short())
	}
	return peer, err
}
