package netting_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/identity/identitytest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// members are n accounts with one device each, as vectors have them.
func members(t *testing.T, n int) (all []*identity.Device) {
	t.Helper()
	for i := range n {
		all = append(all, identitytest.NewParty(t, byte(2*i+1)).Device)
	}
	return all
}

// circle is terms in which each member owes the next, and the first signs last.
func circle(all []*identity.Device) netting.Terms {
	t := netting.Terms{Unit: "CREDIT", Amount: 1_166, Last: all[0].Peer(), Deadline: 1_796_029_260_000, Nonce: wire.Sum("gpufair/test", []byte("nonce"))}
	for i, d := range all {
		next := all[(i+1)%len(all)]
		t.Legs = append(t.Legs, netting.Leg{Debtor: d.Account(), Creditor: next.Account(), Payer: d.Peer(), Payee: next.Peer()})
	}
	return t
}

func sign(t *testing.T, dev *identity.Device, terms netting.Terms, refuse bool) netting.Said {
	t.Helper()
	s, err := netting.Sign(dev, terms, refuse)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func want(t *testing.T, what string, c netting.Clearing, err error, state netting.State, is error) netting.Clearing {
	t.Helper()
	if c.State != state || !errors.Is(err, is) || (is == nil) != (err == nil) {
		t.Fatalf("%s: %s, %v; want %s, %v", what, c.State, err, state, is)
	}
	return c
}

// TestRules goes every way that a member can.
func TestRules(t *testing.T) {
	all := members(t, 3)
	terms := circle(all)
	agree := []netting.Said{sign(t, all[0], terms, false), sign(t, all[1], terms, false), sign(t, all[2], terms, false)}
	refuse := []netting.Said{sign(t, all[0], terms, true), sign(t, all[1], terms, true), sign(t, all[2], terms, true)}
	do := func(what string, state netting.State, is error) func(netting.Clearing, error) netting.Clearing {
		return func(c netting.Clearing, err error) netting.Clearing {
			t.Helper()
			return want(t, what, c, err, state, is)
		}
	}
	fresh := netting.Clearing{Terms: terms}

	if _, err := netting.Propose(all[1].Peer(), terms); !errors.Is(err, netting.ErrLast) {
		t.Errorf("another proposes: %v", err)
	}
	last := do("propose", netting.Prepared, nil)(netting.Propose(all[0].Peer(), terms))
	do("the last agrees first", 0, netting.ErrLast)(fresh.Agree(agree[0]))
	do("the last completes alone", netting.Prepared, netting.ErrIncomplete)(last.Complete(agree[0]))
	last = last.Hear(agree[1])
	if _, err := last.Complete(agree[0]); !errors.Is(err, netting.ErrIncomplete) {
		t.Errorf("complete without one: %v", err)
	}
	do("the last refuses", netting.Refused, nil)(last.Refuse(refuse[0]))
	done := do("complete", netting.Cleared, nil)(last.Hear(agree[2]).Complete(agree[0]))
	do("complete again", netting.Cleared, nil)(done.Complete(agree[0]))
	do("refuse what counts", netting.Cleared, netting.ErrBound)(done.Refuse(refuse[0]))
	if got := done.Told(all[1].Peer()).Told(all[1].Peer()).Untold(all[0].Peer()); !slices.Equal(got, []identity.PeerID{all[2].Peer()}) {
		t.Errorf("untold: %v", got)
	}

	bound := do("agree", netting.Agreed, nil)(fresh.Agree(agree[1]))
	do("agree again", netting.Agreed, nil)(bound.Agree(agree[1]))
	do("take it back", netting.Agreed, netting.ErrBound)(bound.Refuse(refuse[1]))
	do("complete for the last", netting.Agreed, netting.ErrOver)(bound.Complete(agree[1]))
	if c := bound.Hear(agree[2], refuse[2]); c.State != netting.Agreed || !slices.Equal(c.Liars(), []identity.PeerID{all[2].Peer()}) {
		t.Errorf("a refusal by one who has agreed: %s, liars %v", c.State, c.Liars())
	}
	if c := bound.Hear(agree[2], refuse[2]).Hear(refuse[0]); c.State != netting.Aborted {
		t.Errorf("an honest refusal after a lie: %s", c.State)
	}
	do("agree to what another has refused", 0, netting.ErrOver)(fresh.Hear(refuse[2]).Agree(agree[1]))
	over := do("another refuses", netting.Aborted, nil)(bound.Hear(refuse[2]), nil)
	do("agree after that", netting.Aborted, netting.ErrOver)(over.Agree(agree[1]))
	do("all signatures after that", netting.Cleared, nil)(over.Hear(agree...), nil)
	loose := do("release", netting.Released, nil)(bound.Release())
	do("release again", netting.Released, netting.ErrOver)(loose.Release())
	do("a refusal after that", netting.Released, nil)(loose.Hear(refuse[2]), nil)
	do("all signatures after that", netting.Cleared, nil)(loose.Hear(agree...), nil)

	no := do("refuse", netting.Refused, nil)(fresh.Refuse(refuse[1]))
	do("refuse again", netting.Refused, nil)(no.Refuse(refuse[1]))
	do("agree after that", netting.Refused, netting.ErrOver)(no.Agree(agree[1]))
	do("nothing known, all signatures", netting.Cleared, nil)(fresh.Hear(agree...), nil)
	do("nothing known, some signatures", 0, nil)(fresh.Hear(agree[:2]...), nil)
}

// TestWords: who may say what about a clearing.
func TestWords(t *testing.T) {
	all := members(t, 4)
	terms, stranger := circle(all[:3]), all[3]
	good := sign(t, all[1], terms, false)
	other := terms
	other.Amount++
	id, err := terms.ID()
	if err != nil {
		t.Fatal(err)
	}
	seal := func(dev *identity.Device, body identity.Body, d identity.Domain) []byte {
		raw, err := dev.Seal(d, body)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	account := identitytest.NewParty(t, 3).Account
	weak, err := identity.Delegate(account, all[1].Peer(), 2, identity.PowerPay, 1)
	if err != nil {
		t.Fatal(err)
	}
	weakWord := seal(all[1], netting.Agreement{Header: all[1].Header(1), Delegation: identity.Hash(weak), Clearing: id}, netting.DomainAgreement)
	foreign := seal(stranger, netting.Agreement{Header: stranger.Header(1), Delegation: stranger.DelegationHash(), Clearing: id}, netting.DomainAgreement)
	swapped := circle(all[:3]) // names the stranger's device as the second account's
	swapped.Legs[0].Payee, swapped.Legs[1].Payer = stranger.Peer(), stranger.Peer()
	foreignTo := func(x netting.Terms) []byte {
		id, err := x.ID()
		if err != nil {
			t.Fatal(err)
		}
		return seal(stranger, netting.Agreement{Header: stranger.Header(1), Delegation: stranger.DelegationHash(), Clearing: id}, netting.DomainAgreement)
	}
	for name, x := range map[string]struct {
		terms netting.Terms
		word  netting.Word
		want  error
	}{
		"of other terms":         {other, good.Word, netting.ErrWord},
		"by a stranger":          {terms, netting.Word{Envelope: foreign, Delegation: stranger.Delegation()}, netting.ErrWord},
		"without a delegation":   {terms, netting.Word{Envelope: good.Word.Envelope}, identity.ErrSignature},
		"another's delegation":   {terms, netting.Word{Envelope: good.Word.Envelope, Delegation: all[2].Delegation()}, netting.ErrWord},
		"without the power":      {terms, netting.Word{Envelope: weakWord, Delegation: weak}, identity.ErrPower},
		"for another account":    {swapped, netting.Word{Envelope: foreignTo(swapped), Delegation: stranger.Delegation()}, netting.ErrWord},
		"of another domain":      {terms, netting.Word{Envelope: seal(all[1], netting.Agreement{Header: all[1].Header(1), Delegation: all[1].DelegationHash(), Clearing: id}, "gpufair/voucher/1"), Delegation: all[1].Delegation()}, identity.ErrSignature},
		"too large":              {terms, netting.Word{Envelope: make([]byte, netting.MaxWord+1)}, wire.ErrTooLarge},
		"of an unknown version ": {terms, netting.Word{Envelope: seal(all[1], netting.Agreement{Header: all[1].Header(2), Delegation: all[1].DelegationHash(), Clearing: id}, netting.DomainAgreement), Delegation: all[1].Delegation()}, identity.ErrVersion},
	} {
		if _, err := netting.Open(x.terms, x.word); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
	}
}

// TestTerms: what is no closed circle is no clearing.
func TestTerms(t *testing.T) {
	all := members(t, 9)
	if err := circle(all[:8]).Validate(); err != nil {
		t.Fatal(err)
	}
	two := circle(all[:3]) // the second account is paid by another device than it pays by
	two.Legs[0].Payee = all[5].Peer()
	if err := two.Validate(); err != nil || len(two.Devices()) != 4 || two.Next(all[5].Peer()) != all[1].Peer() {
		t.Errorf("two devices of one account: %v, %v", err, two.Devices())
	}
	for name, change := range map[string]func(*netting.Terms){
		"nothing":            func(x *netting.Terms) { x.Amount = 0 },
		"too much":           func(x *netting.Terms) { x.Amount = 1 << 63 },
		"no unit":            func(x *netting.Terms) { x.Unit = "" },
		"one party":          func(x *netting.Terms) { x.Legs = x.Legs[:1] },
		"nine parties":       func(x *netting.Terms) { *x = circle(all) },
		"open":               func(x *netting.Terms) { x.Legs[2].Creditor = all[4].Account() },
		"in itself":          func(x *netting.Terms) { x.Legs = append(x.Legs, x.Legs...) },
		"no deadline":        func(x *netting.Terms) { x.Deadline = 0 },
		"no nonce":           func(x *netting.Terms) { x.Nonce = wire.Hash{} },
		"a stranger last":    func(x *netting.Terms) { x.Last = all[5].Peer() },
		"no payer":           func(x *netting.Terms) { x.Legs[1].Payer = identity.PeerID{} },
		"one device for two": func(x *netting.Terms) { x.Legs[1].Payer = x.Legs[2].Payer },
	} {
		x := circle(all[:3])
		change(&x)
		if err := x.Validate(); err == nil {
			t.Errorf("%s: valid", name)
		}
	}
}

// The exact bytes of the records, for other programs and for our own later ones.
func TestVectors(t *testing.T) {
	all := members(t, 2)
	terms := circle(all)
	id, err := terms.ID()
	if err != nil {
		t.Fatal(err)
	}
	if want := "e0bf96e5cd264356ac654a12c0d1eaec92b68d11fca31948de8022b352bd04d6"; id.String() != want {
		t.Errorf("the clearing's id is %s, was %s", id, want)
	}
	agreement, a := identitytest.Signed(t, "agreement to a clearing", all[1], netting.DomainAgreement,
		netting.Agreement{Header: all[1].Header(1), Delegation: all[1].DelegationHash(), Clearing: id})
	refusal, r := identitytest.Signed(t, "refusal of a clearing", all[0], netting.DomainRefusal,
		netting.Refusal{Header: all[0].Header(1), Delegation: all[0].DelegationHash(), Clearing: id})
	for i, raw := range [][]byte{r, a} {
		if got, err := netting.Open(terms, netting.Word{Envelope: raw, Delegation: all[i].Delegation()}); err != nil || got.Refuses != (i == 0) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	identitytest.Check(t, "testdata/vectors.json", []identitytest.Vector{agreement, refusal})
}
