package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/access"
)

// finish ends the lease: the charge is final from here on, whatever of the job is still there. What follows (killing it, packing its
// results, giving the devices back) is not billed.
func (k *keeper) finish(ctx context.Context, why reason.Reason) {
	if k.rec.State == work.Ended {
		return
	}
	now := k.now()
	if err := k.meter.Stop(now); err != nil {
		k.log.Error("meter", "err", err)
	}
	credited := k.rec.Credited
	if why.Code == reason.OwnerReclaimed && !credited {
		k.meter.Credit(uint64(k.a.config().Reclaim / time.Millisecond))
		credited = true
	}
	charge, err := k.finalCharge()
	if err != nil {
		k.log.Error("final charge", "err", err)
		charge = k.rec.Vouchered
	}
	saved, err := k.meter.Encode()
	if err != nil {
		k.log.Error("meter", "err", err)
		saved = k.rec.Meter
	}
	end, err := k.signEnd(why, charge, false)
	if err != nil {
		k.log.Error("sign end", "err", err)
		return
	}
	err = k.update(ctx, func(r *record) {
		r.State, r.Reason, r.Ended, r.End = work.Ended, why, time.Now().UnixMilli(), end
		r.Meter, r.Charge, r.Billable, r.Credited = saved, charge, k.meter.Billable(), credited
	}, k.closeTx(charge))
	if err != nil {
		k.log.Error("store end", "err", err)
		return // the next beat tries again
	}
	k.send(true)
	if k.busy == "" {
		k.cleanUp(ctx)
	}
}

// finalCharge is what was metered, at most what the renter's release allows.
func (k *keeper) finalCharge() (money.Micro, error) {
	charge, err := k.meter.Charge()
	if err != nil {
		return 0, err
	}
	if k.rec.Released == nil {
		return charge, nil
	}
	r, err := market.OpenRelease(k.rec.Released)
	if err != nil {
		return 0, err
	}
	return min(charge, k.releaseCap(r)), nil
}

// releaseCap is the most that a released lease may cost: the charge at the last beat that its renter acknowledged, but never less than
// the renter signed for.
func (k *keeper) releaseCap(r market.Release) money.Micro {
	most, known := k.claimed[r.Beat]
	if !known {
		most = r.Charge
	}
	return max(most, k.rec.Vouchered)
}

func (k *keeper) signEnd(why reason.Reason, charge money.Micro, wiped bool) ([]byte, error) {
	return k.a.dev.Seal(market.DomainEnd, market.End{
		Header: k.a.dev.Header(market.Version), Delegation: k.a.dev.DelegationHash(), Lease: k.id, Slots: k.lease.Slots,
		Reason: why.Clean(), Charge: charge, Billable: k.meter.Billable(), Exit: k.rec.Exit, Wiped: wiped,
	})
}

// release takes the renter's end of the lease, whenever it arrives; it caps the charge (spec: market, Buy now).
func (k *keeper) release(ctx context.Context, raw []byte) error {
	r, err := market.OpenRelease(raw)
	if err != nil {
		return err
	}
	if r.Lease != k.id || r.Account != k.rec.Renter {
		return fmt.Errorf("release of lease %s by account %s: %w", r.Lease.Short(), r.Account.Short(), errNotYours)
	}
	if k.rec.Released == nil {
		if err := k.update(ctx, func(rec *record) { rec.Released = raw }, nil); err != nil {
			return err
		}
	}
	if k.rec.State != work.Ended {
		k.finish(ctx, r.Reason.Clean())
		return nil
	}
	most := k.releaseCap(r)
	if k.rec.Charge <= most {
		return nil
	}
	end, err := k.signEnd(k.rec.Reason, most, k.rec.Wiped)
	if err != nil {
		return err
	}
	return k.update(ctx, func(rec *record) { rec.Charge, rec.End = most, end }, k.closeTx(most))
}

// cleanUp ends what is left of the job, packs its results and gives the devices back, in this order: before a device is leased again the
// lease's cgroup is empty (spec: jobs, Runtime). It tries again until the runtime answers.
func (k *keeper) cleanUp(ctx context.Context) {
	if k.busy != "" {
		return
	}
	k.busy, k.progress = "ending", "packing results"
	out := k.rec.Folders.Out
	go func() {
		outputs, err := k.a.tidy(ctx, k.id, out)
		k.post(func() { k.cleaned(ctx, outputs, err) })
	}()
}

// tidy removes a lease's container and packs what is in /out.
func (a *Agent) tidy(ctx context.Context, lease market.LeaseID, out string) (wire.Hash, error) {
	id := lease.String()
	if err := a.runtime.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
		return wire.Hash{}, err
	}
	if err := a.network.Unwire(ctx, id); err != nil {
		return wire.Hash{}, err
	}
	return a.outputs.pack(ctx, lease, out)
}

func (k *keeper) cleaned(ctx context.Context, outputs wire.Hash, err error) {
	k.busy, k.progress = "", ""
	if err != nil {
		k.log.Error("clean up", "err", err)
		time.AfterFunc(work.BeatInterval*time.Second, func() { k.post(func() { k.cleanUp(ctx) }) })
		return
	}
	logBytes, err := access.Size(logDir(k.rec.Folders))
	if err != nil {
		k.log.Warn("size of log", "err", err)
	}
	held := k.a.capacity.Held(k.id)
	err = k.update(ctx, func(r *record) { r.Outputs, r.LogBytes, r.Tidy = outputs, logBytes, true }, func(tx *books.Tx) error {
		return freeSlots(tx.Of(kv.Provider), held)
	})
	if err != nil {
		k.log.Error("give devices back", "err", err)
		time.AfterFunc(work.BeatInterval*time.Second, func() { k.post(func() { k.cleanUp(ctx) }) })
		return
	}
	close(k.over)
	k.a.capacity.Free(k.id)
	k.a.changed()
	k.send(k.unpaid() > 0)
}

// wipe removes what the lease left, once the renter has it or did not come for it.
func (k *keeper) wipe(ctx context.Context) {
	if k.busy != "" || !k.rec.Tidy {
		return
	}
	k.a.outputs.drop(k.id)
	wiped, err := k.a.mounts.Remove(ctx, k.id.String())
	if err != nil || !wiped {
		k.log.Error("wipe", "err", err)
		return // the next beat tries again
	}
	end, err := k.signEnd(k.rec.Reason, k.rec.Charge, true)
	if err != nil {
		k.log.Error("sign end", "err", err)
		return
	}
	if err := k.update(ctx, func(r *record) { r.Wiped, r.End = true, end }, nil); err != nil {
		k.log.Error("store end", "err", err)
		return
	}
	k.send(false)
	k.final = true
}
