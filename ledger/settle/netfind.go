package settle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Circle is a circle of debts that was found, from this account's debt on, and what it would clear.
type Circle struct {
	Unit   money.Unit
	Amount money.Micro
	Legs   []netting.Leg
}

// Find searches for circles of debts through this account, by asking those whom it owes, and gives them in the order in which they are to be
// cleared, each with what is left for it after those before. What others say is only their word until they sign.
func (n *Net) Find(ctx context.Context, unit money.Unit) ([]Circle, error) {
	if !n.c.Consent() {
		return nil, ErrNoConsent
	}
	ctx, cancel := context.WithTimeout(ctx, findFor)
	defer cancel()
	found, err := n.walk(ctx, unit, nil, netCalls, nil)
	if err != nil {
		return nil, err
	}
	for _, d := range n.family() {
		got, err := n.ask(ctx, d, NetAsk{Find: &NetFind{Unit: unit, Calls: netCalls, Wait: left(ctx)}})
		if err != nil {
			n.c.Log.Debug("own device not searched", "device", d, "err", err)
			continue
		}
		found = append(found, got.Circles...)
	}
	return n.plan(ctx, unit, found)
}

// plan takes those of the circles that can be, and puts them in order.
func (n *Net) plan(ctx context.Context, unit money.Unit, found [][]NetLeg) (out []Circle, err error) {
	type pair struct{ debtor, creditor identity.AccountID }
	legs, amounts := map[pair]netting.Leg{}, map[pair]money.Micro{}
	for _, path := range found {
		ok, err := n.mine(ctx, unit, path)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		for _, l := range path {
			p := pair{l.Debtor, l.Creditor}
			if was, known := legs[p]; known && was != l.Leg {
				continue // two devices of one account: the first found is as good
			}
			legs[p], amounts[p] = l.Leg, max(amounts[p], l.Amount)
		}
	}
	var debts []netting.Debt
	for p, amount := range amounts {
		debts = append(debts, netting.Debt{Debtor: p.debtor, Creditor: p.creditor, Unit: unit, Amount: amount})
	}
	circles, _ := netting.Plan(debts, n.c.Books.Self(), netting.MaxParties)
	for _, c := range circles {
		one := Circle{Unit: unit, Amount: c.Amount}
		for i, a := range c.Accounts {
			one.Legs = append(one.Legs, legs[pair{a, c.Accounts[(i+1)%len(c.Accounts)]}])
		}
		out = append(out, one)
	}
	return out, nil
}

// mine checks a circle that others gave: it closes here, this device holds a side of it, and its amounts are owed by this device's ledger.
func (n *Net) mine(ctx context.Context, unit money.Unit, path []NetLeg) (ok bool, err error) {
	if len(path) < netting.MinParties || len(path) > netting.MaxParties {
		return false, nil
	}
	t := netting.Terms{Unit: unit, Amount: 1, Last: n.c.Network.Self(), Deadline: 1, Nonce: [32]byte{1}}
	for _, l := range path {
		if l.Amount == 0 || l.Amount > money.Max {
			return false, nil
		}
		t.Legs = append(t.Legs, l.Leg)
	}
	first, last := &path[0], &path[len(path)-1]
	if t.Validate() != nil || first.Debtor != n.c.Books.Self() {
		return false, nil
	}
	err = n.c.Books.View(ctx, func(r *books.Reader) error {
		for _, side := range []struct {
			leg    *NetLeg
			role   ledger.Role
			device identity.PeerID
			peer   identity.AccountID
		}{{first, ledger.AsRenter, first.Payer, first.Creditor}, {last, ledger.AsProvider, last.Payee, last.Debtor}} {
			if side.device != n.c.Network.Self() {
				continue // another device of this account: it looks before it signs
			}
			most, err := r.Clearable(side.role, unit, side.peer)
			if err != nil {
				return err
			}
			if side.leg.Amount = min(side.leg.Amount, most); most > 0 {
				ok = true
			}
		}
		return nil
	})
	return ok && first.Amount > 0 && last.Amount > 0, err
}

// find answers a search.
func (n *Net) find(ctx context.Context, d identity.Delegation, f NetFind) (NetAnswer, error) {
	own := d.Account == n.c.Books.Self()
	if own {
		n.remember(d.Device)
	}
	switch {
	case !n.c.Consent():
		return NetAnswer{}, p2p.Errorf(p2p.KindForbidden, "this account is not cleared in circles")
	case !n.allow(d.Device):
		return NetAnswer{}, p2p.Errorf(p2p.KindBusy, "too many searches")
	case f.Unit.Validate() != nil || f.Calls > netCalls || len(f.Path) >= netting.MaxParties || len(f.Path) == 0 && !own:
		return NetAnswer{}, p2p.Errorf(p2p.KindBadRequest, "not a search")
	}
	ctx, cancel := within(ctx, f.Wait, findFor)
	defer cancel()
	path := slices.Clone(f.Path)
	if len(path) > 0 {
		ok, err := n.follows(ctx, d, f.Unit, path)
		if err != nil || !ok {
			return NetAnswer{}, err
		}
	}
	var skip []identity.PeerID
	if own {
		skip = n.family() // who asked has asked all devices of the account
	}
	found, err := n.walk(ctx, f.Unit, path, f.Calls, skip)
	return NetAnswer{Circles: found[:min(len(found), maxFound)]}, err
}

// follows checks the way that a search came: it is simple, it comes from the last debtor to this account, and the last amount is owed here,
// to which it is cut. A path that another device of this account passes on was checked there.
func (n *Net) follows(ctx context.Context, d identity.Delegation, unit money.Unit, path []NetLeg) (ok bool, err error) {
	self := n.c.Books.Self()
	last := &path[len(path)-1]
	debtors := map[identity.AccountID]bool{self: true}
	least := money.Max
	for i, l := range path {
		if debtors[l.Debtor] || l.Debtor.IsZero() || i > 0 && path[i-1].Creditor != l.Debtor || l.Amount == 0 || l.Amount > least {
			return false, p2p.Errorf(p2p.KindBadRequest, "not a way along debts")
		}
		debtors[l.Debtor], least = true, l.Amount
	}
	if last.Creditor != self {
		return false, p2p.Errorf(p2p.KindForbidden, "the way does not come here")
	}
	if d.Account == self && last.Payee == d.Device {
		return true, nil
	}
	if last.Debtor != d.Account || last.Payer != d.Device || last.Payee != n.c.Network.Self() {
		return false, p2p.Errorf(p2p.KindForbidden, "the way does not come from device %s", d.Device.Short())
	}
	err = n.c.Books.View(ctx, func(r *books.Reader) error {
		most, err := r.Clearable(ledger.AsProvider, unit, last.Debtor)
		last.Amount = min(last.Amount, most)
		return err
	})
	return last.Amount > 0, err
}

// step is one creditor to whom a search is passed.
type step struct {
	to   identity.PeerID
	path []NetLeg
}

// walk goes on from the end of path, along what this account owes: it closes the circle where the origin is a creditor, and asks the largest
// of the others, and this account's other devices but those in skip.
func (n *Net) walk(ctx context.Context, unit money.Unit, path []NetLeg, calls uint32, skip []identity.PeerID) (found [][]NetLeg, err error) {
	var steps []step
	err = n.c.Books.View(ctx, func(r *books.Reader) error {
		debts, err := r.Clearables(ledger.AsRenter, unit)
		for _, d := range debts {
			if err := n.extend(r, path, d, &steps, &found); err != nil {
				return err
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("search for circles: %w", err)
	}
	if len(path) > 0 {
		for _, d := range n.family() {
			if !slices.Contains(skip, d) {
				steps = append(steps, step{d, path})
			}
		}
	}
	steps = steps[:min(len(steps), int(calls))]
	if len(steps) == 0 {
		return found, nil
	}
	share := (calls - uint32(len(steps))) / uint32(len(steps))
	answers := make([][][]NetLeg, len(steps))
	var all sync.WaitGroup
	for i, s := range steps {
		all.Go(func() {
			got, err := n.ask(ctx, s.to, NetAsk{Find: &NetFind{Unit: unit, Path: s.path, Calls: share, Wait: left(ctx)}})
			if err != nil {
				n.c.Log.Debug("search for circles not passed on", "peer", s.to, "err", err)
				return
			}
			answers[i] = got.Circles
		})
	}
	all.Wait()
	for i, circles := range answers {
		for _, c := range circles {
			if len(c) >= len(steps[i].path) && slices.EqualFunc(c[:len(path)], path, func(a, b NetLeg) bool { return a.Leg == b.Leg }) {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// extend adds one debt of this account to a path: a circle if that closes there, a step to go if not.
func (n *Net) extend(r *books.Reader, path []NetLeg, d netting.Debt, steps *[]step, found *[][]NetLeg) error {
	least := money.Max
	if len(path) > 0 {
		least = path[len(path)-1].Amount
	}
	closes := len(path) > 0 && path[0].Debtor == d.Creditor
	if !closes && (len(*steps) >= netFan || len(path)+1 >= netting.MaxParties ||
		slices.ContainsFunc(path, func(l NetLeg) bool { return l.Debtor == d.Creditor })) {
		return nil
	}
	device, err := r.DeviceOf(ledger.AsRenter, d.Unit, d.Creditor)
	if errors.Is(err, books.ErrNoLane) {
		return nil // a creditor that has signed nothing can't be asked; others can
	}
	if err != nil {
		return err
	}
	longer := append(slices.Clone(path), NetLeg{
		Leg:    netting.Leg{Debtor: d.Debtor, Creditor: d.Creditor, Payer: n.c.Network.Self(), Payee: device},
		Amount: min(least, d.Amount),
	})
	if closes {
		*found = append(*found, longer)
	} else {
		*steps = append(*steps, step{device, longer})
	}
	return nil
}
