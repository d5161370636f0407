package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/renter/control/api"
)

// TestTellQuotes wants every answer in words, and why there is none; and a plan that does not name one offer as the one to be bought.
func TestTellQuotes(t *testing.T) {
	var errs bytes.Buffer
	a := newApp(cli.Pipe(strings.NewReader(""), &bytes.Buffer{}, &errs))
	f := newFollower(a, nil, api.RunRequest{}, false, nil)
	for _, q := range []api.Quote{
		{Offer: "a.1", Provider: "gfaccount", Price: "0.3", Unit: "CREDIT", Firm: true},
		{Offer: "b.1", Provider: "gfaccount", Price: "0.4", Unit: "CREDIT"},
		{Offer: "c.1", Provider: "gfaccount", Code: "quote_floor", Detail: "too low\x1b[31m"},
	} {
		if err := f.event(t.Context(), api.RunEvent{Step: api.StepQuote, Quote: &q}); err != nil || f.phase != planning {
			t.Fatal(err, f.phase)
		}
	}
	for _, want := range []string{
		"a.1 of gfaccount quotes 0.3 CREDIT an hour\n", "b.1 of gfaccount gives no quotes; its price is 0.4 CREDIT an hour\n", "no quote from c.1 of gfaccount: too low?[31m\n",
	} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("not said: %q in\n%s", want, errs.String())
		}
	}
	lines := planLines(api.Plan{Offer: newStall().offer, MaxPrice: "0.2", Asks: true}, api.RunRequest{})
	if !strings.Contains(lines[0], "0.2 CREDIT per device-hour at most") || !strings.Contains(lines[0], "at 0.25") {
		t.Error(lines[0])
	}
}
