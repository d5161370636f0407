// Package capacity says which devices are free and hands them out: requested, then committed or withdrawn. It keeps each device's
// slot generation and refuses to know prices, accounts and disks.
package capacity

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Slot is one device as the store keeps it. Generation counts its leases and never falls.
type Slot struct {
	Device     wire.Hash       `cbor:"1,keyasint"`
	Generation uint64          `cbor:"2,keyasint"`
	Lease      *market.LeaseID `cbor:"3,keyasint,omitempty"` // who has it, if anybody
}

// Table is the devices of one provider. Safe for concurrent use. What it holds in memory is true only for this process: a claim is
// committed by the store's transaction, and the table is filled from the store at start.
type Table struct {
	mu      sync.Mutex
	slots   map[wire.Hash]*slot // guarded by mu
	changed chan struct{}       // guarded by mu; closed at each change
}

type slot struct {
	Slot
	claimed bool   // a transaction about it is under way
	blocked string // why the owner's side keeps it back; empty: it does not
	used    string // what the owner's side does with it now, such as measuring; empty: nothing
}

// New makes a table of the devices that the store knows and those that are configured now.
func New(stored []Slot) *Table {
	t := &Table{slots: map[wire.Hash]*slot{}, changed: make(chan struct{})}
	for _, s := range stored {
		t.slots[s.Device] = &slot{Slot: s}
	}
	return t
}

// Add makes a device known; one that is known already keeps its generation and lease.
func (t *Table) Add(device wire.Hash) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots[device] == nil {
		t.slots[device] = &slot{Slot: Slot{Device: device}}
		t.notify()
	}
}

// notify wakes whoever waits for a change; mu is held.
func (t *Table) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Changed is closed at the next change of any device.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Block keeps a device back from new leases for a reason that its owner can read; an empty reason gives it back. A lease that has
// the device keeps it.
func (t *Table) Block(device wire.Hash, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[device]; s != nil && s.blocked != why {
		s.blocked = why
		t.notify()
	}
}

// ErrUnknown says that a device is not configured.
var ErrUnknown = errors.New("device is not configured")

// Occupy keeps a device that nobody has from leases while the owner's side uses it for what why says. The caller calls release once.
func (t *Table) Occupy(device wire.Hash, why string) (release func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[device]
	switch {
	case s == nil:
		return nil, ErrUnknown
	case s.Lease != nil:
		return nil, reason.Errorf(reason.DeviceTaken, "lease %s has it: try again when it is free", s.Lease.Short())
	case s.claimed:
		return nil, reason.Errorf(reason.DeviceTaken, "it is being leased")
	case s.why() != "":
		return nil, reason.Errorf(reason.DeviceTaken, "%s", s.why())
	}
	s.used = why
	t.notify()
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		s.used = ""
		t.notify()
	}, nil
}

// why is what keeps the device from leases besides a lease.
func (s *slot) why() string {
	if s.used != "" {
		return s.used
	}
	return s.blocked
}

// Claim is devices that a transaction is about to give to a lease. End it with Commit or Withdraw.
type Claim struct {
	table *Table
	slots []*slot
	lease market.LeaseID
}

// Request claims n of the given devices for a lease. The error is a [reason.Error] that says how many are free.
func (t *Table) Request(lease market.LeaseID, devices []wire.Hash, n int) (*Claim, error) {
	return t.RequestUsed(lease, devices, n, "")
}

// RequestUsed is Request by whoever occupies some of the devices for that use: those count as free. Their release comes after the claim.
func (t *Table) RequestUsed(lease market.LeaseID, devices []wire.Hash, n int, use string) (*Claim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Claim{table: t, lease: lease}
	for _, d := range devices {
		if s := t.slots[d]; s != nil && s.free(use) && len(c.slots) < n {
			c.slots = append(c.slots, s)
		}
	}
	if len(c.slots) < n {
		return nil, reason.Err(reason.New(reason.DeviceTaken, "%d of %d devices free, %d asked for", len(c.slots), len(devices), n))
	}
	for _, s := range c.slots {
		s.claimed = true
	}
	return c, nil
}

func (s *slot) free(use string) bool {
	return s.Lease == nil && !s.claimed && s.blocked == "" && (s.used == "" || s.used == use)
}

// Secure gives the claim's devices as they will stand once it is committed, with the next generation each: what the store's
// transaction writes and the Lease names.
func (c *Claim) Secure() []Slot {
	out := make([]Slot, len(c.slots))
	for i, s := range c.slots {
		lease := c.lease
		out[i] = Slot{Device: s.Device, Generation: s.Generation + 1, Lease: &lease}
	}
	return out
}

// Commit follows the store's transaction: the devices are the lease's.
func (c *Claim) Commit() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for _, s := range c.slots {
		lease := c.lease
		s.claimed, s.Lease = false, &lease
		s.Generation++
	}
	c.table.notify()
}

// Withdraw gives the devices back when the transaction did not happen.
func (c *Claim) Withdraw() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for _, s := range c.slots {
		s.claimed = false
	}
	c.table.notify()
}

// Held are the devices of a lease, as the store keeps them while it lasts.
func (t *Table) Held(lease market.LeaseID) []Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Slot
	for _, s := range t.slots {
		if s.Lease != nil && *s.Lease == lease {
			out = append(out, s.Slot)
		}
	}
	slices.SortFunc(out, func(a, b Slot) int { return slices.Compare(a.Device[:], b.Device[:]) })
	return out
}

// Free gives a lease's devices back, after its end is durable and nothing of it runs.
func (t *Table) Free(lease market.LeaseID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots {
		if s.Lease != nil && *s.Lease == lease {
			s.Lease = nil
		}
	}
	t.notify()
}

// State is how a device stands.
type State struct {
	Slot
	Blocked string // why it is kept back
}

// Available reports whether a lease could have the device now.
func (s State) Available() bool { return s.Lease == nil && s.Blocked == "" }

// Look gives the state of one device; false if it is unknown.
func (t *Table) Look(device wire.Hash) (State, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, ok := t.slots[device]
	if !ok {
		return State{}, false
	}
	return State{Slot: s.Slot, Blocked: s.why()}, true
}

// String lists the devices and who has them, for logs.
func (t *Table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out strings.Builder
	for _, d := range slices.SortedFunc(maps.Keys(t.slots), func(a, b wire.Hash) int { return slices.Compare(a[:], b[:]) }) {
		s := t.slots[d]
		who := "free"
		switch {
		case s.Lease != nil:
			who = "lease " + s.Lease.Short()
		case s.why() != "":
			who = s.why()
		}
		out.WriteString(fmt.Sprintf("%s generation %d: %s\n", d.Short(), s.Generation, who))
	}
	return out.String()
}
