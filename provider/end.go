package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/access"
)

// finish ends the lease: the charge is final from here on, whatever of the job is still there. What follows (killing it, packing its
// results, giving the devices back) is not billed. If the ledger does not take the end, the job is ended all the same, the renter hears no
// more beats, and each beat of the keeper tries again; after a restart the lease ends as its record says.
func (k *keeper) finish(ctx context.Context, why reason.Reason) {
	if k.rec.State == work.Ended {
		return
	}
	if k.ending == nil {
		k.ending = &why
		k.stopMeter(k.now())
		if why.Code == reason.OwnerReclaimed && !k.rec.Credited {
			k.meter.Credit(uint64(k.a.config().Reclaim / time.Millisecond))
			k.credited = true
		}
		if k.halt != nil {
			k.halt()
		}
	}
	if err := k.storeEnd(ctx, *k.ending); err != nil {
		k.trouble("store end", err)
		if k.lane != nil {
			close(k.lane.gone)
			k.lane = nil
		}
		k.kill(ctx)
		return
	}
	k.ev.mark = true
	k.send(ctx, true)
	k.cleanUp(ctx)
}

// storeEnd writes the end: record, signed End and the lane's final charge in one transaction.
func (k *keeper) storeEnd(ctx context.Context, why reason.Reason) error {
	charge, err := k.finalCharge()
	if err == nil {
		charge, err = k.restoredCharge(ctx, charge)
	}
	if err != nil {
		return err
	}
	saved, err := k.meter.Encode()
	if err != nil {
		return err
	}
	end, err := k.signEnd(why, charge, false)
	if err != nil {
		return err
	}
	return k.update(ctx, func(r *record) {
		r.State, r.Reason, r.Ended, r.End = work.Ended, why, time.Now().UnixMilli(), end
		r.Meter, r.Charge, r.Billable, r.Credited = saved, charge, k.meter.Billable(), r.Credited || k.credited
	}, closeTx(k.id, charge))
}

// kill removes the container of a lease whose end can't be stored: nothing may run that nobody records.
func (k *keeper) kill(ctx context.Context) {
	if k.killed || k.busy != "" {
		return
	}
	k.chore(ctx, chore{"delete", func(ctx context.Context) error {
		err := k.a.runtime.Delete(ctx, k.id.String())
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	}, func(err error) { k.killed = err == nil }})
}

// finalCharge is what was metered, at most what the renter's release allows.
func (k *keeper) finalCharge() (money.Micro, error) {
	charge, err := k.metered()
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
// the renter signed for. A beat that was not sent yet caps nothing. For one that this process does not know (from before a restart, or
// over four minutes old) the renter's word is taken: it can gain no more than the rent for which no voucher came, 30 s.
func (k *keeper) releaseCap(r market.Release) money.Micro {
	most, known := k.claimed[r.Beat]
	switch {
	case known:
	case r.Beat > max(k.beat, k.rec.Beat):
		return money.Max
	default:
		most = r.Charge
	}
	return max(most, k.rec.Vouchered, k.releaseFloor())
}

// releaseFloor is what a release leaves of the charge when its renter had allowed for its absence: what was metered until the release came,
// within the allowance. The release ends that promise, and takes nothing of it back.
func (k *keeper) releaseFloor() money.Micro {
	charge, err := k.metered()
	if err != nil || k.rec.State == work.Ended {
		charge = k.rec.Charge
	}
	return min(charge, k.allowed.amount)
}

func (k *keeper) signEnd(why reason.Reason, charge money.Micro, wiped bool) ([]byte, error) {
	return k.a.signEnd(k.lease, why, charge, k.meter.Billable(), k.rec.Exit, wiped)
}

func (a *Agent) signEnd(l market.Lease, why reason.Reason, charge money.Micro, billable uint64, exit *market.Exit, wiped bool) ([]byte, error) {
	return a.dev.Seal(market.DomainEnd, market.End{
		Header: a.dev.Header(market.Version), Delegation: a.dev.DelegationHash(), Lease: l.ID, Slots: l.Slots,
		Reason: why.Clean(), Charge: charge, Billable: billable, Exit: exit, Wiped: wiped,
	})
}

// openRelease checks that a release is of this lease and by the device that bought it.
func openRelease(raw []byte, id market.LeaseID, renter identity.AccountID, device identity.PeerID) (market.Release, error) {
	r, err := market.OpenRelease(raw)
	if err != nil {
		return r, err
	}
	if r.Lease != id || r.Account != renter || r.Device != device {
		return r, errNotYours
	}
	return r, nil
}

// release takes the renter's end of the lease, whenever it arrives; it caps the charge (spec: market, Buy now).
func (k *keeper) release(ctx context.Context, raw []byte) error {
	r, err := openRelease(raw, k.id, k.rec.Renter, k.accept.Device)
	if err != nil {
		return err
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
	return k.update(ctx, func(rec *record) { rec.Charge, rec.End = most, end }, closeTx(k.id, most))
}

// lateRelease takes a release of a lease whose keeper is gone.
func (a *Agent) lateRelease(ctx context.Context, id market.LeaseID, from identity.PeerID, raw []byte) error {
	return a.books.Update(ctx, func(tx *books.Tx) error {
		rec, ok, err := kv.Load[record](tx.Of(kv.Provider), leaseKey(id))
		if err != nil || !ok || rec.State != work.Ended || rec.Peer != from {
			return err
		}
		r, err := openRelease(raw, id, rec.Renter, rec.Peer)
		if err != nil {
			return err
		}
		lane, err := tx.Lane(ledger.Lane(id))
		if err != nil {
			return err
		}
		most := max(r.Charge, lane.Amount, min(rec.Charge, lane.Allowed))
		if r.Beat > rec.Beat || rec.Charge <= most {
			return nil
		}
		lease, err := market.OpenLease(rec.Lease)
		if err != nil {
			return err
		}
		if rec.End, err = a.signEnd(lease, rec.Reason, most, rec.Billable, rec.Exit, rec.Wiped); err != nil {
			return err
		}
		rec.Charge, rec.Released = most, raw
		if err := closeTx(id, most)(tx); err != nil {
			return err
		}
		return kv.Save(tx.Of(kv.Provider), leaseKey(id), rec)
	})
}

// cleanUp ends what is left of the job, gives its devices back and then packs its results, in this order: before a device is leased again
// the lease's cgroup is empty (spec: jobs, Runtime), and nobody waits for a device while somebody's results are hashed. It tries again
// until the runtime answers.
func (k *keeper) cleanUp(ctx context.Context) {
	if k.busy != "" || k.rec.State != work.Ended || k.rec.Tidy || time.Now().Before(k.tidyAt) {
		return
	}
	k.busy, k.progress = "ending", "ending"
	k.beside(func() {
		traffic, err := k.a.clear(ctx, k.id)
		k.post(func() { k.cleared(ctx, traffic, err) })
	})
}

// clearIn bounds one attempt: killing a stubborn process takes the runtime up to half of it.
const clearIn = time.Minute

// clear removes a lease's container, and with it all that its network could do, and gives what its egress came to; nil without egress.
func (a *Agent) clear(ctx context.Context, lease market.LeaseID) (*Traffic, error) {
	ctx, cancel := context.WithTimeout(ctx, clearIn)
	defer cancel()
	id := lease.String()
	if err := a.runtime.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	t, err := a.network.Traffic(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	return &t, err
}

// unwire removes what is left of a lease's network, once its traffic is stored. What fails is the sweeper's.
func (k *keeper) unwire(ctx context.Context) {
	if err := k.a.network.Unwire(ctx, k.id.String()); err != nil {
		k.log.Warn("network not removed", "err", err)
	}
}

// again ends a clean up that failed; a later beat begins anew.
func (k *keeper) again(what string, err error) {
	k.busy, k.progress = "", ""
	k.tidyAt = time.Now().Add(work.BeatInterval * time.Second)
	k.trouble("clean up: "+what, err)
}

// cleared is the keeper's turn when nothing of the job runs any more: the devices are free, then the results are packed.
func (k *keeper) cleared(ctx context.Context, traffic *Traffic, err error) {
	if err == nil && traffic != nil {
		err = k.update(ctx, func(r *record) { r.Traffic = traffic }, nil)
	}
	if err != nil {
		k.again("remove container", err)
		return
	}
	if held := k.a.capacity.Held(k.id); len(held) > 0 {
		err := k.update(ctx, func(*record) {}, func(tx *books.Tx) error { return freeSlots(tx.Of(kv.Provider), held) })
		if err != nil {
			k.again("give devices back", err)
			return
		}
		k.a.capacity.Free(k.id)
		k.a.changed()
	}
	k.a.unwantImage(k.id)
	k.progress = "packing results"
	out := k.rec.Folders.Out
	k.beside(func() {
		k.unwire(ctx)
		outputs, err := k.lastPack(ctx, out)
		if derr := k.stage.drop(); derr != nil {
			k.log.Warn("pushed blobs not dropped", "err", derr)
		}
		k.post(func() { k.packed(ctx, outputs, err) })
	})
}

// lastPack packs the results, unless the job wrote more than it rented: that is neither hashed nor offered.
func (k *keeper) lastPack(ctx context.Context, out string) (wire.Hash, error) {
	if out == "" {
		return wire.Hash{}, nil
	}
	if over := k.overDisk(ctx); over != "" {
		k.results.drop()
		return wire.Hash{}, errors.New(over)
	}
	return k.results.last(ctx, out)
}

// packed is the keeper's turn when the results are packed, or can't be: then the lease goes on without, and says why.
func (k *keeper) packed(ctx context.Context, outputs wire.Hash, err error) {
	if ctx.Err() != nil {
		return // the daemon stops; the next start packs them
	}
	lost := ""
	if err != nil {
		k.log.Warn("results not packed", "err", err)
		lost = fmt.Sprintf("results not packed: %.200v", err)
	}
	logBytes, err := access.Size(logDir(k.rec.Folders))
	if err != nil {
		k.log.Warn("size of log", "err", err)
	}
	err = k.update(ctx, func(r *record) { r.Outputs, r.LogBytes, r.Lost, r.Tidy = outputs, logBytes, lost, true }, nil)
	if err != nil {
		k.again("store results", err)
		return
	}
	k.busy, k.progress = "", ""
	close(k.over)
	k.a.changed()
	k.send(ctx, k.unpaid() > 0)
}

// wipe removes what the lease left, once the renter has it or did not come for it.
func (k *keeper) wipe(ctx context.Context) {
	if k.busy != "" || !k.rec.Tidy || time.Now().Before(k.tidyAt) {
		return
	}
	k.busy = "wiping"
	k.beside(func() {
		k.results.drop()
		gone, err := k.a.mounts.Remove(ctx, k.id.String())
		if err == nil && !gone {
			err = errors.New("something is left")
		}
		k.post(func() { k.wiped(ctx, err) })
	})
}

// wiped is the keeper's last turn.
func (k *keeper) wiped(ctx context.Context, err error) {
	if err == nil {
		var end []byte
		if end, err = k.signEnd(k.rec.Reason, k.rec.Charge, true); err == nil {
			err = k.update(ctx, func(r *record) { r.Wiped, r.End = true, end }, nil)
		}
	}
	if err != nil {
		k.again("wipe", err)
		return
	}
	k.busy = ""
	k.send(ctx, false)
	k.final = true
}
