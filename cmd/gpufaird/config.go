package main

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/lock"
	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/fetch"
)

// config is the owner's settings file, key by key.
type config struct {
	wire.NetConfig
	Announce []string   `toml:"announce" comment:"multiaddresses to put into offers instead of those that this machine finds out, and to be reached at: a router's outside address"`
	State    string     `toml:"state" comment:"folder of identity, ledger and jobs; empty: state under --home, else /var/lib/gpufaird"`
	Socket   string     `toml:"socket" comment:"unix socket of the local API; empty: api.sock in the run folder"`
	Locks    string     `toml:"locks" comment:"folder of the machine-wide locks on cores and cards; the same for all daemons of a machine"`
	Region   string     `toml:"region" comment:"where the machine stands, as renters search for it: eu-north, Berlin …"`
	Unit     money.Unit `toml:"unit" comment:"what prices are in"`
	Pulls    []string   `toml:"registries" comment:"hosts of registries that images are pulled from over your network when a renter names one by its name there; empty: none, renters send theirs as files"`
	Reserve  cli.Size   `toml:"disk_reserve" comment:"of the disk of state that stays free beside what leases may take, for their images and inputs and for you; with less no lease is sold"`

	Serve      serveConfig       `toml:"serve" comment:"Whom to serve. Until the sandbox is hard enough for strangers, only accounts that stand here get anything"`
	Auction    auctionConfig     `toml:"auction" comment:"How devices that have a reserve are sold by sealed bids: docs/auctions.md"`
	Terms      termsConfig       `toml:"terms" comment:"What renters agree to"`
	Egress     egressConfig      `toml:"egress" comment:"What the network of jobs reaches. Never, whatever stands here: this machine, its networks and neighbours, private and link-local addresses, metadata, mail (port 25)"`
	Credit     creditConfig      `toml:"credit" comment:"How much renters may come to owe before they settle; empty: a default that follows from the prices"`
	Settlement settlementConfig  `toml:"settlement" comment:"How renters pay"`
	Ledger     wire.LedgerConfig `toml:"ledger" comment:"What you owe and are owed"`
	Runtime    runtimeConfig     `toml:"runtime" comment:"Where jobs run"`
	Relay      relayConfig       `toml:"relay" comment:"What \"gpufaird relay\" gives to others. No other command reads this"`
	Log        cli.LogConfig     `toml:"log"`
	CPU        []cpuConfig       `toml:"cpu,omitempty" comment:"CPU cores on offer, one [[cpu]] for each device"`
}

type serveConfig struct {
	Accounts   []identity.AccountID `toml:"accounts" comment:"as \"gpufair identity show\" prints them on the renter's machine"`
	Unanswered int                  `toml:"unanswered" comment:"leases that an account may leave unacknowledged in ten minutes; more are not sold to it"`
}

type auctionConfig struct {
	Mode   auction.Mode `toml:"mode" comment:"first (each pays its own bid), kplus1 (one device a bidder, all pay the highest bid that lost) or vcg (bundles; trusts the seller)"`
	Bond   uint32       `toml:"bond_percent" comment:"of the lot at its reserve for the shortest lease: what winners get off for each bid that stays sealed; 100 is what bidders trust"`
	Commit cli.Duration `toml:"commit" comment:"in which bids are sent, 5s to 1h; meanwhile the device is not for sale at its price"`
	Reveal cli.Duration `toml:"reveal" comment:"in which bids are shown, 5s to 1h"`
}

type cpuConfig struct {
	Cores   benchmark.Cores `toml:"cores" comment:"as the kernel numbers them: \"0-3,8\""`
	Price   money.Rate      `toml:"price" comment:"per hour, in quotes: \"0.10\""`
	Prepare money.Rate      `toml:"prepare_price,omitempty" comment:"per hour while a job's image and inputs arrive beyond the free minutes"`
	Reserve money.Rate      `toml:"reserve,omitempty" comment:"per hour: sealed bids of at least that are taken, too; absent: sold at the price alone"`
	Floor   money.Rate      `toml:"floor,omitempty" comment:"per hour: the lowest price for who asks for a quote (gpufair run --max-price); absent: the price"`
	Memory  cli.Size        `toml:"memory" comment:"for the job: \"2GiB\""`
	Disk    cli.Size        `toml:"disk" comment:"for the job's files: \"10GiB\""`
	MinTerm cli.Duration    `toml:"min_term" comment:"shortest lease: \"60s\""`
	MaxTerm cli.Duration    `toml:"max_term" comment:"longest lease: \"24h\""`
	Pids    int64           `toml:"max_pids" comment:"processes and threads of a job"`
}

type termsConfig struct {
	Use     string       `toml:"use" comment:"use terms, as a text; offers carry its hash"`
	Notice  cli.Duration `toml:"notice" comment:"that a job gets before \"leases stop\" ends it"`
	Reclaim cli.Duration `toml:"reclaim" comment:"of rent that comes off the charge when you take a device back"`
	LogSize cli.Size     `toml:"log_size" comment:"of one job's output that is kept; the oldest is dropped beyond"`
}

type egressConfig struct {
	Internet bool     `toml:"internet" comment:"let jobs reach the internet: TCP, UDP and names. What they do there looks like your doing; connections are logged for 30 days, the newest 8 MiB and more of each lease"`
	Rate     cli.Size `toml:"rate" comment:"bytes a second, each way, of one lease: \"12MiB\" is some 100 Mbit/s"`
	Cap      cli.Size `toml:"cap" comment:"bytes of one lease, both ways together"`
	Deny     []string `toml:"deny" comment:"networks that jobs may not reach besides, such as your router's address as the internet sees it: \"203.0.113.7/32\""`
}

// provider is the same as the agent wants it.
func (e egressConfig) provider() provider.Egress {
	if !e.Internet {
		return provider.Egress{}
	}
	return provider.Egress{Rate: uint64(e.Rate), Cap: uint64(e.Cap), Deny: e.Deny}
}

type creditConfig struct {
	Stranger       string  `toml:"stranger" comment:"for one account that never settled; empty: half an hour of the dearest device"`
	StrangersTotal string  `toml:"strangers_total" comment:"for all of them together; empty: four hours of it"`
	KnownPercent   *uint32 `toml:"known_percent" comment:"of what an account has settled, that it may owe again"`
	KnownCap       string  `toml:"known_cap" comment:"at most that much; empty: a hundred hours of the dearest device"`
}

type settlementConfig struct {
	Methods []string `toml:"methods" comment:"how you may be paid, as names that both sides understand"`
	DueDays uint32   `toml:"due_days" comment:"after which what is owed is late"`
	wire.RailConfig
	InvoiceAfter cli.Duration `toml:"invoice_after" comment:"the program is asked for an invoice so long after the end of the oldest unpaid lease, 0s to 90d"`
}

// maxInvoiceAfter is longer than any due time that makes sense.
const maxInvoiceAfter = 90 * 24 * time.Hour

// sameRail reports whether s has payments handled as old did.
func (s settlementConfig) sameRail(old settlementConfig) bool {
	return slices.Equal(s.Command, old.Command) && s.User == old.User && s.TimeLimit == old.TimeLimit && s.InvoiceAfter == old.InvoiceAfter &&
		(len(s.Command) == 0 || slices.Equal(s.Methods, old.Methods))
}

type runtimeConfig struct {
	Address   string   `toml:"address" comment:"containerd's socket"`
	Namespace string   `toml:"namespace" comment:"of containerd, for this daemon's containers alone"`
	Root      string   `toml:"root" comment:"where runc keeps its state; empty: /run/containerd/runc. A private containerd needs its own"`
	Init      string   `toml:"init" comment:"the gpufair-init that starts every job; empty: the one beside this program"`
	Inbox     cli.Size `toml:"inbox" comment:"disk for images and inputs that renters send, until they are unpacked; shared equally by the devices on offer"`
}

// configHeader stands over the file that `config init` writes.
const configHeader = `Settings of gpufaird. Every key can also be given as --set key=value or as GPUFAIR_<KEY> (dots are underscores).
"gpufaird config check" explains mistakes by line; "gpufaird config reload" takes changes over into the running daemon.

What you rent out stands at the end of this file, one table for each set of CPU cores:

  [[cpu]]
  cores = "0-1"
  price = "0.10"      # CREDIT per hour
  memory = "2GiB"
  disk = "10GiB"
  min_term = "60s"
  max_term = "24h"
  max_pids = 512

Whom you serve stands under [serve]. Without an account there nothing is offered.`

// defaults are the settings of a machine that nobody configured: it offers nothing.
func defaults() config {
	known := uint32(50)
	return config{
		NetConfig: wire.DefaultNet(), Announce: []string{}, Locks: lock.DefaultDir, Unit: money.Credit, Pulls: fetch.Known(), Reserve: 2 << 30,
		Serve: serveConfig{Accounts: []identity.AccountID{}, Unanswered: provider.DefaultUnanswered},
		Auction: auctionConfig{
			Mode: auction.First, Bond: 100, Commit: cli.Duration(auction.DefaultCommit * time.Second), Reveal: cli.Duration(auction.DefaultReveal * time.Second),
		},
		Terms:      termsConfig{Notice: 0, Reclaim: cli.Duration(time.Minute), LogSize: 64 << 20},
		Egress:     egressConfig{Rate: 12 << 20, Cap: 100 << 30, Deny: []string{}},
		Credit:     creditConfig{KnownPercent: &known},
		Settlement: settlementConfig{Methods: []string{"manual"}, DueDays: 30, RailConfig: wire.DefaultRail(), InvoiceAfter: cli.Duration(24 * time.Hour)},
		Runtime:    runtimeConfig{Address: "/run/containerd/containerd.sock", Namespace: "gpufair", Inbox: 32 << 30},
		Relay:      defaultRelay(),
		Ledger:     wire.DefaultLedger(),
		Log:        cli.DefaultLog(),
	}
}

// Validate says what is wrong, by key.
func (c *config) Validate() error {
	errs := []error{c.net().Validate(), c.Relay.Validate(), c.Log.Validate(), c.Ledger.Validate(), c.Settlement.RailConfig.Validate(), c.validatePaths()}
	bad := func(key, format string, args ...any) { errs = append(errs, cli.KeyErrorf(key, format, args...)) }
	if err := c.Unit.Validate(); err != nil {
		bad("unit", "%w", err)
	}
	if len(c.Region) > market.MaxName {
		bad("region", "%d bytes, at most %d", len(c.Region), market.MaxName)
	}
	if n := len(c.Settlement.Methods); n == 0 || n > market.MaxMethods {
		bad("settlement.methods", "%d methods: want 1 to %d, such as \"manual\"", n, market.MaxMethods)
	}
	if d := c.Settlement.InvoiceAfter.Std(); d < 0 || d > maxInvoiceAfter {
		bad("settlement.invoice_after", "%v: want 0s to %v", c.Settlement.InvoiceAfter, cli.Duration(maxInvoiceAfter))
	}
	if len(c.Announce) > market.MaxAddrs {
		bad("announce", "%d addresses: want at most %d", len(c.Announce), market.MaxAddrs)
	}
	for key, d := range map[string]cli.Duration{"terms.notice": c.Terms.Notice, "terms.reclaim": c.Terms.Reclaim} {
		if d < 0 || d.Std() > time.Hour {
			bad(key, "%v: want 0s to 1h", d)
		}
	}
	if c.Terms.LogSize < 64<<10 {
		bad("terms.log_size", "%v: want 64KiB or more", c.Terms.LogSize)
	}
	if c.Reserve > 64<<40 {
		bad("disk_reserve", "%v: want at most 64TiB", c.Reserve)
	}
	if err := market.CheckRegistries(c.Pulls); err != nil {
		bad("registries", "%w", err)
	}
	if c.Runtime.Inbox < 64<<20 {
		bad("runtime.inbox", "%v: want 64MiB or more", c.Runtime.Inbox)
	}
	if err := c.auction().Validate(); err != nil {
		bad("auction", "%w", err)
	}
	if c.Egress.Rate < 64<<10 {
		bad("egress.rate", "%v: want 64KiB or more", c.Egress.Rate)
	}
	if c.Egress.Cap < 1<<20 {
		bad("egress.cap", "%v: want 1MiB or more", c.Egress.Cap)
	}
	for i, d := range c.Egress.Deny {
		if _, err := netip.ParsePrefix(d); err != nil {
			bad(fmt.Sprintf("egress.deny[%d]", i), "%q: want a network such as \"203.0.113.0/24\"", cli.Clean(d))
		}
	}
	if len(c.CPU) > market.MaxLots {
		bad("cpu", "%d devices: at most %d fit an offer", len(c.CPU), market.MaxLots)
	}
	if _, err := c.credit(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, c.validateCPU())...)
}

// validatePaths checks what must be absolute: a daemon's working folder is nobody's choice.
func (c *config) validatePaths() error {
	var errs []error
	for _, p := range []struct {
		key, path string
		must      bool
	}{
		{"state", c.State, false},
		{"socket", c.Socket, false},
		{"locks", c.Locks, true},
		{"runtime.address", c.Runtime.Address, true},
		{"runtime.root", c.Runtime.Root, false},
		{"runtime.init", c.Runtime.Init, false},
	} {
		if !filepath.IsAbs(p.path) && (p.must || p.path != "") {
			errs = append(errs, cli.KeyErrorf(p.key, "%q: want an absolute path", cli.Clean(p.path)))
		}
	}
	for key, path := range map[string]string{"socket": c.Socket, "runtime.address": c.Runtime.Address} {
		if len(path) > maxSocket {
			errs = append(errs, cli.KeyErrorf(key, "a path of %d bytes: a socket's may have at most %d", len(path), maxSocket))
		}
	}
	if !isNamespace(c.Runtime.Namespace) {
		errs = append(errs, cli.KeyErrorf("runtime.namespace", "%q: want 1 to %d small letters and digits, with single _ or - between them, such as \"gpufair\"",
			cli.Clean(c.Runtime.Namespace), maxNamespace))
	}
	return errors.Join(errs...)
}

const (
	maxSocket    = 107 // bytes of a socket's path: Linux's sun_path has 108 with the final zero (unix(7))
	maxNamespace = 63  // bytes, as provider/containerd takes; containerd itself takes 76 (containerd, pkg/identifiers)
)

// isNamespace is what both provider/containerd and containerd itself take: small letters and digits, with single separators between them.
func isNamespace(s string) bool {
	return len(s) <= maxNamespace && regexp.MustCompile(`^[a-z0-9]+(?:[_-][a-z0-9]+)*$`).MatchString(s)
}

func (c *config) validateCPU() error {
	var errs []error
	owner := map[uint32]int{}
	for i, d := range c.CPU {
		bad := func(key, format string, args ...any) {
			errs = append(errs, cli.KeyErrorf(fmt.Sprintf("cpu[%d].%s", i, key), format, args...))
		}
		if err := d.Cores.Validate(); err != nil {
			bad("cores", "%w", err)
		}
		for _, core := range d.Cores {
			if first, taken := owner[core]; taken {
				bad("cores", "core %d is in [[cpu]] number %d already", core, first+1)
			}
			owner[core] = i
		}
		if d.MinTerm.Std() < time.Second || d.MaxTerm < d.MinTerm {
			bad("min_term", "terms from %v to %v: want at least 1s, and the longest not below the shortest", d.MinTerm, d.MaxTerm)
		}
		if d.Memory < 16<<20 {
			bad("memory", "%v: want 16MiB or more", d.Memory)
		}
		if d.Disk < 16<<20 {
			bad("disk", "%v: want 16MiB or more", d.Disk)
		}
		if d.Pids < 8 {
			bad("max_pids", "%d: want 8 or more", d.Pids)
		}
	}
	return errors.Join(errs...)
}

// credit is the credit limits that the owner set.
func (c *config) credit() (provider.CreditConfig, error) {
	out := provider.CreditConfig{KnownPercent: c.Credit.KnownPercent}
	var errs []error
	for _, f := range []struct {
		key, text string
		to        **money.Micro
	}{
		{"credit.stranger", c.Credit.Stranger, &out.Stranger},
		{"credit.strangers_total", c.Credit.StrangersTotal, &out.StrangersTotal},
		{"credit.known_cap", c.Credit.KnownCap, &out.KnownCap},
	} {
		if f.text == "" {
			continue
		}
		m, err := money.Parse(f.text)
		if err != nil {
			errs = append(errs, &cli.KeyError{Key: f.key, Err: err})
			continue
		}
		*f.to = &m
	}
	return out, errors.Join(errs...)
}

func (c *config) auction() provider.AuctionConfig {
	return provider.AuctionConfig{Mode: c.Auction.Mode, Bond: c.Auction.Bond, Commit: c.Auction.Commit.Std(), Reveal: c.Auction.Reveal.Std()}
}

// provider is the same as the agent wants it.
func (c *config) provider(machine benchmark.MachineID) (provider.Config, error) {
	credit, err := c.credit()
	if err != nil {
		return provider.Config{}, err
	}
	out := provider.Config{
		Network: c.Network, Unit: c.Unit, Region: c.Region, Accounts: c.Serve.Accounts, Unanswered: c.Serve.Unanswered, Notice: c.Terms.Notice.Std(),
		Reclaim: c.Terms.Reclaim.Std(), DueDays: c.Settlement.DueDays, Methods: c.Settlement.Methods, UseTerms: c.Terms.Use, Credit: credit,
		LogBytes: int64(c.Terms.LogSize), DiskReserve: int64(c.Reserve), Egress: c.Egress.provider(), Registries: c.Pulls, Addrs: c.Announce, Auction: c.auction(),
	}
	for _, d := range c.CPU {
		lot := provider.Lot{
			Device: benchmark.CPUDevice(machine, d.Cores), Price: d.Price, Prepare: d.Prepare, Reserve: d.Reserve, Floor: d.Floor, MinTerm: d.MinTerm.Std(), MaxTerm: d.MaxTerm.Std(),
			MemoryMiB: uint64(d.Memory) >> 20, DiskMiB: uint64(d.Disk) >> 20, Pids: d.Pids,
		}
		for _, core := range d.Cores {
			lot.Cores = append(lot.Cores, int(core))
		}
		out.Lots = append(out.Lots, lot)
	}
	return out, nil
}

// net is how to meet peers, with what the owner knows of the machine's addresses.
func (c *config) net() wire.NetConfig {
	out := c.NetConfig
	out.Outside = c.Announce
	return out
}

// fixed names the keys that differ from old and can't change while the daemon runs.
func (c *config) fixed(old *config) []string {
	var keys []string
	for _, k := range []struct {
		name string
		same bool
	}{
		{"network", c.Network == old.Network},
		{"listen", fmt.Sprint(c.Listen) == fmt.Sprint(old.Listen)},
		{"peers", fmt.Sprint(c.Peers) == fmt.Sprint(old.Peers)},
		{"mdns", c.MDNS == old.MDNS},
		{"upnp", c.UPnP == old.UPnP},
		{"state", c.State == old.State},
		{"socket", c.Socket == old.Socket},
		{"locks", c.Locks == old.Locks},
		{"unit", c.Unit == old.Unit},
		{"runtime", c.Runtime == old.Runtime},
		{"ledger.backup", c.Ledger.Backup == old.Ledger.Backup && c.Ledger.Keep == old.Ledger.Keep},
		{"ledger.dispute_days", c.Ledger.DisputeDays == old.Ledger.DisputeDays},
		{"settlement.command", c.Settlement.sameRail(old.Settlement)},
		{"log.format", c.Log.Format == old.Log.Format},
	} {
		if !k.same {
			keys = append(keys, k.name)
		}
	}
	return keys
}
