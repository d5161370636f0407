package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/provider/control/api"
)

// TestPrintOffers wants no empty table under "nothing is offered".
func TestPrintOffers(t *testing.T) {
	for name, c := range map[string]struct {
		offers    api.Offers
		out, errs string
	}{
		"nothing": {api.Offers{NotServed: "paused by the owner"}, "", "nothing is offered: paused by the owner\n"},
		"one": {
			api.Offers{Hash: "abcd", Bytes: 100, Accounts: []string{"gf1"}, Lots: []api.Lot{{ID: 1, Kind: "cpu", Model: "EPYC", Devices: 1, Free: 1}}},
			"EPYC", "for 1 account\n",
		},
	} {
		var out, errs bytes.Buffer
		p := &cli.Program{Terminal: cli.Pipe(strings.NewReader(""), &out, &errs)}
		if err := printOffers(p, c.offers); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), c.out) || (c.out == "") != (out.Len() == 0) || !strings.Contains(errs.String(), c.errs) {
			t.Errorf("%s: out %q, err %q", name, out.String(), errs.String())
		}
	}
}

// TestPrintLeases has a column of allowances only if there is one.
func TestPrintLeases(t *testing.T) {
	until := time.Now().Add(time.Hour)
	one := api.Lease{ID: strings.Repeat("ab", 32), State: "running", Renter: "gf1", Charge: "1", Vouchered: "0.5"}
	away, over := one, one
	away.Away, over.Away = &api.Away{Most: "2.5", Until: until}, &api.Away{Most: "2.5", Until: until, Over: true}
	for want, list := range map[string][]api.Lease{"": {one}, "to 2.5 until ": {one, away}, " over": {over}} {
		var out bytes.Buffer
		p := &cli.Program{Terminal: cli.Pipe(strings.NewReader(""), &out, &out)}
		if err := printLeases(p, list); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "ALLOWED") != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("want %q:\n%s", want, out.String())
		}
	}
}

// TestStartContainerd wants advice that the machine can follow.
func TestStartContainerd(t *testing.T) {
	if got := startContainerd(true); !strings.Contains(got, "systemctl start containerd") {
		t.Error(got)
	}
	if got := startContainerd(false); strings.Contains(got, "systemctl") || !strings.Contains(got, "containerd &") {
		t.Error(got)
	}
}
