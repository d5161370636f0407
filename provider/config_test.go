package provider

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/wire"
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
