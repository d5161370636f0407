package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/renter/control/api"
)

// TestAway: what the agent is asked to allow, and what the person then reads.
func TestAway(t *testing.T) {
	s := newStall()
	until := time.Now().Add(8 * time.Hour)
	s.jobs[1].Away = &api.Away{Most: "0.9", Until: &until, Told: true}
	p := person{home: s.open(t)}
	for _, c := range []struct {
		line string
		code cli.ExitCode
		out  string
		errs string // in stderr
		ask  api.AwayRequest
	}{
		{"away new --for 8h", 0, "", "gpufair agent stop --force", api.AwayRequest{Seconds: 8 * 60 * 60}},
		{"away new --for 2d --most 0.5", 0, "", "up to 0.9 CREDIT in all", api.AwayRequest{Seconds: 48 * 60 * 60, Most: "0.5"}},
		{"away new --for 1m --json", 0, `"away":{"most":"0.9",`, "", api.AwayRequest{Seconds: 60}},
		{"away new --for 59s", cli.ExitUsage, "", "write --for 30m, 8h or 2d", api.AwayRequest{}},
		{"away new --for soon", cli.ExitUsage, "", "is no time of a minute or more", api.AwayRequest{}},
		{"away new", cli.ExitUsage, "", "write --for 30m, 8h or 2d", api.AwayRequest{}},
		{"away --for 8h", cli.ExitUsage, "", "want one: a job's id", api.AwayRequest{}},
		{"away nosuch --for 8h", cli.ExitNotFound, "", "gpufair ps --all", api.AwayRequest{}},
	} {
		s.aways = nil
		code, out, errs := p.types(t, strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(out, c.out) || (c.out == "") != (out == "") || !strings.Contains(errs, c.errs) || (c.errs == "") != (errs == "") {
			t.Errorf("%q: exit %d, want %d\nout %s\nerr %s", c.line, code, c.code, out, errs)
		}
		if asked := c.ask.Seconds != 0; asked && !slices.Equal(s.aways, []api.AwayRequest{c.ask}) || !asked && len(s.aways) > 0 {
			t.Errorf("%q asks the agent for %+v", c.line, s.aways)
		}
	}
	s.refuse = reason.Errorf(reason.CreditLimit, "the allowance is over the limit")
	if code, _, errs := p.types(t, "away", "new", "--for", "8h"); code != cli.ExitMoney || !strings.Contains(errs, "over the limit") {
		t.Errorf("refused: exit %d: %s", code, errs)
	}
}
