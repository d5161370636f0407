package provider

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/gpufair/gpufair/market"
)

// spyNetwork has a lease's counters and notes what is asked.
type spyNetwork struct {
	fakeNetwork
	traffic map[string]Traffic
	unwired []string
}

func (s *spyNetwork) Traffic(_ context.Context, id string) (Traffic, error) {
	t, ok := s.traffic[id]
	if !ok {
		return t, ErrNotFound
	}
	return t, nil
}

func (s *spyNetwork) Unwire(_ context.Context, id string) error {
	s.unwired = append(s.unwired, id)
	delete(s.traffic, id)
	return nil
}

func (s *spyNetwork) List(context.Context) (ids []string, err error) {
	for id := range s.traffic {
		ids = append(ids, id)
	}
	return ids, nil
}

// TestEgressTerms walks the owner's wish from the settings to the offer and to the wire.
func TestEgressTerms(t *testing.T) {
	none, some := Config{}, Config{Egress: Egress{Rate: 1 << 20, Cap: 1 << 30, Deny: []string{"203.0.113.0/24"}}}
	if terms := none.terms("runc"); terms.Egress != EgressNone || terms.EgressRate != 0 || terms.EgressCap != 0 {
		t.Errorf("no egress: %+v", terms)
	}
	terms := some.terms("runc")
	if terms.Egress != EgressInternet || terms.EgressRate != 1<<20 || terms.EgressCap != 1<<30 {
		t.Errorf("egress: %+v", terms)
	}
	a := &Agent{conf: some, resolv: "/resolv"}
	req := a.wireRequest("j", 7, record{})
	if req.Egress != EgressNone || req.Rate != 0 || a.resolvOf(record{}) != "" {
		t.Errorf("a lease that was sold without egress: %+v", req)
	}
	sold := record{EgressRate: terms.EgressRate, EgressCap: terms.EgressCap}
	req = a.wireRequest("j", 7, sold)
	if req.Egress != EgressInternet || req.PID != 7 || req.Rate != 1<<20 || req.Cap != 1<<30 || len(req.Deny) != 1 || a.resolvOf(sold) != "/resolv" {
		t.Errorf("a lease that was sold with egress: %+v", req)
	}
	for what, e := range map[string]Egress{"no cap": {Rate: 1}, "no rate": {Cap: 1}, "deny": {Rate: 1, Cap: 1, Deny: []string{"x"}}} {
		if err := e.validate(); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSweepNetworks removes the network of a lease that nobody knows, and no other.
func TestSweepNetworks(t *testing.T) {
	var id market.LeaseID
	id[0] = 1
	spy := &spyNetwork{traffic: map[string]Traffic{"gone": {In: 1}, id.String(): {In: 2}}}
	a := &Agent{network: spy, log: slog.New(slog.DiscardHandler), keepers: map[market.LeaseID]*keeper{id: {}}}
	if err := a.sweepNetworks(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(spy.unwired) != 1 || spy.unwired[0] != "gone" {
		t.Errorf("removed %v", spy.unwired)
	}
}
