package api

import (
	"context"
	"net/url"
	"time"
)

// Earnings is the answer to GET /earnings: what was earned since a time, and what became of it, in rows of one day, card or renter and one
// unit. Units are never added.
type Earnings struct {
	Since  time.Time `json:"since"`
	By     string    `json:"by" enum:"day,card,renter"`
	Rows   []Earned  `json:"rows"`
	Totals []Earned  `json:"totals" doc:"one a unit"`
}

// Earned is one row: earned is settled, open and written off together.
type Earned struct {
	Key        string `json:"key,omitempty" doc:"the day (2006-01-02, local), the id of a card or set of cores, or the account of a renter"`
	Name       string `json:"name,omitempty" doc:"model of a card"`
	Unit       string `json:"unit"`
	Leases     int    `json:"leases"`
	Earned     string `json:"earned" doc:"by vouchers, less credits"`
	Settled    string `json:"settled" doc:"of that, paid: payments settle the oldest leases first"`
	Open       string `json:"open" doc:"of that, not paid"`
	WrittenOff string `json:"written_off" doc:"of that"`
}

// Earnings asks what was earned since a time, by day, card or renter.
func (c Client) Earnings(ctx context.Context, since time.Time, by string) (e Earnings, err error) {
	q := url.Values{"since": {since.UTC().Format(time.RFC3339)}, "by": {by}}
	err = c.Get(ctx, "/earnings?"+q.Encode(), &e)
	return e, err
}
