// Package wire is what both daemons are made of before they differ: identity, store, ledger, network, board, settlements and the local
// API, opened in order, run as one group and closed in reverse. Adapters for what every daemon has are chosen here. It knows no agent,
// no container and no device: `gpufaird` and `gpufair agent` bring theirs.
package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	ledgerlocal "github.com/gpufair/gpufair/ledger/local"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/delegation"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/libp2p"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// Config says what a daemon is opened with.
type Config struct {
	Program string       // "gpufaird" or "gpufair agent": whom messages tell people to stop
	Title   string       // of the API's description
	Dirs    cli.Dirs     // made if they are missing
	State   string       // folder of identity, ledger and blobs; empty: Dirs.State
	Socket  string       // of the local API; empty: Dirs.Socket("api.sock")
	Network NetConfig    // of the config file
	Unit    money.Unit   // the default unit of the ledger's verbs
	Role    ledger.Role  // this account's usual side of a channel
	Ledger  LedgerConfig // of the config file
	Rail    RailConfig   // of the config file
	Methods []string     // how the owner may be paid
	// InvoiceAfter the end of the oldest unpaid lease, the program of Rail is asked for an invoice.
	InvoiceAfter time.Duration
	Needs        identity.Powers // that this device must have of its account; none: all verbs say for themselves
	Log          *slog.Logger
}

// Base is an open daemon without its agent. Its fields are set by [Open] and stay as they are until [Base.Close].
type Base struct {
	Config
	Device      *identity.Device
	Store       *kv.Store
	Books       *books.Books
	Network     *libp2p.Network
	Dealing     p2p.Network // Network for all that money depends on: see [settle.Witness.Guard]
	Delegations *delegation.Directory
	Board       *announce.Board
	Settle      *settle.Service
	Net         *settle.Net
	Claims      *settle.Claims
	Billing     *settle.Billing
	Server      *serve.Server        // register the agent's operations on Server.API() before Run
	Metrics     *prometheus.Registry // served at /metrics of the socket
	Since       time.Time

	witness  *settle.Witness
	recovery *settle.Recovery
	peerOf   func(ctx context.Context, account identity.AccountID) (identity.PeerID, error) // the agent's; set before Run
	records  func(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error)        // the agent's, or nil; set before Run
	db       *badger.DB
	name     string      // of the network
	netting  atomic.Bool // the owner takes part
	closers  []func() error
}

// Open opens everything that both daemons share, in order, and closes what it opened if a step fails. It binds the network's ports and
// the API's socket, so a second daemon is refused here. Nothing runs yet. Errors are for people: they say what to do.
func Open(ctx context.Context, c Config) (*Base, error) {
	if c.State == "" {
		c.State = c.Dirs.State
	}
	b := &Base{Config: c, Since: time.Now(), Metrics: prometheus.NewRegistry(), name: c.Network.Network}
	for _, step := range []func(context.Context) error{b.openFolders, b.openIdentity, b.openStore, b.openNetwork, b.openTalk, b.openServer} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// IdentityDir is where the keys lie in a daemon's state folder.
func IdentityDir(state string) string { return filepath.Join(state, "identity") }

// StoreDir is where the ledger and its store lie in a daemon's state folder.
func StoreDir(state string) string { return filepath.Join(state, "store") }

func (b *Base) openFolders(context.Context) error {
	if b.Socket == "" {
		socket, err := b.Dirs.Socket(SocketName)
		if err != nil {
			return err
		}
		b.Socket = socket
	}
	if err := b.Dirs.Make(); err != nil {
		return err
	}
	if err := os.MkdirAll(b.State, 0o700); err != nil {
		return cli.Fail(cli.ExitSystem, "make the state folder", err, "run as a user who may write there, or give --home DIR")
	}
	return nil
}

// SocketName is the local API's socket in the run folder.
const SocketName = "api.sock"

func (b *Base) openIdentity(context.Context) error {
	if err := b.finishRotation(); err != nil {
		return err
	}
	dev, created, err := identity.LoadOrCreate(IdentityDir(b.State), time.Now())
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the identity", err, "the text above says which file; keys are never overwritten")
	}
	if created {
		b.Log.Info("new identity", "account", dev.Account(), "dir", IdentityDir(b.State))
	}
	b.Device = dev
	return b.checkPowers()
}

// checkPowers refuses to start what the account does not let this device do.
func (b *Base) checkPowers() error {
	d, err := identity.OpenDelegation(b.Device.Delegation())
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the identity", err, "the text above says which file; keys are never overwritten")
	}
	if d.Powers&b.Needs != b.Needs {
		return cli.Fail(cli.ExitRefused, "start "+b.Program, fmt.Errorf("%w: the account lets this device %q, this takes %q",
			identity.ErrPower, d.Powers, b.Needs), "on the PC that has the account's key: identity link with --powers trade,pay,provide and the\n"+
			"request that `identity link` prints here")
	}
	return nil
}

func (b *Base) openStore(ctx context.Context) error {
	dir := StoreDir(b.State)
	if done, err := FinishRestore(b.State); err != nil {
		return cli.Fail(cli.ExitSystem, "finish the restore of the ledger", err, "the folder "+b.State+" must belong to this user")
	} else if done {
		b.Log.Warn("finished a restore that was cut short")
	}
	db, err := badger.Open(ctx, badger.Config{Dir: filepath.Join(dir, "badger"), Log: b.Log.With("part", "store")})
	switch {
	case errors.Is(err, kv.ErrInUse):
		return cli.Fail(cli.ExitSystem, "open the store", fmt.Errorf("another %s uses %s: %w", b.Program, b.State, err),
			"stop the other one, or give this one a --home of its own")
	case errors.Is(err, kv.ErrReadOnly):
		return cli.Fail(cli.ExitSystem, "open the store", err, "free some space on the disk and start again")
	case errors.Is(err, badger.ErrDamaged):
		return cli.Fail(cli.ExitSystem, "open the store", err, recoverNext)
	case err != nil:
		return cli.Fail(cli.ExitSystem, "open the store", err, "the folder "+dir+" must belong to this user")
	}
	b.db = db
	if b.Store, err = kv.Open(ctx, db, schema(cli.ThisBuild().Version)); err != nil {
		return errors.Join(cli.Fail(cli.ExitSystem, "open the store", err, "use the release that the text names, or a newer one"), db.Close())
	}
	b.onClose(b.Store.Close)
	b.Books, err = books.Open(ctx, books.Config{
		Dir: filepath.Join(dir, "ledger"), Mark: MarkFile(b.State), Store: b.Store, Device: b.Device, Log: b.Log.With("part", "ledger"),
	})
	switch {
	case broken(err):
		return cli.Fail(cli.ExitSystem, "open the ledger", err, recoverNext)
	case err != nil:
		return cli.Fail(cli.ExitSystem, "open the ledger", err, "keep a copy of "+dir+" before anything else; the text above says what is wrong")
	}
	b.onClose(b.Books.Close)
	if err := b.Books.KeepOwn(ctx); err != nil { // a full disk, say: the next start tries again
		b.Log.Warn("own delegation not kept with the ledger", "err", err)
	}
	return nil
}

func (b *Base) openNetwork(context.Context) error {
	c, err := b.Config.Network.libp2p(b.Program)
	if err != nil {
		return err
	}
	c.Metrics = b.Metrics
	n, err := libp2p.New(b.Device, c, persist{b.Store}, b.Log.With("part", "network"))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the network", err, "`listen` in the settings says on which addresses and ports")
	}
	b.Network = n
	b.onClose(n.Close)
	return nil
}

// openTalk makes the conversations that both daemons hold.
func (b *Base) openTalk(ctx context.Context) error {
	var err error
	b.Delegations, err = delegation.New(b.Network, p2p.ProtocolID(b.name, work.ProtoIdentity), b.Device)
	if err != nil {
		return err
	}
	if err := b.openRevocations(ctx); err != nil {
		return err
	}
	b.Network.Handle(p2p.ProtocolID(b.name, work.ProtoIdentity), delegation.Limits(), b.Delegations.Handler())
	offers, err := book.New(book.Config{})
	if err != nil {
		return err
	}
	if b.Board, err = announce.New(b.Network, offers, announce.Config{
		Network: b.name, Revoked: b.Delegations.RevokedRecord, Index: b.Network, Log: b.Log.With("part", "board"),
	}); err != nil {
		return err
	}
	if err := b.openWitness(); err != nil {
		return err
	}
	settlements := p2p.ProtocolID(b.name, work.ProtoSettle)
	if b.Settle, err = settle.New(settle.Config{Network: b.Dealing, Protocol: settlements, Books: b.Books, Revoked: b.Delegations.Revoked, After: b.witness.Soon}); err != nil {
		return err
	}
	b.Dealing.Handle(settlements, settle.Limits(), b.Settle.Handler())
	if err := b.openRecovery(); err != nil {
		return err
	}
	if err := b.openNet(); err != nil {
		return err
	}
	return b.openClaims()
}

func (b *Base) openServer(context.Context) error {
	s, err := serve.New(serve.Config{Socket: b.Socket, Title: b.Title, Version: cli.ThisBuild().Version}, b.Log.With("part", "api"))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "open the local API", err, "stop the other daemon, or give this one a --home of its own")
	}
	b.Server = s
	b.onClose(s.Close)
	b.Metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b.gauges()
	s.Mux().Handle("GET /metrics", promhttp.HandlerFor(b.Metrics, promhttp.HandlerOpts{}))
	return nil
}

// Agent is what a daemon adds to the base.
type Agent struct {
	// PeerOf finds the device on which an account was last dealt with, for settlements; nil: the ledger alone knows.
	PeerOf func(ctx context.Context, account identity.AccountID) (identity.PeerID, error)
	// Records gives the agent's own signed records of a lane, for proofs; may be nil.
	Records func(ctx context.Context, lane ledger.Lane) ([]proof.Attachment, error)
	// Origin says where the credit limits come from; nil: the agent lends nothing.
	Origin func() statement.CreditOrigin
	// Checks are the findings of doctor beyond those of the base; may be nil.
	Checks func(ctx context.Context) []local.Check
}

// Register puts the operations that both daemons share on the API: identity, peers, invite, join, doctor, ledger, credit, settlements.
// Call it once, before Run.
func (b *Base) Register(a Agent) { b.Operations(b.Server.API(), a) }

// Operations is [Base.Register] on any API, so that its description can be printed without a daemon: a zero Base will do for that.
func (b *Base) Operations(to huma.API, a Agent) {
	b.peerOf, b.records = a.PeerOf, a.Records
	serve.Meet(to, meeting{b, a.Checks})
	ledgerlocal.Register(to, ledgerlocal.Desk{
		Books: b.Books, Settle: b.Settle, Claims: b.Claims, Billing: b.Billing, DisputeDays: b.Ledger.DisputeDays, Net: b.Net, Recovery: b.recovery, Unit: b.Unit, Role: b.Role, Peer: b.deviceOf, Lanes: b.lanes, Records: b.recordsOf, Evidence: interval, Origin: a.Origin,
	})
}

// Part is a named part of the process; Run blocks until ctx ends and gives nil then.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// Run runs store, network and board, then the agent's parts, then the local API, until ctx ends or one of them does; it stops them in
// reverse. Close comes after it.
func (b *Base) Run(ctx context.Context, parts ...Part) error {
	g := cli.NewGroup(b.Log)
	g.Go("store", b.db.Run)
	g.Go("network", b.Network.Run)
	g.Go("board", b.Board.Run)
	g.Go("revocations", func(ctx context.Context) error { return b.Delegations.Run(ctx, delegation.RevocationsTopic(b.name)) })
	g.Go("old evidence", b.dropEvidence)
	g.Go("witness", b.witness.Run)
	g.Go("netting", b.Net.Run)
	g.Go("recovery", b.recovery.Run)
	if b.Ledger.Backup != "" {
		g.Go("daily backup", b.daily().Run)
	}
	for _, p := range parts {
		g.Go(p.Name, p.Run)
	}
	g.Go("local API", b.Server.Run)
	return g.Run(ctx)
}

func (b *Base) onClose(f func() error) { b.closers = append(b.closers, f) }

// Close closes everything in reverse. A second call does nothing.
func (b *Base) Close() error {
	var errs []error
	for i := len(b.closers) - 1; i >= 0; i-- {
		if err := b.closers[i](); err != nil && !alreadyClosed(err) {
			errs = append(errs, err)
		}
	}
	b.closers = nil
	return errors.Join(errs...)
}
