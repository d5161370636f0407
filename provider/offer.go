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
	lookEvery    = 30 * time.Second // at the runtime and the pause's end, when nothing else happens
	measureAgain = 5 * time.Minute  // after a measurement that failed
)

// tend keeps the published offer what the devices, the owner and the runtime allow.
func (a *Agent) tend(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		news, slots := a.Changed(), a.capacity.Changed()
		a.lookAtRuntime(ctx)
		offer, why := a.compose(time.Now())
		a.mu.Lock()
		a.why = why
		a.mu.Unlock()
		if why != "" {
			a.publisher.Clear()
		} else if err := a.publisher.Set(offer); err != nil {
			a.log.Error("offer", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-news:
		case <-slots:
		case <-look.C:
		}
	}
}

// lookAtRuntime notes whether jobs could be started.
func (a *Agent) lookAtRuntime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := a.runtime.Info(ctx)
	if err != nil {
		info = RuntimeInfo{}
	}
	a.mu.Lock()
	was := a.sandbox
	a.sandbox = info
	a.mu.Unlock()
	if err != nil && was.Name != "" {
		a.log.Warn("container runtime does not answer; nothing is offered until it does", "err", err)
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
	case a.sandbox.Name == "":
		return market.Offer{}, "the container runtime does not answer: run gpufaird doctor"
	case len(a.conf.Accounts) == 0:
		return market.Offer{}, "no account is served: add one to serve.accounts"
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
	for i, lot := range a.conf.Lots {
		if p, ok := a.passports[lot.Device]; ok && p.Valid(now) == nil {
			o.Lots = append(o.Lots, a.lotOf(uint8(i+1), lot, p))
		}
	}
	if len(o.Lots) == 0 {
		return market.Offer{}, "no device is measured yet"
	}
	return o, ""
}

// offerAddrs are at most as many addresses as an offer may hold; a.mu is held.
func (a *Agent) offerAddrs() []string {
	addrs := a.conf.Addrs
	if len(addrs) == 0 {
		addrs = a.net.Addrs()
	}
	return addrs[:min(len(addrs), market.MaxAddrs)]
}

// lotOf makes the lot of one device; a.mu is held.
func (a *Agent) lotOf(id uint8, lot Lot, p benchmark.Passport) market.Lot {
	state, known := a.capacity.Look(lot.Device)
	figures := p.Figures()
	return market.Lot{
		ID: id, Kind: market.Kind(p.Kind), Model: p.Model, Driver: p.Driver,
		Slots: []market.Slot{{Device: lot.Device, Free: known && state.Available()}},
		Cores: uint32(len(lot.Cores)), MemoryMiB: lot.MemoryMiB, DiskMiB: lot.DiskMiB, Price: lot.Price, Prepare: lot.Prepare,
		MinTerm: uint32(lot.MinTerm / time.Second), MaxTerm: uint32(lot.MaxTerm / time.Second),
		Passport: identity.Hash(a.rawPass[lot.Device]), Figures: figures[:min(len(figures), market.MaxFigures)],
	}
}

// measureAll lists the devices and measures those that are offered and have no valid passport, now and whenever one expires.
func (a *Agent) measureAll(ctx context.Context) error {
	for {
		if err := a.listDevices(ctx); err != nil {
			a.log.Error("list devices", "err", err)
		}
		wait := time.Hour
		for _, lot := range a.config().Lots {
			if !a.needsMeasuring(lot.Device, time.Now()) {
				continue
			}
			if err := a.Measure(ctx, lot.Device, benchmark.Quick, nil); err != nil && ctx.Err() == nil {
				a.log.Warn("device not measured; trying again later", "device", lot.Device.Short(), "err", err)
				wait = measureAgain
			}
		}
		news := a.Changed()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-news: // a reload may have added a device
			timer.Stop()
			if !a.anyToMeasure(time.Now()) {
				continue
			}
		}
		timer.Stop()
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
	usable := i >= 0 && a.found[i].Problem == "" && a.found[i].Kind == benchmark.KindCPU
	a.mu.Unlock()
	if !usable || ok && p.Valid(now) == nil {
		return false
	}
	state, known := a.capacity.Look(device)
	return known && state.Lease == nil
}

// Measure measures a device that no lease has, signs its passport and offers it with the new figures. Meanwhile nobody can lease it.
func (a *Agent) Measure(ctx context.Context, device wire.Hash, profile benchmark.Profile, progress func(string, float64)) error {
	state, ok := a.capacity.Look(device)
	switch {
	case !ok:
		return fmt.Errorf("device %s: %w: it is not configured", device.Short(), ErrNotFound)
	case state.Lease != nil:
		return fmt.Errorf("device %s: lease %s has it: measure it when it is free", device.Short(), state.Lease.Short())
	case state.Blocked != "":
		return fmt.Errorf("device %s: %s", device.Short(), state.Blocked)
	}
	a.capacity.Block(device, measuringNow)
	defer a.capacity.Block(device, "")
	a.setStep(device, "starting")
	defer a.setStep(device, "")
	if state, _ := a.capacity.Look(device); state.Lease != nil { // sold in the moment before
		return fmt.Errorf("device %s: lease %s has it: measure it when it is free", device.Short(), state.Lease.Short())
	}
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
