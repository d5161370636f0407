package identity

import (
	"testing"
)

type probe struct {
	Header
	X uint64 `cbor:"5,keyasint"`
}

func TestSealOpen(t *testing.T) {
	_, _, dev, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := dev.Seal("gpufair/probe/1", probe{Header: dev.Header(1), X: 7})
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenMoney[probe]("gpufair/probe/1", 1, raw)
	if err != nil || got.X != 7 {
		t.Fatal(got, err)
	}
	t.Log(len(raw), dev.Account(), dev.Peer())
	if _, err := OpenMoney[probe]("gpufair/probe/2", 1, raw); err == nil {
		t.Fatal("other domain opened")
	}
	a, err := ParseAccount(dev.Account().String())
	if err != nil || a != dev.Account() {
		t.Fatal(err)
	}
	d, err := OpenDelegation(dev.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(len(dev.Delegation()), d.Allows(got.Header, PowerPay))
}
