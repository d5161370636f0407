package provider

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/capacity"
)

// Sold gives the lease of an earlier sale, for [negotiate.Sales].
func (a *Agent) Sold(ctx context.Context, id market.LeaseID) (leaseRaw []byte, err error) {
	err = a.books.View(ctx, func(r *books.Reader) error {
		rec, _, err := kv.Load[record](r.Of(kv.Provider), leaseKey(id))
		leaseRaw = rec.Lease
		return err
	})
	return leaseRaw, err
}

// Sell sells in one durable transaction: slots, hold, lane, lease (spec: market, Buy now). For [negotiate.Sales].
func (a *Agent) Sell(ctx context.Context, s negotiate.Sale) ([]byte, error) {
	a.selling.Lock()
	defer a.selling.Unlock()
	if raw, err := a.Sold(ctx, s.ID); err != nil || raw != nil {
		return raw, err // the same Accept came twice at once
	}
	devices := devicesOf(s.Lot)
	if err := a.notRevoked(s.Delegation); err != nil {
		return nil, err
	}
	a.lookAtDisk(ctx)
	if err := a.mayServe(s.Accept.Account, devices, s.Accept.Use); err != nil {
		return nil, err
	}
	claim, err := a.capacity.RequestUsed(s.ID, devices, int(s.Accept.Quantity), useOf(s))
	if err != nil {
		return nil, a.whyTaken(devices, err)
	}
	rec, err := a.commitSale(ctx, s, claim.Secure())
	if err != nil {
		claim.Withdraw()
		return nil, err
	}
	claim.Commit()
	return a.sold(ctx, s, rec)
}

// devicesOf are a lot's devices.
func devicesOf(l market.Lot) (devices []wire.Hash) {
	for _, slot := range l.Slots {
		devices = append(devices, slot.Device)
	}
	return devices
}

// sold starts the keeper of a sale that is stored, and gives its lease.
func (a *Agent) sold(ctx context.Context, s negotiate.Sale, rec record) ([]byte, error) {
	k, err := a.newKeeper(rec)
	if err != nil { // it is stored: the next start would say the same
		return nil, err
	}
	a.evict(s.Accept.Account)
	if _, _, err := a.delegations.Add(s.DelegationRaw); err != nil { // for people: `peers` names the account
		a.log.Debug("delegation of the renter not remembered", "err", err)
	}
	if err := a.delegations.Dealt(ctx, s.Accept.Account); err != nil {
		a.log.Warn("revocations of the renter's other devices not kept", "err", err)
	}
	a.log.Info("lease sold", "lease", s.ID.Short(), "renter", s.Accept.Account.Short(), "lot", s.Lot.ID, "rate", s.Accept.Rate)
	a.keep(k)
	a.changed()
	return rec.Lease, nil
}

// notRevoked refuses to sell to a device, or from one, that its account has let go.
func (a *Agent) notRevoked(d identity.Delegation) error {
	if err := a.delegations.Revoked(d); err != nil {
		return reason.Errorf(reason.DelegationPowers, "%v", err)
	}
	if err := a.delegations.Self(); err != nil {
		return reason.Errorf(reason.OwnerPaused, "the provider's device is not of its account any more")
	}
	return nil
}

// mayServe judges what only the owner's settings know of selling devices to an account that agreed to use terms.
func (a *Agent) mayServe(account identity.AccountID, devices []wire.Hash, use wire.Hash) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return p2p.Errorf(p2p.KindUnavailable, "the provider is stopping")
	case !a.conf.Serves(account):
		return reason.Errorf(reason.NotServed, "account %s", account.Short())
	case a.pause.active(time.Now()):
		return reason.Errorf(reason.OwnerPaused, "")
	case a.sandbox.Name == "":
		return reason.Errorf(reason.RuntimeDown, "")
	case use != a.conf.Use():
		return reason.Errorf(reason.TermsChanged, "")
	}
	if err := a.mayWait(account, time.Now()); err != nil {
		return err
	}
	for _, d := range devices { // the offer may be older than a reload
		lot, ok := a.conf.lot(d)
		if !ok {
			return reason.Errorf(reason.OfferUnknown, "device %s is no longer on offer", d.Short())
		}
		if why := a.short[d]; why != "" {
			return reason.Errorf(reason.DiskFull, "%s", why)
		}
		for _, k := range a.keepers {
			if rec := k.look().rec; slices.ContainsFunc(lot.Cores, func(c int) bool { return slices.Contains(rec.Cores, c) }) &&
				!slices.Contains(rec.Devices, d) && len(a.capacity.Held(k.id)) > 0 {
				return reason.Errorf(reason.DeviceTaken, "a lease of a device that was taken off the offer still has its cores")
			}
		}
	}
	return nil
}

// keptResults is how many ended leases of one account may wait for their results to be fetched: each holds disk and a keeper.
const keptResults = 8

// evict lets go of an account's oldest results when it has more than it may leave here.
func (a *Agent) evict(account identity.AccountID) {
	a.mu.Lock()
	var ended []*keeper
	for _, k := range a.keepers {
		if rec := k.look().rec; rec.Renter == account && rec.State == work.Ended && rec.Tidy {
			ended = append(ended, k)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(ended, func(x, y *keeper) int { return cmp.Compare(x.look().rec.Ended, y.look().rec.Ended) })
	for _, k := range ended[:max(len(ended)-keptResults, 0)] {
		k.log.Warn("results dropped: the account left too many", "kept", keptResults)
		a.keeping.Go(func() { k.post(func() { k.evict = true }) })
	}
}

// whyTaken says more than "taken" where the owner's side keeps the devices back.
func (a *Agent) whyTaken(devices []wire.Hash, err error) error {
	for _, d := range devices {
		if state, ok := a.capacity.Look(d); ok && state.Lease == nil && state.Blocked == measuringNow {
			return reason.Errorf(reason.Measuring, "a device is being measured")
		}
	}
	return err
}

// newRecord is a sale as it is stored, but for its lease, and the slots as the lease names them.
func (a *Agent) newRecord(s negotiate.Sale, slots []capacity.Slot) (record, []market.SlotGeneration, error) {
	now := time.Now().UnixMilli()
	rec := record{
		Version: recordVersion, Offer: s.Offer.Raw, Accept: s.AcceptRaw, Peer: s.Peer, Renter: s.Accept.Account, State: work.Agreed, Needs: s.Needs,
		Agreed: now, Model: s.Lot.Model, Rate: s.Accept.Rate, Unit: s.Accept.Unit, Term: s.Accept.Term, LotID: s.Lot.ID,
		EgressRate: s.Offer.Terms.EgressRate, EgressCap: s.Offer.Terms.EgressCap,
	}
	var generations []market.SlotGeneration
	for _, slot := range slots {
		lot, ok := a.config().lot(slot.Device)
		if !ok {
			return rec, nil, reason.Errorf(reason.OfferUnknown, "device %s is no longer on offer", slot.Device.Short())
		}
		rec.take(lot)
		generations = append(generations, market.SlotGeneration{Device: slot.Device, Generation: slot.Generation})
	}
	return rec, generations, nil
}

func (a *Agent) commitSale(ctx context.Context, s negotiate.Sale, slots []capacity.Slot) (record, error) {
	rec, generations, err := a.newRecord(s, slots)
	if err != nil {
		return rec, err
	}
	err = a.books.Update(ctx, func(tx *books.Tx) error {
		room, _, err := tx.Room(s.Accept.Account, s.Accept.Unit)
		if err != nil {
			return err
		}
		lease, err := negotiate.Lease(a.dev, s, generations, min(room, money.Max))
		if err != nil {
			return err
		}
		if !s.Quote.IsZero() {
			if err := forgetQuote(tx, s.Quote); err != nil {
				return err
			}
		}
		return a.saleTx(tx, s, &rec, lease, slots)
	})
	return rec, err
}

// saleTx signs the lease and stores all of a sale: lane, slots, record.
func (a *Agent) saleTx(tx *books.Tx, s negotiate.Sale, rec *record, lease market.Lease, slots []capacity.Slot) (err error) {
	if rec.Lease, err = a.dev.Seal(market.DomainLease, lease); err != nil {
		return err
	}
	if err := a.openTx(tx, s.Accept, lease.Hold, s.Offer.Terms.DueDays, s.VoucherRaw, s.DelegationRaw); err != nil {
		return err
	}
	own := tx.Of(kv.Provider)
	for _, slot := range slots {
		if err := kv.Save(own, deviceKey(keySlot, slot.Device), slot); err != nil {
			return err
		}
	}
	return kv.Save(own, leaseKey(s.ID), rec)
}
