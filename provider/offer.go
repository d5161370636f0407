package provider

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// measuringNow is why a device that is being measured is kept back.
const measuringNow = "being measured"

const (
	lookEvery    = 5 * time.Second // at the runtime: how soon offers are withdrawn and come back
	measureAgain = 5 * time.Minute // after a measurement that failed
)

// tend keeps the published offer what the devices, the owner and the runtime allow.
func (a *Agent) tend(ctx context.Context) error {
	for {
		news, slots, addrs := a.Changed(), a.capacity.Changed(), a.net.AddrsChanged()
		offer, why := a.compose(time.Now())
		a.mu.Lock()
		a.why = why
		wait := a.nextTurn(time.Now())
		a.mu.Unlock()
		if why != "" {
			a.publisher.Clear()
		} else if err := a.publisher.Set(offer); err != nil {
			a.log.Error("offer", "err", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-news:
		case <-slots:
		case <-addrs:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// nextTurn is when the offer may change by itself: at the end of the owner's pause, to the moment, or when a passport expires; a.mu is held.
func (a *Agent) nextTurn(now time.Time) time.Duration {
	wait := time.Minute
	if a.pause.active(now) && a.pause.Until != 0 {
		wait = min(wait, time.UnixMilli(a.pause.Until).Sub(now)+time.Millisecond)
	}
	return wait
}

// watchRuntime notes whether jobs could be started, recorded and given their disk.
func (a *Agent) watchRuntime(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		a.lookAtRuntime(ctx)
		a.lookAtStore(ctx)
		a.lookAtDisk(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

func (a *Agent) lookAtRuntime(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	info, err := a.runtime.Info(within)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		info = RuntimeInfo{}
	}
	a.mu.Lock()
	was := a.sandbox
	a.sandbox = info
	a.mu.Unlock()
	if was == info {
		return
	}
	if err != nil {
		a.log.Warn("container runtime does not answer; nothing is offered until it does", "err", err)
	}
	a.changed()
}

// lookAtStore notes whether the store takes writes: while it does not, a sale would be refused.
func (a *Agent) lookAtStore(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	err := a.books.Update(within, func(*books.Tx) error { return nil }) // writes nothing; it is refused as a write would be
	if within.Err() != nil {
		return // a slow disk is no full one
	}
	why := ""
	if err != nil && a.books.ReadOnly() == nil { // that has its own words
		why = fmt.Sprintf("the store refuses writes, so nothing can be sold or recorded: free disk space: %v", err)
	}
	a.mu.Lock()
	was := a.refuses
	a.refuses = why
	a.mu.Unlock()
	if was == "" && why != "" {
		a.log.Error("store", "err", err)
	}
	if (was == "") != (why == "") {
		a.changed()
	}
}

// compose makes the offer of now, or says why there is none.
func (a *Agent) compose(now time.Time) (market.Offer, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.pause.active(now):
		return market.Offer{}, "paused by the owner"
	case a.books.ReadOnly() != nil:
		return market.Offer{}, "the ledger is read-only: run gpufaird ledger verify"
	case a.refuses != "":
		return market.Offer{}, a.refuses
	case a.sandbox.Name == "":
		return market.Offer{}, "the container runtime does not answer: run gpufaird doctor"
	case a.conf.missing() != "":
		return market.Offer{}, a.conf.missing()
	}
	limits, err := a.conf.Limits()
	if err != nil {
		return market.Offer{}, err.Error()
	}
	o := market.Offer{
		Region: a.conf.Region, Unit: a.conf.Unit, Terms: a.conf.terms(a.sandbox.Sandbox), Addrs: a.offerAddrs(),
		Credit: market.Credit{
			Stranger: limits.Stranger, StrangersTotal: limits.StrangersTotal, KnownPercent: limits.KnownPercent, KnownCap: limits.KnownCap,
		},
	}
	full := "" // why none of them can be had for lack of disk
	short := 0
	for i, lot := range a.conf.Lots {
		if p, ok := a.passports[lot.Device]; ok && p.Valid(now) == nil {
			o.Lots = append(o.Lots, a.lotOf(uint8(i+1), lot, p))
			if why := a.short[lot.Device]; why != "" {
				full = why
				short++
			}
		}
	}
	switch len(o.Lots) {
	case 0:
		return market.Offer{}, "no device is measured yet"
	case short:
		return market.Offer{}, full + makeRoom
	}
	return o, ""
}

// offerAddrs are the first addresses that an offer may hold; one over a relay and IPv6 can be too long for it. a.mu is held.
func (a *Agent) offerAddrs() []string {
	addrs := a.conf.Addrs
	if len(addrs) == 0 {
		addrs = a.net.Addrs()
	}
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(one string) bool { return len(one) > market.MaxAddr })
	return addrs[:min(len(addrs), market.MaxAddrs)]
}

// lotOf makes the lot of one device; a.mu is held.
func (a *Agent) lotOf(id uint8, lot Lot, p benchmark.Passport) market.Lot {
	state, known := a.capacity.Look(lot.Device)
	figures := p.Figures()
	return market.Lot{
		ID: id, Kind: market.Kind(p.Kind), Model: p.Model, Driver: p.Driver,
		Slots: []market.Slot{{Device: lot.Device, Free: known && state.Available() && a.short[lot.Device] == ""}},
		Cores: uint32(len(lot.Cores)), MemoryMiB: lot.MemoryMiB, DiskMiB: lot.DiskMiB, Price: lot.Price, Prepare: lot.Prepare,
		MinTerm: uint32(lot.MinTerm / time.Second), MaxTerm: uint32(lot.MaxTerm / time.Second),
		Passport: identity.Hash(a.rawPass[lot.Device]), Figures: figures[:min(len(figures), market.MaxFigures)],
	}
}

// measureAll lists the devices and measures those that are offered and have no valid passport, now and whenever one expires. It yields to
// the owner's pause.
func (a *Agent) measureAll(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := a.listDevices(ctx); err != nil {
			a.log.Error("list devices", "err", err)
		}
		for _, lot := range a.config().Lots {
			if a.needsMeasuring(lot.Device, time.Now()) {
				a.measureOne(ctx, lot.Device)
			}
		}
		listed := time.NewTimer(time.Hour)
		a.awaitMeasuring(ctx, listed.C)
		listed.Stop()
	}
	return nil
}

// measureOne measures a device until the owner pauses.
func (a *Agent) measureOne(ctx context.Context, device wire.Hash) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	a.yield = cancel
	paused := a.pause.active(time.Now())
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.yield = nil
		a.mu.Unlock()
	}()
	if paused {
		return
	}
	err := a.Measure(within, device, benchmark.Quick, nil)
	if err == nil || within.Err() != nil {
		return
	}
	a.log.Warn("device not measured; trying again later", "device", device.Short(), "err", err)
	a.mu.Lock()
	a.failed[device] = time.Now()
	a.mu.Unlock()
}

// awaitMeasuring returns when there is something to measure, a reload may have added a device, list fires or ctx ends.
func (a *Agent) awaitMeasuring(ctx context.Context, list <-chan time.Time) {
	look := time.NewTicker(time.Minute)
	defer look.Stop()
	for {
		news := a.Changed()
		if a.anyToMeasure(time.Now()) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-list:
			return
		case <-a.relist:
			return
		case <-news:
		case <-look.C:
		}
	}
}

func (a *Agent) anyToMeasure(now time.Time) bool {
	return slices.ContainsFunc(a.config().Lots, func(l Lot) bool { return a.needsMeasuring(l.Device, now) })
}

// listDevices reads what the machine has and what can be offered of it.
func (a *Agent) listDevices(ctx context.Context) error {
	found, err := a.devices.List(ctx)
	if err != nil {
		return err
	}
	conf := a.config()
	for _, d := range found {
		if _, ok := conf.lot(d.Hash); ok {
			a.capacity.Add(d.Hash)
			a.capacity.Block(d.Hash, d.Problem)
		}
	}
	a.mu.Lock()
	a.found = found
	for h, p := range a.passports {
		if i := slices.IndexFunc(found, func(d Device) bool { return d.Hash == h }); i >= 0 && p.Describes(found[i].Device) != nil {
			delete(a.passports, h)
			delete(a.rawPass, h)
		}
	}
	a.mu.Unlock()
	return nil
}

func (a *Agent) needsMeasuring(device wire.Hash, now time.Time) bool {
	a.mu.Lock()
	p, ok := a.passports[device]
	i := slices.IndexFunc(a.found, func(d Device) bool { return d.Hash == device })
	usable := i >= 0 && a.found[i].Problem == "" && a.found[i].Kind == benchmark.KindCPU && !a.pause.active(now)
	if at, failed := a.failed[device]; failed && now.Sub(at) < measureAgain {
		usable = false
	}
	a.mu.Unlock()
	if !usable || ok && p.Valid(now) == nil {
		return false
	}
	state, known := a.capacity.Look(device)
	return known && state.Lease == nil
}

// Measure measures a device that no lease has, signs its passport and offers it with the new figures. Meanwhile nobody can lease it.
func (a *Agent) Measure(ctx context.Context, device wire.Hash, profile benchmark.Profile, progress func(string, float64)) error {
	release, err := a.capacity.Occupy(device, measuringNow)
	if err != nil {
		return fmt.Errorf("measure device %s: %w", device.Short(), err)
	}
	defer release()
	a.setStep(device, "starting")
	defer a.setStep(device, "")
	report, err := a.devices.Measure(ctx, device, profile, func(step string, done float64) {
		a.setStep(device, step)
		if progress != nil {
			progress(step, done)
		}
	})
	if err != nil {
		return fmt.Errorf("measure device %s: %w", device.Short(), err)
	}
	raw, err := a.dev.Seal(benchmark.DomainPassport, report.Passport(a.dev.Header(1), a.dev.DelegationHash()))
	if err != nil {
		return fmt.Errorf("passport of device %s: %w", device.Short(), err)
	}
	p, err := benchmark.OpenPassport(raw)
	if err != nil {
		return fmt.Errorf("passport of device %s: %w", device.Short(), err)
	}
	err = a.books.Update(ctx, func(tx *books.Tx) error {
		return tx.Of(kv.Provider).Set(deviceKey(keyPassport, device), raw)
	})
	if err != nil {
		return fmt.Errorf("passport of device %s: %w", device.Short(), err)
	}
	a.mu.Lock()
	a.passports[device], a.rawPass[device] = p, raw
	a.mu.Unlock()
	a.log.Info("device measured", "device", device.Short(), "model", p.Model, "figures", len(p.Measurements))
	a.changed()
	return nil
}

func (a *Agent) setStep(device wire.Hash, step string) {
	a.mu.Lock()
	if step == "" {
		delete(a.measuring, device)
	} else {
		a.measuring[device] = step
	}
	a.mu.Unlock()
}
