package market

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of what a record may say. A figure beyond them is a mistake or an attack, never a machine or an agreement.
const (
	MaxDevices    = 64 // of one offer: a heartbeat has one bit for each
	MaxRate       = money.Rate(1_000_000_000_000)
	MaxTerm       = 90 * 24 * 3600 // seconds: longer rent is a new lease
	MinTTL        = 60             // seconds
	MaxTTL        = 2 * 3600       // seconds: also the age of a DHT record
	MinHeartbeat  = 5              // seconds: below it the rate limits of the network bite
	MaxBeatPeriod = 900            // seconds
	MaxMemoryMiB  = 64 << 20       // 64 TiB
	MaxCores      = 4096           // of one device
	MaxName       = 64             // bytes of a model's, driver's or region's name
	MaxMethods    = 4              // ways to settle
	MaxRegistries = 8              // that images may be pulled from
	MaxRegistry   = 64             // bytes of one's host
	MaxAddr       = 128            // bytes of a multiaddress
	MaxNotice     = 24 * 3600      // seconds
	MaxReclaim    = 24 * 3600      // seconds of rent
	MaxDueDays    = 366
	maxCredit     = money.Micro(1_000_000_000_000_000_000)
)

// Skew is how far an advert's issue time may be from the local clock; beyond it the advert is dropped as junk.
const Skew = 10 * time.Minute

// BeatsToDie is how many heartbeats in a row an offer may miss.
const BeatsToDie = 3

// Validate checks the limits of an offer. It says nothing about signatures and time.
func (o Offer) Validate() error {
	const what = "offer"
	switch {
	case o.Seq == 0:
		return invalid(what, "sequence 0")
	case o.IssuedAt <= 0:
		return invalid(what, "issue time %d", o.IssuedAt)
	case o.TTL < MinTTL || o.TTL > MaxTTL:
		return invalid(what, "time to live %d s, want %d to %d", o.TTL, MinTTL, MaxTTL)
	case o.Heartbeat < MinHeartbeat || o.Heartbeat > MaxBeatPeriod:
		return invalid(what, "heartbeat every %d s, want %d to %d", o.Heartbeat, MinHeartbeat, MaxBeatPeriod)
	case o.Delegation.IsZero():
		return invalid(what, "no delegation")
	case len(o.Lots) == 0 || len(o.Lots) > MaxLots:
		return invalid(what, "%d lots, want 1 to %d", len(o.Lots), MaxLots)
	case len(o.Addrs) > MaxAddrs:
		return invalid(what, "%d addresses, want at most %d", len(o.Addrs), MaxAddrs)
	}
	if err := o.Unit.Validate(); err != nil {
		return invalid(what, "%v", err)
	}
	if err := text(what, "region", o.Region, MaxName, false); err != nil {
		return err
	}
	for _, a := range o.Addrs {
		if err := text(what, "address", a, MaxAddr, true); err != nil {
			return err
		}
	}
	if err := o.Terms.Validate(); err != nil {
		return err
	}
	if err := o.Credit.Validate(); err != nil {
		return err
	}
	return o.validateLots()
}

func (o Offer) validateLots() error {
	ids := make(map[uint8]bool, len(o.Lots))
	devices := make(map[wire.Hash]bool)
	for _, l := range o.Lots {
		if err := l.Validate(); err != nil {
			return err
		}
		if ids[l.ID] {
			return invalid("offer", "two lots with id %d", l.ID)
		}
		ids[l.ID] = true
		for _, s := range l.Slots {
			if devices[s.Device] {
				return invalid("offer", "device %s twice", s.Device.Short())
			}
			devices[s.Device] = true
		}
	}
	if len(devices) > MaxDevices {
		return invalid("offer", "%d devices, want at most %d", len(devices), MaxDevices)
	}
	return nil
}

// Validate checks the limits of a lot.
func (l Lot) Validate() error {
	const what = "lot"
	switch {
	case l.Kind != KindGPU && l.Kind != KindCPU:
		return invalid(what, "kind %q, want gpu or cpu", clip(string(l.Kind)))
	case l.Kind == KindCPU && (l.VRAMMiB != 0 || l.Driver != ""):
		return invalid(what, "a cpu lot has no VRAM and no driver")
	case l.Kind == KindGPU && (l.VRAMMiB == 0 || l.VRAMMiB > MaxMemoryMiB):
		return invalid(what, "%d MiB of VRAM", l.VRAMMiB)
	case len(l.Slots) == 0 || len(l.Slots) > MaxSlots:
		return invalid(what, "%d devices, want 1 to %d", len(l.Slots), MaxSlots)
	case l.Cores == 0 || l.Cores > MaxCores:
		return invalid(what, "%d cores for each device, want 1 to %d", l.Cores, MaxCores)
	case l.MemoryMiB == 0 || l.MemoryMiB > MaxMemoryMiB:
		return invalid(what, "%d MiB of memory for each device", l.MemoryMiB)
	case l.DiskMiB > MaxMemoryMiB:
		return invalid(what, "%d MiB of disk", l.DiskMiB)
	case l.MinTerm == 0 || l.MinTerm > l.MaxTerm || l.MaxTerm > MaxTerm:
		return invalid(what, "terms of %d to %d s, want 1 to %d in order", l.MinTerm, l.MaxTerm, MaxTerm)
	case max(l.Price, l.Reserve, l.SpotFloor, l.Prepare) > MaxRate:
		return invalid(what, "a price over %v", MaxRate)
	case l.Prepare > l.Price:
		return invalid(what, "preparing at %v costs more than the price %v", l.Prepare, l.Price)
	case len(l.Figures) > MaxFigures:
		return invalid(what, "%d figures, want at most %d", len(l.Figures), MaxFigures)
	case l.Passport.IsZero():
		return invalid(what, "no passport")
	}
	for i, s := range l.Slots {
		if s.Device.IsZero() {
			return invalid(what, "device %d has no id", i)
		}
	}
	for i, f := range l.Figures {
		if slices.ContainsFunc(l.Figures[:i], func(g figure) bool { return g.ID == f.ID }) {
			return invalid(what, "figure %d twice", f.ID)
		}
	}
	if err := text(what, "model", l.Model, MaxName, true); err != nil {
		return err
	}
	return text(what, "driver", l.Driver, MaxName, false)
}

// Validate checks the limits of an owner's terms.
func (t Terms) Validate() error {
	const what = "terms"
	switch {
	case t.Sandbox != "runc" && t.Sandbox != "gvisor":
		return invalid(what, "sandbox %q, want runc or gvisor", clip(t.Sandbox))
	case t.Egress != "none" && t.Egress != "internet":
		return invalid(what, "egress %q, want none or internet", clip(t.Egress))
	case (t.Egress == "internet") != (t.EgressRate != 0) || (t.EgressRate != 0) != (t.EgressCap != 0):
		return invalid(what, "egress %s at %d bytes a second, %d of a lease: want both with internet, and neither without", t.Egress, t.EgressRate, t.EgressCap)
	case max(t.InPerGiB, t.OutPerGiB, t.StorePerGiB) > MaxRate:
		return invalid(what, "a price over %v", MaxRate)
	case t.Notice > MaxNotice:
		return invalid(what, "notice of %d s, want at most %d", t.Notice, MaxNotice)
	case t.Until < 0:
		return invalid(what, "a promise until %d", t.Until)
	case t.Reclaim > MaxReclaim:
		return invalid(what, "%d s of rent credited at a reclaim, want at most %d", t.Reclaim, MaxReclaim)
	case len(t.Settlement) == 0 || len(t.Settlement) > MaxMethods:
		return invalid(what, "%d ways to settle, want 1 to %d", len(t.Settlement), MaxMethods)
	case t.DueDays > MaxDueDays:
		return invalid(what, "due in %d days, want at most %d", t.DueDays, MaxDueDays)
	case t.OS != "linux":
		return invalid(what, "os %q, want linux", clip(t.OS))
	case t.Arch != "amd64" && t.Arch != "arm64":
		return invalid(what, "arch %q, want amd64 or arm64", clip(t.Arch))
	}
	if err := CheckRegistries(t.Registries); err != nil {
		return invalid(what, "%v", err)
	}
	for _, m := range t.Settlement {
		if err := text(what, "way to settle", m, 32, true); err != nil {
			return err
		}
	}
	return nil
}

var registryHost = regexp.MustCompile(`^([a-z0-9-]+\.)+[a-z0-9-]+(:[0-9]{1,5})?$`)

// CheckRegistries checks a list of registries: hosts by name, some with a port.
func CheckRegistries(list []string) error {
	if len(list) > MaxRegistries {
		return fmt.Errorf("%d registries, want at most %d", len(list), MaxRegistries)
	}
	for _, host := range list {
		if len(host) > MaxRegistry || !registryHost.MatchString(host) {
			return fmt.Errorf("registry %.80q: want a host such as registry.example.com", host)
		}
	}
	return nil
}

// Validate checks the limits of the credit limits: none is infinite.
func (c Credit) Validate() error {
	switch {
	case max(c.Stranger, c.StrangersTotal, c.KnownCap) > maxCredit:
		return invalid("credit", "a limit over %v", maxCredit)
	case c.KnownPercent > 10_000:
		return invalid("credit", "%d percent of what was settled", c.KnownPercent)
	}
	return nil
}

// Validate checks the limits of a heartbeat.
func (h Heartbeat) Validate() error {
	switch {
	case h.Seq == 0:
		return invalid("heartbeat", "sequence 0")
	case h.IssuedAt <= 0:
		return invalid("heartbeat", "issue time %d", h.IssuedAt)
	case h.Offer == [16]byte{}:
		return invalid("heartbeat", "no offer")
	}
	return nil
}

// Validate checks the limits of a tombstone.
func (t Tombstone) Validate() error {
	switch {
	case t.Seq == 0:
		return invalid("tombstone", "sequence 0")
	case t.IssuedAt <= 0:
		return invalid("tombstone", "issue time %d", t.IssuedAt)
	}
	return nil
}

// Lot finds a lot by its id.
func (o Offer) Lot(id uint8) (Lot, bool) {
	for _, l := range o.Lots {
		if l.ID == id {
			return l, true
		}
	}
	return Lot{}, false
}

// Devices is how many devices the offer's lots have together.
func (o Offer) Devices() int {
	n := 0
	for _, l := range o.Lots {
		n += len(l.Slots)
	}
	return n
}

// FreeBits is the offer's free devices as a heartbeat says them: bit i for device i, counted through the lots in order.
func (o Offer) FreeBits() uint64 {
	var bits uint64
	i := 0
	for _, l := range o.Lots {
		for _, s := range l.Slots {
			if s.Free && i < MaxDevices {
				bits |= 1 << i
			}
			i++
		}
	}
	return bits
}

// WithFree is a copy of the offer whose devices are free as a heartbeat's bits say. Bits beyond the last device are ignored.
func (o Offer) WithFree(bits uint64) Offer {
	lots := slices.Clone(o.Lots)
	i := 0
	for n := range lots {
		slots := slices.Clone(lots[n].Slots)
		for k := range slots {
			slots[k].Free = i < MaxDevices && bits&(1<<i) != 0
			i++
		}
		lots[n].Slots = slots
	}
	o.Lots = lots
	return o
}

// Free is how many devices of the lot are free.
func (l Lot) Free() int {
	n := 0
	for _, s := range l.Slots {
		if s.Free {
			n++
		}
	}
	return n
}

// NumGPUs is how many GPUs the lot has: none if its devices are CPUs.
func (l Lot) NumGPUs() int {
	if l.Kind != KindGPU {
		return 0
	}
	return len(l.Slots)
}

// Issued is when the advert says it was signed.
func (o Offer) Issued() time.Time { return time.UnixMilli(o.IssuedAt) }

// Issued is when the advert says it was signed.
func (h Heartbeat) Issued() time.Time { return time.UnixMilli(h.IssuedAt) }

// Issued is when the advert says it was signed.
func (t Tombstone) Issued() time.Time { return time.UnixMilli(t.IssuedAt) }

// Lapsed reports whether the offer's time to live was over at now, by the issuer's clock give or take [Skew].
func (o Offer) Lapsed(now time.Time) bool {
	return now.Sub(o.Issued()) > time.Duration(o.TTL)*time.Second+Skew
}

// Silence is how long an offer may go unheard before it counts as dead.
func (o Offer) Silence() time.Duration {
	return BeatsToDie * time.Duration(o.Heartbeat) * time.Second
}

// Fresh reports whether an advert issued at t is within [Skew] of now. The difference saturates, so no time is out of reach.
func Fresh(t, now time.Time) bool {
	d := now.Sub(t)
	return d != math.MinInt64 && d.Abs() <= Skew
}

// text checks a string that people will see: its length, and that every character prints.
func text(what, field, s string, limit int, need bool) error {
	switch {
	case s == "" && need:
		return invalid(what, "no %s", field)
	case len(s) > limit:
		return invalid(what, "%s of %d bytes, want at most %d", field, len(s), limit)
	case !utf8.ValidString(s):
		return invalid(what, "%s is not UTF-8", field)
	}
	for _, c := range s {
		if c < ' ' || c > '~' {
			return invalid(what, "%s %q has a character outside printable ASCII", field, s)
		}
	}
	return nil
}

// clip bounds a stranger's text in an error.
func clip(s string) string { return s[:min(len(s), 32)] }
