package books

import (
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/wire"
)

// nettedBy is a leg of a clearing that counts, to be found among the entries.
type nettedBy struct {
	kept Netted
	id   wire.Hash
	leg  leg
}

// clearings reads all clearings: it checks every signature, and what is set aside.
func (a *audit) clearings() error {
	a.netted = map[wire.Hash]nettedBy{}
	aside := map[string]int64{}
	err := a.r.Clearings(func(id wire.Hash, v Netted) error {
		name := "clearing " + id.Short()
		if err := v.Terms.Validate(); err != nil || v.Terms.Side(v.Self).Account() != a.r.b.self {
			return corrupt(name, "its terms are none of this account: %v", err)
		}
		again := netting.Clearing{Terms: v.Terms}
		for _, s := range v.Said {
			said, err := netting.Open(v.Terms, s.Word)
			if err != nil {
				return forged(name, err)
			}
			a.checked++
			if said.Device != s.Device || said.Refuses != s.Refuses {
				return corrupt(name, "a word of %s is kept as another's", said.Device.Short())
			}
			again = again.Hear(said)
		}
		if (again.State == netting.Cleared) != (v.State == netting.Cleared) {
			return corrupt(name, "it is %s, and %d signatures are missing", v.State, len(again.Missing()))
		}
		for _, d := range v.Also {
			if v.Terms.Side(d).Account() != a.r.b.self {
				return corrupt(name, "device %s, taken over, is none of this account in it", d.Short())
			}
		}
		for _, l := range v.legs() {
			if v.State.Reserves() {
				aside[string(key(string(asidePrefix(l.role, v.Terms.Unit, l.peer)), id[:]))] = int64(v.Terms.Amount)
			}
			if v.State == netting.Cleared {
				a.netted[ledger.EntryID(ledger.KindNetting, id, l.channel.ID())] = nettedBy{v, id, l}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for p, err := range a.r.own.Iterate([]byte("nr/"), nil) {
		if err != nil {
			return err
		}
		have, err := a.r.balanceAt(p.Key)
		if err != nil {
			return err
		}
		if have != aside[string(p.Key)] {
			return corrupt(fmt.Sprintf("amount set aside %q", p.Key), "it is %s, the clearing says %s", signed(have), signed(aside[string(p.Key)]))
		}
		delete(aside, string(p.Key))
	}
	for k := range aside {
		return corrupt(fmt.Sprintf("amount set aside %q", k), "it is missing")
	}
	return nil
}

// other checks the entries of kinds that have no lane.
func (a *audit) other(name string, e ledger.Entry) error {
	if e.Kind != ledger.KindNetting {
		return shape(name, e)
	}
	got, ok := a.netted[e.ID]
	if !ok {
		return corrupt(name, "the signed clearing is missing")
	}
	delete(a.netted, e.ID)
	want := clearEntry(got.id, got.kept.Terms, got.leg, int64(got.kept.Terms.Amount))
	if e.Peer != want.Peer || !slices.Equal(e.Postings, want.Postings) || !slices.Equal(e.Refs, want.Refs) {
		return corrupt(name, "it books %s, all signed %v", signed(e.Postings[0].Amount), got.kept.Terms.Amount)
	}
	for _, la := range got.kept.Lanes {
		a.listed[la.Lane] = max(a.listed[la.Lane], la.Amount)
	}
	k := string(accountKey(got.leg.role, got.kept.Terms.Unit, e.Peer))
	sum, err := money.Add(a.settled[k], got.kept.Terms.Amount)
	a.settled[k] = sum
	return err
}

// allNetted checks that every clearing that counts is booked.
func (a *audit) allNetted() error {
	for _, n := range a.netted {
		return corrupt("clearing "+n.id.Short(), "it counts, and is not booked")
	}
	return nil
}
