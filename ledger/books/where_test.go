package books

import (
	"crypto/ed25519"
	"slices"
	"testing"

	"github.com/gpufair/gpufair/p2p/identity"
)

func (p *party) devicesOf(peer *party) (out []identity.PeerID) {
	p.tb.Helper()
	p.view(func(r *Reader) (err error) { out, err = r.DevicesOf(peer.Self()); return err })
	return out
}

func (p *party) hears(delegation []byte) {
	p.tb.Helper()
	p.update(func(t *Tx) error { return t.HeardFrom(delegation) })
}

// TestDevicesOf: an account is found where the newest lane was dealt, then where it was heard since, and never where it let a device go.
// Strangers, and a device that was let go, are not noted.
func TestDevicesOf(t *testing.T) {
	account := newPerson(t)
	_, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	old, next := account.device(1, identity.AllPowers), account.grant(key, 2, identity.AllPowers)
	p := pairOf{renter: account.pc(old), provider: newParty(t)}
	p.meet()
	stranger := newDevice(t)
	p.provider.hears(stranger.Delegation())
	p.provider.view(func(r *Reader) error {
		if got, err := r.DevicesOf(stranger.Account()); err != nil || len(got) != 0 {
			t.Errorf("of a stranger: %v, %v", got, err)
		}
		return nil
	})
	if got := p.provider.devicesOf(p.renter); len(got) != 0 {
		t.Errorf("before any lane: %v", got)
	}
	p.sell(1, 1000)
	want := func(when string, devices ...*identity.Device) {
		t.Helper()
		var ids []identity.PeerID
		for _, d := range devices {
			ids = append(ids, d.Peer())
		}
		if got := p.provider.devicesOf(p.renter); !slices.Equal(got, ids) {
			t.Errorf("%s: %v, want %v", when, got, ids)
		}
	}
	want("after a lane", old)
	p.provider.hears(next.Delegation())
	want("heard on another PC", next, old)
	learn(p.provider, account.revoke(old.Peer(), 1))
	want("after the old one was let go", next)
	p.provider.hears(old.Delegation())
	want("the old one speaks still", next)
	learn(p.provider, account.revoke(next.Peer(), 2))
	want("after both were let go")
	again := account.grant(key, 3, identity.AllPowers)
	p.provider.hears(again.Delegation())
	want("linked anew", again)
	p.provider.view(func(r *Reader) error {
		if news, err := r.Heard(again.Delegation()); news || err != nil {
			t.Errorf("heard twice: %v, %v", news, err)
		}
		return nil
	})
}

// TestAnsweredByTheNextPC: a ledger that lost something waits for the device that signed the newest receipt, and not for one that was let go.
func TestAnsweredByTheNextPC(t *testing.T) {
	account := newPerson(t)
	old, next := account.device(1, identity.AllPowers), account.device(2, identity.AllPowers)
	p := pairOf{renter: account.pc(old), provider: newParty(t)}
	p.meet()
	lane := p.sell(1, 1000)
	p.pay(lane, 500)
	for _, gone := range []bool{false, true} {
		if gone {
			learn(p.provider, account.revoke(old.Peer(), 1))
		}
		p.provider.update(func(t *Tx) error {
			if err := save(t.own, pendingKey(p.renter.Self()), Pending{Account: p.renter.Self(), Since: 1}); err != nil {
				return err
			}
			return save(t.own, unsureKey(lane), unsure{Peer: p.renter.Self()})
		})
		p.provider.update(func(t *Tx) error { return t.Answered(p.renter.Self(), next.Peer()) })
		p.provider.view(func(r *Reader) error {
			if left, err := r.ToAsk(); err != nil || (len(left) == 0) != gone {
				t.Errorf("the old PC let go %v: still to ask %v, %v", gone, left, err)
			}
			return nil
		})
	}
}
