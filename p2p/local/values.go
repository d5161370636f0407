package local

import "time"

// Peer is a connected peer.
type Peer struct {
	Peer      string    `json:"peer" doc:"libp2p peer id"`
	Account   string    `json:"account,omitempty" doc:"account, once the peer has shown a delegation"`
	Addr      string    `json:"addr" doc:"multiaddress in use"`
	Transport string    `json:"transport" doc:"quic or tcp"`
	Inbound   bool      `json:"inbound" doc:"the peer dialled us"`
	Since     time.Time `json:"since" doc:"start of the connection"`
	RTTMillis float64   `json:"rtt_ms" doc:"round trip, smoothed; 0 if unknown"`
	Agent     string    `json:"agent" doc:"the peer's own word on its program"`
}

// Peers is the answer to GET /peers.
type Peers struct {
	Peers []Peer `json:"peers"`
	Skew  string `json:"skew,omitempty" doc:"what the peers' clocks say of ours, such as: clock 3 h ahead of 4 peers"`
}

// Identity is the answer to GET /identity.
type Identity struct {
	Account string   `json:"account" doc:"what others put into serve.accounts"`
	Peer    string   `json:"peer" doc:"this device's libp2p peer id"`
	Powers  string   `json:"powers" doc:"what the account lets this device do"`
	Network string   `json:"network"`
	Addrs   []string `json:"addrs" doc:"multiaddresses this daemon listens on"`
	Dir     string   `json:"dir" doc:"where the keys lie"`
}

// InviteRequest asks for an invite.
type InviteRequest struct {
	Credit string `json:"credit,omitempty" doc:"credit that the inviter grants the guest, as an amount; empty: none"`
}

// Invite is one string that joins two peers.
type Invite struct {
	Invite string `json:"invite"`
}

// Joined says whom an invite led to.
type Joined struct {
	Peer    string `json:"peer"`
	Account string `json:"account"`
	Network string `json:"network"`
	Offers  int    `json:"offers" doc:"offers known after joining"`
}

// Check is one finding of doctor.
type Check struct {
	Name   string `json:"name"`
	Level  string `json:"level" enum:"ok,note,warn,fail"`
	Detail string `json:"detail"`
	Next   string `json:"next,omitempty" doc:"what to do about it"`
}

// Checks is the answer to GET /doctor.
type Checks struct {
	Checks []Check `json:"checks"`
}
