package provider

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/control/api"
)

// Status is what the owner sees at a glance. What the local API adds of the program and its peers is not filled in.
func (a *Agent) Status(ctx context.Context) (api.Status, error) {
	leases, err := a.Leases(ctx, false)
	if err != nil {
		return api.Status{}, err
	}
	s := api.Status{
		State: api.Serving, Account: a.dev.Account().String(), Peer: a.dev.Peer().String(), Addrs: a.net.Addrs(),
		Peers: len(a.net.Peers()), Devices: a.Devices(), Leases: leases, Warnings: []string{},
	}
	a.lookAtStore(ctx)
	a.lookAtDisk(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	s.Network = a.conf.Network
	a.state(&s, time.Now())
	if skew := a.board.Skew(); skew.Wrong() {
		s.Warnings = append(s.Warnings, skew.String())
	}
	return s, nil
}

// state judges how the owner's side stands; a.mu is held.
func (a *Agent) state(s *api.Status, now time.Time) {
	if a.refuses != "" {
		s.Warnings = append(s.Warnings, a.refuses)
	}
	switch {
	case a.pause.active(now):
		s.State = api.Paused
		if a.pause.Until != 0 {
			until := time.UnixMilli(a.pause.Until)
			s.PausedUntil = &until
		}
	case len(a.measuring) > 0 && len(a.passports) == 0:
		s.State = api.Starting
	case a.conf.missing() != "":
		s.State = api.Idle
		s.Warnings = append(s.Warnings, "nothing is offered: "+a.conf.missing())
	case a.refuses != "":
		s.State = api.Stuck
	case a.why != "":
		s.State = api.Stuck
		s.Warnings = append(s.Warnings, "nothing is offered: "+a.why)
	default:
		for _, lot := range a.conf.Lots {
			if why := a.short[lot.Device]; why != "" {
				s.Warnings = append(s.Warnings, "device "+lot.Device.Short()+" is not offered: "+why+makeRoom)
			}
		}
	}
}

// Devices lists the machine's devices as they stand.
func (a *Agent) Devices() []api.Device {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []api.Device{}
	for _, d := range a.found {
		v := api.Device{
			ID: d.UUID, Kind: string(d.Kind), Model: d.Model, Cores: d.Cores.String(), MemoryMiB: d.MemoryMiB, Figures: []api.Figure{},
			State: api.DeviceUnoffered, Detail: d.Problem,
		}
		lot, offered := a.conf.lot(d.Hash)
		p, measured := a.passports[d.Hash]
		if measured {
			at := time.UnixMilli(p.Finished)
			v.MeasuredAt, v.Figures = &at, figures(p.Figures())
		}
		if offered {
			v.Price, v.Unit, v.MemoryMiB = lot.Price.String(), string(a.conf.Unit), lot.MemoryMiB
		}
		state, known := a.capacity.Look(d.Hash)
		switch {
		case d.Problem != "":
		case a.measuring[d.Hash] != "":
			v.State, v.Detail = api.DeviceMeasuring, a.measuring[d.Hash]
		case !offered:
			v.Detail = "not configured"
		case !measured:
			v.Detail = "not measured yet"
		case known && state.Lease != nil:
			v.State, v.Detail = api.DeviceLeased, state.Lease.Short()
		case known && state.Blocked != "":
			v.Detail = state.Blocked
		case a.short[d.Hash] != "":
			v.Detail = a.short[d.Hash] + makeRoom
		default:
			v.State = api.DeviceFree
		}
		out = append(out, v)
	}
	return out
}

func figures(list []benchmark.Figure) []api.Figure {
	out := make([]api.Figure, 0, len(list))
	for _, f := range list {
		if info, ok := benchmark.Info(f.ID); ok {
			text := info.Format(f.Value)
			if f.Kernel != benchmark.KernelUnknown {
				text += " (" + f.Kernel.String() + ")"
			}
			out = append(out, api.Figure{Name: info.Name, Value: float64(f.Value) / float64(info.Scale), Unit: info.Unit, Text: text})
		}
	}
	return out
}

// Offers shows what is advertised now, or why nothing is.
func (a *Agent) Offers() api.Offers {
	a.mu.Lock()
	o := api.Offers{NotServed: a.why, Accounts: []string{}, Lots: []api.Lot{}}
	for _, acc := range a.conf.Accounts {
		o.Accounts = append(o.Accounts, acc.String())
	}
	a.mu.Unlock()
	cur, ok := a.publisher.Current()
	if !ok {
		return o
	}
	o.Hash, o.Seq, o.IssuedAt, o.Bytes = cur.Hash.String(), cur.Seq, cur.Issued(), len(cur.Raw)
	for _, l := range cur.Lots {
		o.Lots = append(o.Lots, api.Lot{
			ID: int(l.ID), Kind: string(l.Kind), Model: l.Model, Devices: len(l.Slots), Free: l.Free(), Price: l.Price.String(),
			Unit: string(cur.Unit), MinTerm: int(l.MinTerm), MaxTerm: int(l.MaxTerm), Figures: figures(l.Figures), Passport: l.Passport.String(),
		})
	}
	return o
}

// maxLeases is how many leases a list shows: more than a person reads, and little enough to answer at once. FindLease finds any.
const maxLeases = 1000

// Leases lists the leases that have not ended, or all of them, newest first; at most 1000.
func (a *Agent) Leases(ctx context.Context, everything bool) ([]api.Lease, error) {
	found := map[market.LeaseID]snapshot{}
	if everything {
		err := a.books.View(ctx, func(r *books.Reader) error {
			return eachLease(r.Of(kv.Provider), nil, func(id market.LeaseID, rec record) error {
				found[id] = stored(rec)
				return nil
			})
		})
		if err != nil {
			return nil, fmt.Errorf("stored leases: %w", err)
		}
	}
	a.mu.Lock()
	for id, k := range a.keepers {
		if s := k.look(); everything || s.rec.State != work.Ended {
			found[id] = s
		}
	}
	a.mu.Unlock()
	ids := slices.Collect(maps.Keys(found))
	slices.SortFunc(ids, func(x, y market.LeaseID) int {
		return cmp.Or(cmp.Compare(found[y].rec.Agreed, found[x].rec.Agreed), slices.Compare(x[:], y[:]))
	})
	out := []api.Lease{}
	for _, id := range ids[:min(len(ids), maxLeases)] {
		out = append(out, viewOf(id, found[id]))
	}
	return out, a.allowances(ctx, out)
}

// allowances adds what renters have allowed for their absence to leases that have not ended.
func (a *Agent) allowances(ctx context.Context, list []api.Lease) error {
	return a.books.View(ctx, func(r *books.Reader) error {
		for i := range list {
			v := &list[i]
			id, err := wire.ParseHash(v.ID)
			if err != nil {
				return err
			}
			if v.State == work.Ended.String() {
				continue
			}
			l, err := r.Lane(ledger.Lane(id))
			if errors.Is(err, books.ErrNoLane) || err == nil && l.Allowed == 0 {
				continue
			}
			if err != nil {
				return err
			}
			v.Away = &api.Away{Most: l.Allowed.String(), Until: time.UnixMilli(l.AllowedUntil), Over: l.Lapsed}
		}
		return nil
	})
}

// stored is a snapshot of a lease that nobody keeps any more.
func stored(rec record) snapshot {
	return snapshot{rec: rec, charge: rec.Charge, billable: rec.Billable}
}

// ErrAmbiguous says that the start of an id fits more than one.
var ErrAmbiguous = errors.New("fits more than one")

// FindLease finds a lease by its id or an unambiguous start of it.
func (a *Agent) FindLease(ctx context.Context, id string) (api.Lease, error) {
	lease, s, err := a.findLease(ctx, strings.ToLower(id))
	if err != nil {
		return api.Lease{}, fmt.Errorf("lease %q: %w", id, err)
	}
	one := []api.Lease{viewOf(lease, s)}
	err = a.allowances(ctx, one)
	return one[0], err
}

func (a *Agent) findLease(ctx context.Context, id string) (lease market.LeaseID, s snapshot, err error) {
	prefix, err := hex.DecodeString(id[:len(id)/2*2])
	if err != nil || id == "" || len(prefix) > len(lease) {
		return lease, s, ErrNotFound
	}
	found := 0
	err = a.books.View(ctx, func(r *books.Reader) error {
		return eachLease(r.Of(kv.Provider), prefix, func(l market.LeaseID, rec record) error {
			if strings.HasPrefix(l.String(), id) {
				found++
				lease, s = l, stored(rec)
			}
			return nil
		})
	})
	switch {
	case err != nil:
		return lease, s, err
	case found == 0:
		return lease, s, ErrNotFound
	case found > 1:
		return lease, s, fmt.Errorf("%w: give more of it", ErrAmbiguous)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.keepers[lease]; k != nil {
		s = k.look()
	}
	return lease, s, nil
}

// viewOf is a lease for people.
func viewOf(id market.LeaseID, s snapshot) api.Lease {
	rec, usage, charge, billable := s.rec, s.usage, s.charge, s.billable
	v := api.Lease{
		ID: id.String(), State: rec.State.String(), Reason: string(rec.Reason.Code), Detail: rec.Reason.Detail, Renter: rec.Renter.String(),
		Peer: rec.Peer.String(), Rate: rec.Rate.String(), Unit: string(rec.Unit), Agreed: time.UnixMilli(rec.Agreed),
		Seconds: float64(billable) / 1000, Charge: charge.String(), Vouchered: rec.Vouchered.String(), MemoryMiB: usage.MemoryBytes >> 20,
		Wiped: rec.Wiped, Started: at(rec.Started), EndedAt: at(rec.Ended), Devices: []string{},
	}
	for _, d := range rec.Devices {
		v.Devices = append(v.Devices, d.Short())
	}
	if rec.Spec != nil {
		v.Image, v.Command = rec.Spec.Name, rec.Spec.Command
	}
	if rec.Exit != nil {
		v.Exit = &api.Exit{Code: int(rec.Exit.Code), Signal: rec.Exit.Signal, OOM: rec.Exit.OOM}
	}
	if t := rec.Traffic; t != nil {
		v.Egress = (*api.Egress)(t)
	}
	if ms := billable; ms > 0 && rec.State == work.Running {
		v.CPU = usage.CPU.Seconds() / (float64(ms) / 1000)
	}
	return v
}

func at(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := time.UnixMilli(ms)
	return &t
}

// Pause stops renting out, for d or (0) until Resume: no new leases, and every device is free within 2 s. The owner is first: an error
// that the pause could not be stored says that a restart forgets it, and it is in force all the same.
func (a *Agent) Pause(ctx context.Context, d time.Duration) error {
	p := pauseRecord{On: true}
	if d > 0 {
		p.Until = time.Now().Add(d).UnixMilli()
	}
	unstored := a.setPause(ctx, p)
	a.abortAuctions(ctx, reason.New(reason.OwnerPaused, ""))
	a.selling.Lock() // a sale that was let in before has its keeper now
	a.mu.Lock()
	keepers := slices.Collect(maps.Values(a.keepers))
	if a.yield != nil {
		a.yield()
	}
	a.mu.Unlock()
	a.selling.Unlock()
	errs := make([]error, len(keepers))
	var all sync.WaitGroup
	for i, k := range keepers {
		all.Go(func() {
			if err := k.reclaim(ctx, 0); !errors.Is(err, errGone) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, unstored)...)
}

// Resume rents out again. An error that this could not be stored says that after a restart the pause would be back.
func (a *Agent) Resume(ctx context.Context) error { return a.setPause(ctx, pauseRecord{}) }

// setPause takes effect before it is stored: the owner's word holds whether or not the disk is full.
func (a *Agent) setPause(ctx context.Context, p pauseRecord) error {
	a.mu.Lock()
	a.pause = p
	if !p.On {
		a.why = "" // what kept the offer back is looked at again at once
	}
	a.mu.Unlock()
	a.changed()
	err := a.books.Update(ctx, func(tx *books.Tx) error { return kv.Save(tx.Of(kv.Provider), []byte(keyPause), p) })
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnstored, err)
	}
	return nil
}

// StopLease takes a lease's devices back after the notice that the owner's terms give.
func (a *Agent) StopLease(ctx context.Context, id string) error {
	lease, _, err := a.findLease(ctx, strings.ToLower(id))
	if err != nil {
		return fmt.Errorf("lease %q: %w", id, err)
	}
	a.mu.Lock()
	k := a.keepers[lease]
	notice := a.conf.Notice
	a.mu.Unlock()
	if k == nil {
		return reason.Errorf(reason.NotPreparing, "lease %s has ended", lease.Short())
	}
	return k.reclaim(ctx, notice)
}

// reclaim ends a lease for its owner: the job hears SIGTERM now and SIGKILL after the notice and a second.
func (k *keeper) reclaim(ctx context.Context, notice time.Duration) error {
	return k.do(ctx, func() error {
		k.stop(k.a.ctx, reason.New(reason.OwnerReclaimed, ""), notice+ownerWait)
		return nil
	})
}

// Accounts are whom the owner serves.
func (a *Agent) Accounts() []identity.AccountID { return a.config().Accounts }

// Told reports whether the published offer has reached a peer.
func (a *Agent) Told() bool { return a.publisher.Told() }

// PeerOf finds the device of a renter that was dealt with last.
func (a *Agent) PeerOf(ctx context.Context, account identity.AccountID) (identity.PeerID, error) {
	var peer identity.PeerID
	var newest int64
	err := a.books.View(ctx, func(r *books.Reader) error {
		return eachLease(r.Of(kv.Provider), nil, func(_ market.LeaseID, rec record) error {
			if rec.Renter == account && rec.Agreed >= newest {
				peer, newest = rec.Peer, rec.Agreed
			}
			return nil
		})
	})
	if err == nil && newest == 0 {
		err = fmt.Errorf("account %s: %w: it never leased from here: there is nothing to settle", account.Short(), ErrNotFound)
	}
	return peer, err
}
