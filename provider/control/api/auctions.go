package api

import (
	"context"
	"time"
)

// Auctions is the answer to GET /auctions.
type Auctions struct {
	Auctions []Auction `json:"auctions"`
}

// Auction states.
const (
	AuctionCommitting = "committing" // takes sealed bids
	AuctionRevealing  = "revealing"  // sealed: bids are being shown
	AuctionAwarded    = "awarded"    // the result stands; holds of bids that stayed sealed may still come back
	AuctionClosed     = "closed"
	AuctionAborted    = "aborted"
)

// Auction is a sealed auction of this owner.
type Auction struct {
	ID       string    `json:"id"`
	State    string    `json:"state" enum:"committing,revealing,awarded,closed,aborted"`
	Lot      int       `json:"lot"`
	Devices  int       `json:"devices"`
	Unit     string    `json:"unit"`
	Reserve  string    `json:"reserve" doc:"per device-hour"`
	Rule     string    `json:"rule" enum:"first,kplus1,vcg"`
	OpenedAt time.Time `json:"opened_at"`
	SealsAt  time.Time `json:"seals_at" doc:"when no more bids are taken"`
	Bids     []Bid     `json:"bids" doc:"one for each commit that counts"`
}

// Bid states.
const (
	BidSealed = "sealed"
	BidShown  = "shown"
	BidWon    = "won"
)

// Bid is one account's bid in an auction; what it offers is known once it is shown.
type Bid struct {
	Account string `json:"account"`
	State   string `json:"state" enum:"sealed,shown,won"`
	Held    string `json:"held" doc:"of the bidder's credit; never less than the bid over the shortest lease"`
	Devices int    `json:"devices,omitempty"`
	Price   string `json:"price,omitempty" doc:"bid, per device-hour"`
	Pays    string `json:"pays,omitempty" doc:"an hour, for all devices that it won"`
	Lease   string `json:"lease,omitempty" doc:"that the win made"`
}

// Auctions lists the owner's auctions, newest first: those that are not closed, and the closed ones whose transcript is kept.
func (c Client) Auctions(ctx context.Context) (a Auctions, err error) {
	err = c.Get(ctx, "/auctions", &a)
	return a, err
}
