package main

import (
	"fmt"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
)

// origin says where the credit limits come from, as the settings stand now.
func (d *daemon) origin() statement.CreditOrigin {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conf.origin()
}

// origin says of each credit limit whether the owner set it, or from what the default was computed.
func (c *config) origin() statement.CreditOrigin {
	var dearest money.Rate
	for _, d := range c.CPU {
		dearest = max(dearest, d.Price)
	}
	price := fmt.Sprintf("%v %s/h", dearest, c.Unit)
	of := func(key, text, def string) string {
		if text != "" {
			return "set by " + key
		}
		return "default: " + def + " of the dearest device's price, " + price
	}
	most := "; at most " + hours(ledger.KnownCapHours*time.Hour) + " of that price"
	if c.Credit.KnownCap != "" {
		most = "; at most as set by credit.known_cap"
	}
	known := fmt.Sprintf("default: %d %%", ledger.DefaultKnownPercent)
	if p := c.Credit.KnownPercent; p != nil && *p != ledger.DefaultKnownPercent {
		known = "set by credit.known_percent"
	}
	return statement.CreditOrigin{
		Stranger:       of("credit.stranger", c.Credit.Stranger, hours(ledger.StrangerSeconds*time.Second)),
		StrangersTotal: of("credit.strangers_total", c.Credit.StrangersTotal, hours(ledger.StrangersTotalSeconds*time.Second)),
		Known:          known + most,
	}
}

// hours writes a time of rent: "30 min", "4 h".
func hours(d time.Duration) string {
	if d < time.Hour {
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d h", d/time.Hour)
}
