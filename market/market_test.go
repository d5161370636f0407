package market_test

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// spoiledOffers are changes that each break one limit of an offer.
func spoiledOffers() map[string]func(o *market.Offer) {
	lot := func(o *market.Offer) *market.Lot { return &o.Lots[0] }
	return map[string]func(o *market.Offer){
		"sequence 0":       func(o *market.Offer) { o.Seq = 0 },
		"no issue time":    func(o *market.Offer) { o.IssuedAt = 0 },
		"short life":       func(o *market.Offer) { o.TTL = market.MinTTL - 1 },
		"long life":        func(o *market.Offer) { o.TTL = market.MaxTTL + 1 },
		"fast beat":        func(o *market.Offer) { o.Heartbeat = market.MinHeartbeat - 1 },
		"slow beat":        func(o *market.Offer) { o.Heartbeat = market.MaxBeatPeriod + 1 },
		"no delegation":    func(o *market.Offer) { o.Delegation = wire.Hash{} },
		"unit":             func(o *market.Offer) { o.Unit = "credit" },
		"no lots":          func(o *market.Offer) { o.Lots = nil },
		"nine lots":        func(o *market.Offer) { o.Lots = slices.Repeat(o.Lots[:1], market.MaxLots+1) },
		"same lot id":      func(o *market.Offer) { o.Lots[1].ID = o.Lots[0].ID },
		"device twice":     func(o *market.Offer) { o.Lots[1].Slots[0] = o.Lots[0].Slots[0] },
		"region":           func(o *market.Offer) { o.Region = "eu\x1b[2J" },
		"four addresses":   func(o *market.Offer) { o.Addrs = slices.Repeat(o.Addrs, market.MaxAddrs+1) },
		"empty address":    func(o *market.Offer) { o.Addrs = []string{""} },
		"long address":     func(o *market.Offer) { o.Addrs = []string{strings.Repeat("a", market.MaxAddr+1)} },
		"kind":             func(o *market.Offer) { lot(o).Kind = "tpu" },
		"cpu with VRAM":    func(o *market.Offer) { o.Lots[1].VRAMMiB = 1 },
		"cpu with driver":  func(o *market.Offer) { o.Lots[1].Driver = "550" },
		"gpu without VRAM": func(o *market.Offer) { lot(o).VRAMMiB = 0 },
		"no devices":       func(o *market.Offer) { lot(o).Slots = nil },
		"17 devices":       func(o *market.Offer) { lot(o).Slots = devices(market.MaxSlots + 1) },
		"device without id": func(o *market.Offer) {
			lot(o).Slots = slices.Clone(lot(o).Slots)
			lot(o).Slots[0].Device = wire.Hash{}
		},
		"no cores":          func(o *market.Offer) { lot(o).Cores = 0 },
		"no memory":         func(o *market.Offer) { lot(o).MemoryMiB = 0 },
		"much disk":         func(o *market.Offer) { lot(o).DiskMiB = math.MaxUint64 },
		"no shortest term":  func(o *market.Offer) { lot(o).MinTerm = 0 },
		"terms crossed":     func(o *market.Offer) { lot(o).MinTerm = lot(o).MaxTerm + 1 },
		"long term":         func(o *market.Offer) { lot(o).MaxTerm = market.MaxTerm + 1 },
		"price":             func(o *market.Offer) { lot(o).Price = market.MaxRate + 1 },
		"reserve":           func(o *market.Offer) { lot(o).Reserve = market.MaxRate + 1 },
		"dear preparing":    func(o *market.Offer) { lot(o).Prepare = lot(o).Price + 1 },
		"no passport":       func(o *market.Offer) { lot(o).Passport = wire.Hash{} },
		"no model":          func(o *market.Offer) { lot(o).Model = "" },
		"long model":        func(o *market.Offer) { lot(o).Model = strings.Repeat("x", market.MaxName+1) },
		"many figures":      func(o *market.Offer) { lot(o).Figures = figures(market.MaxFigures + 1) },
		"figure twice":      func(o *market.Offer) { lot(o).Figures = slices.Repeat(figures(1), 2) },
		"sandbox":           func(o *market.Offer) { o.Terms.Sandbox = "none" },
		"egress":            func(o *market.Offer) { o.Terms.Egress = "some" },
		"traffic price":     func(o *market.Offer) { o.Terms.InPerGiB = market.MaxRate + 1 },
		"long notice":       func(o *market.Offer) { o.Terms.Notice = market.MaxNotice + 1 },
		"negative promise":  func(o *market.Offer) { o.Terms.Until = -1 },
		"reclaim":           func(o *market.Offer) { o.Terms.Reclaim = market.MaxReclaim + 1 },
		"no settlement":     func(o *market.Offer) { o.Terms.Settlement = nil },
		"empty settlement":  func(o *market.Offer) { o.Terms.Settlement = []string{""} },
		"late due":          func(o *market.Offer) { o.Terms.DueDays = market.MaxDueDays + 1 },
		"os":                func(o *market.Offer) { o.Terms.OS = "plan9" },
		"arch":              func(o *market.Offer) { o.Terms.Arch = "riscv64" },
		"infinite credit":   func(o *market.Offer) { o.Credit.Stranger = math.MaxInt64 },
		"endless percent":   func(o *market.Offer) { o.Credit.KnownPercent = 10_001 },
		"more than 64 bits": func(o *market.Offer) { o.Lots = manyDevices(o.Lots[0]) },
	}
}

func TestOfferLimits(t *testing.T) {
	dev := markettest.Device(t)
	if err := markettest.Offer(dev, 1, now).Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range spoiledOffers() {
		o := markettest.Offer(dev, 1, now)
		spoil(&o)
		if err := o.Validate(); !errors.Is(err, market.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := market.OpenOffer(markettest.Seal(t, dev, market.DomainOffer, o)); err == nil {
			t.Errorf("%s: the sealed offer opens", name)
		}
	}
}

func devices(n int) []market.Slot {
	var out []market.Slot
	for i := range n {
		out = append(out, market.Slot{Device: markettest.Hash(fmt.Sprint(i))})
	}
	return out
}

func manyDevices(l market.Lot) (lots []market.Lot) {
	all := devices(5 * 13)
	for i := range 5 {
		one := l
		one.ID, one.Slots = uint8(i), all[i*13:(i+1)*13]
		lots = append(lots, one)
	}
	return lots
}

func figures(n int) []benchmark.Figure {
	var out []benchmark.Figure
	for i := range n {
		out = append(out, benchmark.Figure{ID: benchmark.FigureID(i + 1)})
	}
	return out
}

func TestHeartbeatFitsItsLimitAtItsLargest(t *testing.T) {
	dev := markettest.Device(t)
	h := market.Heartbeat{
		Header: dev.Header(market.Version), Seq: math.MaxUint64, IssuedAt: math.MaxInt64, Offer: [16]byte{1}, Free: math.MaxUint64,
	}
	raw := markettest.Seal(t, dev, market.DomainHeartbeat, h)
	if len(raw) > market.MaxHeartbeat {
		t.Fatalf("%d bytes", len(raw))
	}
	if got, err := market.OpenHeartbeat(raw); err != nil || got != h {
		t.Fatal(got, err)
	}
	if raw := markettest.Seal(t, dev, market.DomainTombstone, market.Tombstone{
		Header: dev.Header(market.Version), Seq: math.MaxUint64, IssuedAt: math.MaxInt64,
	}); len(raw) > market.MaxTombstone {
		t.Fatalf("tombstone of %d bytes", len(raw))
	}
}

func TestLargestMoneyRecordsFit(t *testing.T) {
	owner, renter := markettest.Device(t), markettest.Device(t)
	o := markettest.Offer(owner, 1, now)
	o.Lots = o.Lots[:1]
	o.Lots[0].Slots = devices(market.MaxSlots)
	sealed := markettest.Sealed(t, owner, o)
	a := markettest.Accept(renter, sealed, markettest.GPULot)
	a.Quantity, a.Unit, a.Rate, a.Term = market.MaxSlots, "CREDITCREDIT", market.MaxRate, market.MaxTerm
	raw := markettest.Seal(t, renter, market.DomainAccept, a)
	if _, err := market.OpenAccept(raw); err != nil {
		t.Fatal(len(raw), err)
	}
	l := markettest.Lease(t, owner, sealed, a, raw, math.MaxUint64)
	if _, err := market.OpenLease(markettest.Seal(t, owner, market.DomainLease, l)); err != nil {
		t.Fatal(err)
	}
	why := reason.Reason{Code: reason.Code(strings.Repeat("c", 64)), Detail: strings.Repeat("d", reason.MaxDetail)}
	e := market.End{
		Header: owner.Header(market.Version), Delegation: l.Delegation, Lease: l.ID, Slots: l.Slots, Reason: why, Charge: math.MaxInt64,
		Billable: market.MaxTerm * 1000, Exit: &market.Exit{Code: math.MinInt32, Signal: "SIGVTALRM", OOM: true}, Wiped: true,
	}
	if _, err := market.OpenEnd(markettest.Seal(t, owner, market.DomainEnd, e)); err != nil {
		t.Fatal(err)
	}
	r := market.Release{
		Header: renter.Header(market.Version), Delegation: a.Delegation, Lease: l.ID, Beat: math.MaxUint64, Charge: math.MaxInt64, Reason: why,
	}
	if _, err := market.OpenRelease(markettest.Seal(t, renter, market.DomainRelease, r)); err != nil {
		t.Fatal(err)
	}
	ready := market.Ready{Header: renter.Header(market.Version), Delegation: a.Delegation, Lease: l.ID, Hash: markettest.Hash("lease")}
	if _, err := market.OpenReady(markettest.Seal(t, renter, market.DomainReady, ready)); err != nil {
		t.Fatal(err)
	}
}

func TestMoneyRecordLimits(t *testing.T) {
	owner, renter := markettest.Device(t), markettest.Device(t)
	o := markettest.Sealed(t, owner, markettest.Offer(owner, 1, now))
	accept := markettest.Accept(renter, o, markettest.GPULot)
	lease := markettest.Lease(t, owner, o, accept, markettest.Seal(t, renter, market.DomainAccept, accept), 1)
	release := market.Release{Header: accept.Header, Delegation: accept.Delegation, Lease: lease.ID, Reason: reason.Reason{Code: "x"}}
	end := market.End{Header: lease.Header, Delegation: lease.Delegation, Lease: lease.ID, Slots: lease.Slots, Reason: release.Reason}
	ready := market.Ready{Header: accept.Header, Delegation: accept.Delegation, Lease: lease.ID, Hash: markettest.Hash("l")}
	for _, v := range []interface{ Validate() error }{accept, lease, release, end, ready} {
		if err := v.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	twice := slices.Repeat(lease.Slots, 2)
	for name, v := range map[string]interface{ Validate() error }{
		"accept: delegation": with(accept, func(a *market.Accept) { a.Delegation = wire.Hash{} }),
		"accept: offer":      with(accept, func(a *market.Accept) { a.Offer = wire.Hash{} }),
		"accept: provider":   with(accept, func(a *market.Accept) { a.Provider = identity.AccountID{} }),
		"accept: none":       with(accept, func(a *market.Accept) { a.Quantity = 0 }),
		"accept: many":       with(accept, func(a *market.Accept) { a.Quantity = market.MaxSlots + 1 }),
		"accept: rate":       with(accept, func(a *market.Accept) { a.Rate = market.MaxRate + 1 }),
		"accept: no term":    with(accept, func(a *market.Accept) { a.Term = 0 }),
		"accept: long term":  with(accept, func(a *market.Accept) { a.Term = market.MaxTerm + 1 }),
		"accept: nonce":      with(accept, func(a *market.Accept) { a.Nonce = wire.Hash{} }),
		"accept: needs":      with(accept, func(a *market.Accept) { a.Needs = wire.Hash{} }),
		"accept: voucher":    with(accept, func(a *market.Accept) { a.Voucher = wire.Hash{} }),
		"accept: unit":       with(accept, func(a *market.Accept) { a.Unit = "" }),
		"lease: delegation":  with(lease, func(l *market.Lease) { l.Delegation = wire.Hash{} }),
		"lease: id":          with(lease, func(l *market.Lease) { l.ID = market.LeaseID{} }),
		"lease: accept":      with(lease, func(l *market.Lease) { l.Accept = nil }),
		"lease: big accept":  with(lease, func(l *market.Lease) { l.Accept = make([]byte, market.MaxAccept+1) }),
		"lease: hold":        with(lease, func(l *market.Lease) { l.Hold = math.MaxUint64 }),
		"lease: ready":       with(lease, func(l *market.Lease) { l.ReadyIn = 0 }),
		"lease: prepare":     with(lease, func(l *market.Lease) { l.PrepareIn = math.MaxUint32 }),
		"lease: no slots":    with(lease, func(l *market.Lease) { l.Slots = nil }),
		"lease: slot twice":  with(lease, func(l *market.Lease) { l.Slots = twice }),
		"lease: generation":  with(lease, func(l *market.Lease) { l.Slots = []market.SlotGeneration{{Device: markettest.Hash("x")}} }),
		"lease: no device":   with(lease, func(l *market.Lease) { l.Slots = []market.SlotGeneration{{Generation: 1}} }),
		"release: lease":     with(release, func(r *market.Release) { r.Lease = market.LeaseID{} }),
		"release: charge":    with(release, func(r *market.Release) { r.Beat, r.Charge = 1, math.MaxUint64 }),
		"release: no beat":   with(release, func(r *market.Release) { r.Charge = 1 }),
		"release: no reason": with(release, func(r *market.Release) { r.Reason = reason.Reason{} }),
		"release: novel":     with(release, func(r *market.Release) { r.Reason.Detail = strings.Repeat("d", reason.MaxDetail+1) }),
		"end: charge":        with(end, func(e *market.End) { e.Charge = math.MaxUint64 }),
		"end: billable":      with(end, func(e *market.End) { e.Billable = market.MaxTerm*1000 + 1 }),
		"end: slots":         with(end, func(e *market.End) { e.Slots = twice }),
		"end: reason":        with(end, func(e *market.End) { e.Reason.Code = reason.Code(strings.Repeat("c", 65)) }),
		"end: signal":        with(end, func(e *market.End) { e.Exit = &market.Exit{Signal: strings.Repeat("S", 17)} }),
		"ready: hash":        with(ready, func(r *market.Ready) { r.Hash = wire.Hash{} }),
	} {
		if err := v.Validate(); !errors.Is(err, market.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

func TestOpenRefusesOversizedAndForeign(t *testing.T) {
	dev, other := markettest.Device(t), markettest.Device(t)
	o := markettest.Offer(dev, 1, now)
	raw := markettest.Seal(t, dev, market.DomainOffer, o)
	if _, err := market.OpenSealedOffer(raw, dev.Delegation()); err != nil {
		t.Fatal(err)
	}
	if _, err := market.OpenSealedOffer(raw, other.Delegation()); !errors.Is(err, identity.ErrPower) {
		t.Fatal("another's delegation:", err)
	}
	if _, err := market.OpenOffer(append(slices.Clone(raw), make([]byte, market.MaxOffer)...)); !errors.Is(err, wire.ErrTooLarge) {
		t.Fatal("oversized:", err)
	}
	if _, err := market.OpenHeartbeat(raw); err == nil {
		t.Fatal("an offer opens as a heartbeat")
	}
	account, key, strong, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	id := identity.PeerID(key.Public().(ed25519.PublicKey))
	newer, err := identity.Delegate(account, id, 2, identity.AllPowers, 1)
	if err != nil {
		t.Fatal(err)
	}
	raw = markettest.Seal(t, strong, market.DomainOffer, markettest.Offer(strong, 1, now))
	if _, err := market.OpenSealedOffer(raw, newer); !errors.Is(err, identity.ErrPower) {
		t.Fatal("another delegation of the device than the offer names:", err)
	}
	tradeOnly, err := identity.Delegate(account, id, 1, identity.PowerTrade|identity.PowerPay, 1)
	if err != nil {
		t.Fatal(err)
	}
	weak, err := identity.NewDevice(key, tradeOnly)
	if err != nil {
		t.Fatal(err)
	}
	raw = markettest.Seal(t, weak, market.DomainOffer, markettest.Offer(weak, 1, now))
	if _, err := market.OpenSealedOffer(raw, tradeOnly); !errors.Is(err, identity.ErrPower) {
		t.Fatal("an offer beyond the device's powers:", err)
	}
}

func TestFreeBits(t *testing.T) {
	dev := markettest.Device(t)
	o := markettest.Offer(dev, 1, now)
	if got := o.FreeBits(); got != 0b10101 {
		t.Fatalf("%b", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.Uint64().Draw(t, "bits")
		changed := o.WithFree(bits)
		if got := changed.FreeBits(); got != bits&0b11111 {
			t.Fatalf("%b became %b", bits, got)
		}
		if o.FreeBits() != 0b10101 {
			t.Fatal("the original changed")
		}
		if changed.Lots[0].Free()+changed.Lots[1].Free() != popcount(bits&0b11111) || changed.Devices() != 5 {
			t.Fatal("counts differ")
		}
	})
	if o.Lots[0].NumGPUs() != 4 || o.Lots[1].NumGPUs() != 0 {
		t.Fatal("a cpu is no gpu")
	}
}

func popcount(v uint64) (n int) {
	for ; v != 0; v &= v - 1 {
		n++
	}
	return n
}

func TestFreshAndLapsed(t *testing.T) {
	for d, want := range map[time.Duration]bool{
		0: true, market.Skew: true, -market.Skew: true, market.Skew + 1: false, -market.Skew - 1: false, 3 * time.Hour: false,
	} {
		if got := market.Fresh(now.Add(d), now); got != want {
			t.Errorf("%v: %v", d, got)
		}
	}
	for _, ms := range []int64{math.MinInt64, math.MaxInt64, 1} {
		if market.Fresh(time.UnixMilli(ms), now) {
			t.Errorf("%d is fresh", ms)
		}
	}
	o := markettest.Offer(markettest.Device(t), 1, now)
	end := now.Add(time.Duration(o.TTL)*time.Second + market.Skew)
	if o.Lapsed(end) || !o.Lapsed(end.Add(time.Millisecond)) {
		t.Fatal("an offer lapses at its time to live and the allowed skew")
	}
}
