package capacity_test

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/capacity"
)

func dev(n byte) wire.Hash        { return wire.Hash{n} }
func lease(n byte) market.LeaseID { return market.LeaseID{n} }
func taken(err error) bool        { r, ok := reason.Of(err); return ok && r.Code == reason.DeviceTaken }

// Whatever happens in whatever order: a device has one lease at most, and its generation counts its leases and never falls.
func TestOneLeaseADevice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			table: capacity.New([]capacity.Slot{{Device: dev(1), Generation: 7}}), devices: []wire.Hash{dev(1), dev(2)},
			generation: map[wire.Hash]uint64{dev(1): 7}, has: map[wire.Hash]market.LeaseID{}, used: map[wire.Hash]func(){},
		}
		m.table.Add(dev(1))
		m.table.Add(dev(2))
		t.Repeat(map[string]func(*rapid.T){"lease": m.lease, "free": m.free, "occupy": m.occupy, "release": m.release, "": m.check})
	})
}

// model is what a table of two devices must do, kept the simple way.
type model struct {
	table      *capacity.Table
	devices    []wire.Hash
	generation map[wire.Hash]uint64
	has        map[wire.Hash]market.LeaseID
	used       map[wire.Hash]func()
	next       byte
}

func (m *model) lease(t *rapid.T) {
	m.next++
	n := rapid.IntRange(1, 3).Draw(t, "n")
	c, err := m.table.Request(lease(m.next), m.devices, n)
	if free := 2 - len(m.has) - len(m.used); (n <= free) != (err == nil) {
		t.Fatalf("%d of %d free: %v", n, free, err)
	}
	if err != nil {
		return
	}
	if _, err := m.table.Request(lease(99), m.devices, 3-n-len(m.has)-len(m.used)); err == nil {
		t.Fatal("a claimed device was claimed")
	}
	slots := c.Secure()
	if rapid.Bool().Draw(t, "withdraw") {
		c.Withdraw()
		return
	}
	c.Commit()
	for _, s := range slots {
		m.generation[s.Device]++
		m.has[s.Device] = lease(m.next)
		if s.Generation != m.generation[s.Device] {
			t.Fatalf("generation %d, want %d", s.Generation, m.generation[s.Device])
		}
	}
}

func (m *model) free(*rapid.T) {
	for d, l := range m.has {
		m.table.Free(l)
		maps.DeleteFunc(m.has, func(e wire.Hash, other market.LeaseID) bool { return e == d || other == l })
		return
	}
}

func (m *model) occupy(t *rapid.T) {
	d := m.devices[rapid.IntRange(0, 1).Draw(t, "device")]
	release, err := m.table.Occupy(d, "measuring")
	_, leased := m.has[d]
	if busy := leased || m.used[d] != nil; busy != (err != nil) || err != nil && !taken(err) {
		t.Fatalf("busy %v: %v", busy, err)
	}
	if err == nil {
		m.used[d] = release
	}
}

func (m *model) release(*rapid.T) {
	for d, release := range m.used {
		release()
		delete(m.used, d)
		return
	}
}

func (m *model) check(t *rapid.T) {
	for _, d := range m.devices {
		s, ok := m.table.Look(d)
		l, leased := m.has[d]
		if !ok || s.Generation != m.generation[d] || leased != (s.Lease != nil) || leased && *s.Lease != l {
			t.Fatalf("%+v, want lease %v %v generation %d", s, l, leased, m.generation[d])
		}
		if s.Available() != (!leased && m.used[d] == nil) {
			t.Fatalf("available %v", s.Available())
		}
	}
}

// A problem that is found while a device is in use stays after the use.
func TestBlockStaysBesideOccupy(t *testing.T) {
	table := capacity.New(nil)
	table.Add(dev(1))
	if _, err := table.Occupy(dev(9), "measuring"); !errors.Is(err, capacity.ErrUnknown) {
		t.Fatalf("unknown: %v", err)
	}
	release, err := table.Occupy(dev(1), "measuring")
	if err != nil {
		t.Fatal(err)
	}
	changed := table.Changed()
	table.Block(dev(1), "too hot")
	release()
	<-changed
	if s, _ := table.Look(dev(1)); s.Blocked != "too hot" || s.Available() {
		t.Fatalf("%+v", s)
	}
	if _, err := table.Request(lease(1), []wire.Hash{dev(1)}, 1); !taken(err) {
		t.Fatalf("leased: %v", err)
	}
	table.Block(dev(1), "")
	c, err := table.Request(lease(1), []wire.Hash{dev(1)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	c.Commit()
	if held := table.Held(lease(1)); len(held) != 1 || !strings.Contains(table.String(), "lease") {
		t.Fatalf("held %v, table %s", held, table)
	}
}

// Of many at once one gets the device.
func TestManyAtOnce(t *testing.T) {
	table := capacity.New(nil)
	table.Add(dev(1))
	var all sync.WaitGroup
	got := make(chan market.LeaseID, 64)
	for i := range byte(64) {
		all.Go(func() {
			if c, err := table.Request(lease(i+1), []wire.Hash{dev(1)}, 1); err == nil {
				c.Commit()
				got <- lease(i + 1)
			}
		})
	}
	all.Wait()
	if len(got) != 1 || len(table.Held(<-got)) != 1 {
		t.Fatal("not exactly one got it")
	}
}
