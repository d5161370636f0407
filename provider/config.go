package provider

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// ErrConfig says that the owner's settings make no sense.
var ErrConfig = errors.New("configuration")

// Config is what the owner wants. All of it can change while the agent runs, but for Network and Unit.
type Config struct {
	Network string
	Unit    money.Unit
	Region  string
	// Accounts are whom the owner serves. Until the sandbox is hard enough for strangers there is no "any".
	Accounts []identity.AccountID
	Lots     []Lot
	Notice   time.Duration // before a reclaim by `leases stop`; `pause` gives none
	Reclaim  time.Duration // of rent that comes off the charge when the owner takes a device back
	DueDays  uint32
	Methods  []string // how the owner may be paid
	UseTerms string   // what renters must agree to; its hash is in the offer
	Egress   Egress   // what the network of jobs reaches; zero: nothing
	// Registries are the hosts that images may be pulled from at a renter's bidding ("registry.example.com"); empty: renters push theirs.
	Registries []string
	Credit     CreditConfig // zero fields: the defaults of spec/ledger.md
	LogBytes   int64        // of one job's output that is kept; the oldest is dropped beyond
	// DiskReserve is how many bytes stay free where leases lie, beside what they may take: with less nothing is sold.
	DiskReserve int64
	// Unanswered is how many leases of one account may go unacknowledged in ten minutes; 0: DefaultUnanswered.
	Unanswered int
	Auction    AuctionConfig
	Addrs      []string // multiaddresses to put into the offer; empty: those that the network listens on
}

// CreditConfig is the owner's credit limits; a nil field is the default, computed from the dearest lot.
type CreditConfig struct {
	Stranger       *money.Micro
	StrangersTotal *money.Micro
	KnownPercent   *uint32
	KnownCap       *money.Micro
}

// Egress is what an owner lets jobs have of the internet, TCP, UDP and names; what lies in the owner's own networks is never reached
// (provider/reach).
type Egress struct {
	Rate uint64   // bytes a second each way, of one lease; 0: no egress
	Cap  uint64   // bytes of one lease, both ways together
	Deny []string // networks ("203.0.113.0/24") that are denied besides
}

// kind is the egress as offers have it.
func (e Egress) kind() string {
	if e.Rate == 0 {
		return EgressNone
	}
	return EgressInternet
}

func (e Egress) validate() error {
	if (e.Rate == 0) != (e.Cap == 0) {
		return fmt.Errorf("%w: egress at %d bytes a second and %d of a lease: want both, or neither for no egress", ErrConfig, e.Rate, e.Cap)
	}
	for _, d := range e.Deny {
		if _, err := netip.ParsePrefix(d); err != nil {
			return fmt.Errorf("%w: egress: deny %q: want a network such as 203.0.113.0/24", ErrConfig, d)
		}
	}
	return nil
}

// Lot is one device on offer with its price.
type Lot struct {
	Device    wire.Hash // of its UUID
	Price     money.Rate
	Prepare   money.Rate // while preparing beyond the free minutes
	Reserve   money.Rate // the lowest that a sealed bid may be; 0: not sold by auction
	Floor     money.Rate // the lowest that a quote may be; 0: quoted at the price
	MinTerm   time.Duration
	MaxTerm   time.Duration
	Cores     []int // of the host that a job on the device may run on
	MemoryMiB uint64
	DiskMiB   uint64
	Pids      int64
}

// maxMiB is 64 TiB, as a job's needs are limited.
const maxMiB = 1 << 26

// Validate says which setting makes no sense.
func (c Config) Validate() error {
	if err := c.Unit.Validate(); err != nil {
		return fmt.Errorf("%w: unit: %w", ErrConfig, err)
	}
	if err := c.Auction.Validate(); err != nil {
		return err
	}
	switch {
	case len(c.Lots) > market.MaxLots:
		return fmt.Errorf("%w: %d devices on offer, at most %d fit an offer", ErrConfig, len(c.Lots), market.MaxLots)
	case c.LogBytes < 64<<10:
		return fmt.Errorf("%w: log bytes %d: want 64 KiB or more", ErrConfig, c.LogBytes)
	case c.DiskReserve < 0 || c.DiskReserve > maxMiB<<20:
		return fmt.Errorf("%w: disk reserve of %d bytes: want 0 to 64 TiB", ErrConfig, c.DiskReserve)
	case c.Unanswered < 0 || c.Unanswered > 1000:
		return fmt.Errorf("%w: %d unanswered leases: want 1 to 1000", ErrConfig, c.Unanswered)
	case len(c.Methods) == 0:
		return fmt.Errorf("%w: settlement: name at least one method, such as manual", ErrConfig)
	case c.Notice < 0 || c.Notice > time.Hour || c.Reclaim < 0 || c.Reclaim > time.Hour:
		return fmt.Errorf("%w: notice %v and reclaim credit %v: want 0 to 1 h", ErrConfig, c.Notice, c.Reclaim)
	}
	if err := c.Egress.validate(); err != nil {
		return err
	}
	if err := market.CheckRegistries(c.Registries); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	seen, devices := map[int]bool{}, map[wire.Hash]bool{}
	for i, l := range c.Lots {
		switch {
		case l.Device.IsZero():
			return fmt.Errorf("%w: device %d has no id", ErrConfig, i+1)
		case devices[l.Device]:
			return fmt.Errorf("%w: device %d is there twice", ErrConfig, i+1)
		case l.MaxTerm > market.MaxTerm*time.Second:
			return fmt.Errorf("%w: device %d: a longest term of %v: want at most %v", ErrConfig, i+1, l.MaxTerm, market.MaxTerm*time.Second)
		case max(l.Price, l.Prepare, l.Reserve, l.Floor) > market.MaxRate:
			return fmt.Errorf("%w: device %d: a price of %v: want at most %v", ErrConfig, i+1, max(l.Price, l.Prepare, l.Reserve, l.Floor), money.Rate(market.MaxRate))
		case l.Floor > l.Price:
			return fmt.Errorf("%w: device %d: a floor of %v above the price of %v: quotes go from the price down to the floor", ErrConfig, i+1, l.Floor, l.Price)
		case max(l.MemoryMiB, l.DiskMiB) > maxMiB:
			return fmt.Errorf("%w: device %d: more than 64 TiB of memory or disk", ErrConfig, i+1)
		case l.MinTerm < time.Second || l.MaxTerm < l.MinTerm:
			return fmt.Errorf("%w: device %d: terms from %v to %v: want at least 1 s, and the longest not below the shortest", ErrConfig, i+1,
				l.MinTerm, l.MaxTerm)
		case len(l.Cores) == 0 || l.MemoryMiB < 16 || l.DiskMiB < 16 || l.Pids < 8:
			return fmt.Errorf("%w: device %d: a job needs a core, 16 MiB of memory and disk, and 8 processes", ErrConfig, i+1)
		}
		devices[l.Device] = true
		for _, core := range l.Cores {
			if seen[core] {
				return fmt.Errorf("%w: core %d is in two devices", ErrConfig, core)
			}
			seen[core] = true
		}
	}
	return nil
}

// Serves reports whether the owner named the account.
func (c Config) Serves(a identity.AccountID) bool { return slices.Contains(c.Accounts, a) }

// missing says what an owner has yet to configure before anything can be offered; empty if nothing is.
func (c Config) missing() string {
	var parts []string
	if len(c.Lots) == 0 {
		parts = append(parts, "no device is configured: add a [[cpu]] to the settings")
	}
	if len(c.Accounts) == 0 {
		parts = append(parts, "no account is served: add one to serve.accounts")
	}
	return strings.Join(parts, "; ")
}

// Use names the owner's use terms.
func (c Config) Use() wire.Hash { return wire.Sum("gpufair/use-terms/1", []byte(c.UseTerms)) }

// Limits are the credit limits that the owner set, or the defaults for the dearest lot.
func (c Config) Limits() (ledger.Limits, error) { return c.limits(0) }

// limits are the limits where something runs at a price that may be no lot's any more.
func (c Config) limits(dearest money.Rate) (ledger.Limits, error) {
	for _, l := range c.Lots {
		dearest = max(dearest, l.Price)
	}
	limits, err := ledger.DefaultLimits(dearest, 1)
	if err != nil {
		return limits, fmt.Errorf("%w: price %v: %w", ErrConfig, dearest, err)
	}
	set(&limits.Stranger, c.Credit.Stranger)
	set(&limits.StrangersTotal, c.Credit.StrangersTotal)
	set(&limits.KnownPercent, c.Credit.KnownPercent)
	set(&limits.KnownCap, c.Credit.KnownCap)
	return limits, nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// lot finds the settings of a device.
func (c Config) lot(device wire.Hash) (Lot, bool) {
	for _, l := range c.Lots {
		if l.Device == device {
			return l, true
		}
	}
	return Lot{}, false
}

// terms are the offer's terms.
func (c Config) terms(sandbox string) market.Terms {
	return market.Terms{
		Sandbox: sandbox, Egress: c.Egress.kind(), Notice: uint32(c.Notice / time.Second), Reclaim: uint32(c.Reclaim / time.Second),
		Settlement: c.Methods, DueDays: c.DueDays, Use: c.Use(), OS: "linux", Arch: runtime.GOARCH, EgressRate: c.Egress.Rate, EgressCap: c.Egress.Cap,
		Registries: c.Registries,
	}
}
