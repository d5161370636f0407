package provider

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/control/api"
)

func goodConfig() Config {
	return Config{Network: "t", Unit: money.Credit, Methods: []string{"manual"}, LogBytes: 1 << 20, Lots: []Lot{
		{Device: wire.Hash{1}, Price: 10, MinTerm: time.Minute, MaxTerm: time.Hour, Cores: []int{0}, MemoryMiB: 64, DiskMiB: 64, Pids: 64},
		{Device: wire.Hash{2}, Price: 20, MinTerm: time.Minute, MaxTerm: time.Hour, Cores: []int{1}, MemoryMiB: 64, DiskMiB: 64, Pids: 64},
	}}
}

func TestConfig(t *testing.T) {
	if err := goodConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for word, spoil := range map[string]func(*Config){
		"unit":       func(c *Config) { c.Unit = "" },
		"log bytes":  func(c *Config) { c.LogBytes = 1 },
		"settlement": func(c *Config) { c.Methods = nil },
		"reclaim":    func(c *Config) { c.Reclaim = -1 },
		"notice":     func(c *Config) { c.Notice = 2 * time.Hour },
		"no id":      func(c *Config) { c.Lots[0].Device = wire.Hash{} },
		"twice":      func(c *Config) { c.Lots[1].Device = c.Lots[0].Device },
		"two devices": func(c *Config) {
			c.Lots[1].Cores = []int{1, 0}
		},
		"shortest":     func(c *Config) { c.Lots[0].MaxTerm = time.Second },
		"longest term": func(c *Config) { c.Lots[0].MaxTerm = (market.MaxTerm + 1) * time.Second },
		"needs a core": func(c *Config) { c.Lots[0].Cores = nil },
		"16 MiB":       func(c *Config) { c.Lots[0].DiskMiB = 0 },
		"TiB":          func(c *Config) { c.Lots[0].MemoryMiB = 1 << 60 },
		"fit an offer": func(c *Config) { c.Lots = make([]Lot, market.MaxLots+1) },
		"price":        func(c *Config) { c.Lots[0].Price = 1 << 63 },
	} {
		c := goodConfig()
		spoil(&c)
		if err := c.Validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestLimits(t *testing.T) {
	c := goodConfig()
	dearest, err := c.Limits()
	must(t, err)
	if dearest.Stranger != 10 { // 30 min at 20 an hour
		t.Errorf("stranger %v", dearest.Stranger)
	}
	own := money.Micro(7)
	c.Credit.Stranger = &own
	if l, err := c.Limits(); err != nil || l.Stranger != 7 || l.StrangersTotal != dearest.StrangersTotal {
		t.Errorf("%+v %v", l, err)
	}
}

// A daemon that nobody configured is idle, not stuck, and names each thing that is missing.
func TestIdle(t *testing.T) {
	const device, account = "no device is configured", "no account is served"
	for name, c := range map[string]struct {
		lots, accounts int
		want           string
		says           []string
	}{
		"fresh":      {0, 0, api.Idle, []string{device, account}},
		"no account": {1, 0, api.Idle, []string{account}},
		"no device":  {0, 1, api.Idle, []string{device}},
		"all":        {1, 1, api.Stuck, []string{"something else"}},
	} {
		a := &Agent{why: "something else", sandbox: RuntimeInfo{Name: "fake"}}
		a.conf.Lots, a.conf.Accounts = make([]Lot, c.lots), make([]identity.AccountID, c.accounts)
		s := api.Status{State: api.Serving}
		a.state(&s, time.Now())
		if s.State != c.want || len(s.Warnings) != 1 {
			t.Fatalf("%s: %s %q", name, s.State, s.Warnings)
		}
		for _, want := range c.says {
			if !strings.Contains(s.Warnings[0], want) {
				t.Errorf("%s: %q does not say %q", name, s.Warnings[0], want)
			}
		}
		if c.lots == 1 && strings.Contains(s.Warnings[0], device) || c.accounts == 1 && strings.Contains(s.Warnings[0], account) {
			t.Errorf("%s: %q names what is there", name, s.Warnings[0])
		}
	}
}
