package provider

import (
	"context"
	"fmt"
	"maps"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// comeBack is the part of what a lease needs that must be free above it before a device is offered again: a disk at its mark, which other
// programs fill and empty, must not make a new offer every few seconds.
const comeBack = 16

// makeRoom is what an owner can do about it.
const makeRoom = ": free disk space, or lower disk_reserve or the disk of devices in the settings"

// lookAtDisk notes which devices have no room on disk for a lease now. That a disk is slow says nothing: the last look stands.
func (a *Agent) lookAtDisk(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	free, err := a.mounts.Free(within)
	if within.Err() != nil {
		return
	}
	a.mu.Lock()
	was := a.short
	a.short = a.shortOf(free, err)
	news := !maps.EqualFunc(was, a.short, func(string, string) bool { return true }) // figures alone are none
	if news {
		for d, why := range a.short {
			if was[d] == "" {
				a.log.Warn("no lease is sold of a device", "device", d.Short(), "why", why)
			}
		}
	}
	a.mu.Unlock()
	if news {
		a.changed()
	}
}

// shortOf says by device why the free bytes are too few for a lease of it, beside what leases that run may yet write and what the owner
// keeps. A device that is leased has its disk. a.mu is held.
func (a *Agent) shortOf(free int64, err error) map[wire.Hash]string {
	for _, k := range a.keepers {
		if rec := k.look().rec; rec.State != work.Ended {
			free -= max(rec.diskBytes()-k.onDisk.Load(), 0)
		}
	}
	short := map[wire.Hash]string{}
	for _, lot := range a.conf.Lots {
		if state, known := a.capacity.Look(lot.Device); known && state.Lease != nil {
			continue
		}
		takes := int64(lot.DiskMiB)<<20 + a.conf.LogBytes
		need := takes + a.conf.DiskReserve
		if a.short[lot.Device] != "" {
			need += need / comeBack
		}
		switch {
		case err != nil:
			short[lot.Device] = fmt.Sprintf("the disk of leases can't be measured: %v", err)
		case free < need:
			short[lot.Device] = fmt.Sprintf("%d MiB of disk are free beside what running leases may take, and a lease needs %d MiB and leaves %d MiB",
				max(free, 0)>>20, takes>>20, (need-takes)>>20)
		}
	}
	return short
}
