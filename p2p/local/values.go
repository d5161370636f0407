package local

import "time"

// Peer is a connected peer.
type Peer struct {
	Peer      string    `json:"peer" doc:"libp2p peer id"`
	Account   string    `json:"account,omitempty" doc:"account, once the peer has shown a delegation"`
	Addr      string    `json:"addr" doc:"multiaddress in use"`
	Transport string    `json:"transport" doc:"quic or tcp"`
	Reach     string    `json:"reach" doc:"direct, punched or relayed"`
	Inbound   bool      `json:"inbound" doc:"the peer dialled us"`
	Since     time.Time `json:"since" doc:"start of the connection"`
	RTTMillis float64   `json:"rtt_ms" doc:"round trip, as last measured; 0 if unknown"`
	Agent     string    `json:"agent" doc:"the peer's own word on its program"`
	Traffic   []Traffic `json:"traffic" doc:"bytes of streams since the peer connected, the busiest purpose first"`
}

// Traffic is what the streams of one purpose carried.
type Traffic struct {
	Purpose  string `json:"purpose" doc:"the conversation, such as blob; or gossip, dht, relay, network"`
	Sent     uint64 `json:"sent" doc:"bytes"`
	Received uint64 `json:"received" doc:"bytes"`
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
	Serial  uint64   `json:"serial" doc:"of this device's delegation"`
	Cap     string   `json:"cap" doc:"the most that one lease signed by this device may reach"`
	// AccountKey is false on a PC that was linked: what needs the account's key is done on the PC that has it.
	AccountKey bool            `json:"account_key" doc:"the account's key is on this PC"`
	Devices    []AccountDevice `json:"devices" doc:"devices of the account that this PC knows of, its own first"`
}

// AccountDevice is a device of an account, as the PC with the account's key knows it.
type AccountDevice struct {
	Peer    string     `json:"peer" doc:"libp2p peer id"`
	This    bool       `json:"this" doc:"it is this PC"`
	Serial  uint64     `json:"serial,omitempty" doc:"of its newest delegation that this PC knows"`
	Powers  string     `json:"powers,omitempty" doc:"what the account lets it do"`
	Cap     string     `json:"cap,omitempty" doc:"the most that one lease signed by it may reach"`
	Revoked bool       `json:"revoked" doc:"the account lets it act no more"`
	Since   *time.Time `json:"since,omitempty" doc:"of the newest revocation"`
}

// Link is what `identity link` prints: one of request and grant, or neither on the PC that was linked.
type Link struct {
	Request string         `json:"request,omitempty" doc:"for the PC that has the account's key"`
	Grant   string         `json:"grant,omitempty" doc:"for the PC that asked"`
	Device  *AccountDevice `json:"device,omitempty" doc:"whom the grant is for"`
	Linked  *Identity      `json:"linked,omitempty" doc:"who this PC is from now on"`
	Peer    string         `json:"peer,omitempty" doc:"libp2p peer id of the device that asks"`
}

// Rotation is what `identity rotate` prints.
type Rotation struct {
	Old     string    `json:"old" doc:"libp2p peer id of the device that is replaced"`
	New     string    `json:"new,omitempty" doc:"of the one that replaces it; none with --dry-run"`
	Hanging []string  `json:"hanging" doc:"what only the old device can bring to its end, in words"`
	Request string    `json:"request,omitempty" doc:"on a linked PC: for the PC that has the account's key"`
	Revoked bool      `json:"revoked" doc:"the old device is revoked; else the PC that has the account's key must do it"`
	Now     *Identity `json:"now,omitempty" doc:"who this PC is from now on"`
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
