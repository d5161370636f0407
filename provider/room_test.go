package provider

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/control/api"
)

// smallDisk puts the leases of a rig on a file system of so many MiB, and fills it with a file, in MiB.
func smallDisk(t *testing.T, r *rig, size string) (fill func(mib int)) {
	t.Helper()
	if err := syscall.Mount("tmpfs", r.mounts.dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("mount a small disk (run these tests as root): %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(r.mounts.dir, syscall.MNT_DETACH)) })
	path := filepath.Join(filepath.Dir(r.mounts.dir), "jobs", ".others")
	return func(mib int) {
		t.Helper()
		f, err := os.Create(path)
		must(t, err)
		defer f.Close()
		if mib > 0 {
			must(t, syscall.Fallocate(int(f.Fd()), 0, 0, int64(mib)<<20))
		}
	}
}

// offered makes the rig's agent fit for an offer: its devices are measured.
func (r *rig) offered() {
	now := time.Now()
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.a.conf.Addrs = []string{"/ip4/192.0.2.7/tcp/4701"}
	for _, l := range r.a.conf.Lots {
		d := benchmark.Device{Hash: l.Device, Kind: benchmark.KindCPU, Cores: benchmark.Cores{0}}
		r.a.found = append(r.a.found, Device{Device: d, UUID: l.Device.String()})
		r.a.passports[l.Device] = benchmark.Report{
			Device: d, Started: now, Finished: now,
			Measurements: []benchmark.Measurement{{Figure: 1, Stats: benchmark.Stats{N: 1}}},
		}.Passport(r.owner.Header(1), r.owner.DelegationHash())
	}
}

// TestDiskAtItsMark fills the disk that leases lie on: nothing is offered and sold while a lease does not fit above what the owner keeps, and
// everybody is told why.
func TestDiskAtItsMark(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		fill := smallDisk(t, r, "256m")
		r.a.conf.DiskReserve = 32 << 20 // a lease takes 64 MiB and 1 MiB of output
		r.offered()
		status := func() api.Status {
			t.Helper()
			r.a.lookAtDisk(context.Background())
			_, why := r.a.compose(time.Now())
			s := api.Status{State: api.Serving}
			r.a.mu.Lock()
			defer r.a.mu.Unlock()
			r.a.why = why
			r.a.state(&s, time.Now())
			return s
		}
		for _, c := range []struct {
			others int // MiB on the disk
			short  bool
		}{{0, false}, {158, false}, {160, true}, {157, true}, {150, false}, {158, false}} { // it comes back above 97 + 6 MiB
			fill(c.others)
			s, d := status(), r.a.Devices()
			o, why := r.a.compose(time.Now())
			if c.short {
				if len(o.Lots) != 0 || !strings.Contains(why, "a lease needs 65 MiB") || s.State != api.Stuck || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "lower disk_reserve") {
					t.Errorf("%d MiB taken: offered %d lots (%s), status %s %q", c.others, len(o.Lots), why, s.State, s.Warnings)
				}
				if d[0].State != api.DeviceUnoffered || !strings.Contains(d[0].Detail, "a lease needs 65 MiB") {
					t.Errorf("%d MiB taken: the device is %s: %s", c.others, d[0].State, d[0].Detail)
				}
				continue
			}
			if len(o.Lots) != 1 || !o.Lots[0].Slots[0].Free || len(s.Warnings) != 0 || d[0].State != api.DeviceFree {
				t.Errorf("%d MiB taken: offer %+v (%s), status %s %q, device %s", c.others, o.Lots, why, s.State, s.Warnings, d[0].State)
			}
		}
		fill(160) // since the offer was made
		if _, err := r.a.Sell(context.Background(), r.sale()); !isCode(err, reason.DiskFull) {
			t.Errorf("sold on a full disk: %v", err)
		}
		fill(0)
		r.sell()
	})
}

// TestRunningLeasesKeepTheirDisk sells a lease: what it may yet write is no room for another, what it has written is counted once, and its
// end gives it back.
func TestRunningLeasesKeepTheirDisk(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		fill := smallDisk(t, r, "256m")
		other := r.conf.Lots[0]
		other.Device, other.Cores = wire.Sum("", []byte("other device")), []int{1}
		r.a.conf.Lots = append(r.a.conf.Lots, other)
		r.a.conf.DiskReserve = 32 << 20
		r.a.capacity.Add(other.Device)
		r.offered()
		short := func() bool {
			t.Helper()
			r.a.lookAtDisk(context.Background())
			r.a.mu.Lock()
			defer r.a.mu.Unlock()
			if r.a.short[r.conf.Lots[0].Device] != "" {
				t.Error("the leased device has no disk")
			}
			return r.a.short[other.Device] != ""
		}
		fill(120)
		if short() {
			t.Fatal("136 MiB are no room for 97")
		}
		r.paying.Store(true)
		k := r.run()
		if !short() {
			t.Error("72 MiB beside a running lease are room for 97")
		}
		o, why := r.a.compose(time.Now())
		if len(o.Lots) != 2 || o.Lots[1].Slots[0].Free {
			t.Errorf("offer %+v (%s)", o.Lots, why)
		}
		fill(88)
		if short() {
			t.Error("104 MiB beside a running lease are no room for 97 after all")
		}
		fill(88 + 60) // of which 60 are the lease's own
		r.mounts.disk.Store(60 << 20)
		time.Sleep(time.Minute) // it is counted
		if short() {
			t.Error("what a lease has written is counted twice")
		}
		fill(130)
		r.mounts.disk.Store(0)
		r.runtime.exit(0, time.Now())
		r.over(k.id, "completed")
		if r.stored(k.id).State != work.Ended || short() {
			t.Error("the end of the lease gives no room")
		}
	})
}
