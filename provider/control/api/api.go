// Package api is the owner's local API, version 1: its values and its Go client. The command, the tray and scripts are its clients.
// Standard library only, so that the tray stays small.
package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/gpufair/gpufair/p2p/local"
)

// Client is the owner's client of a running gpufaird. Peers, identity, ledger and settlements are asked through the embedded client.
type Client struct{ *local.Client }

// New makes a client of the daemon on the given unix socket.
func New(socket string) Client { return Client{local.NewClient(socket)} }

// Serving states of the daemon.
const (
	Serving  = "serving"  // offers stand, leases run
	Paused   = "paused"   // the owner stopped renting out
	Starting = "starting" // measuring, or waiting for the runtime
	Stuck    = "stuck"    // can't serve; Warnings says why
	Idle     = "idle"     // nothing is configured to be offered; Warnings says what is missing
)

// Status is the answer to GET /status, and each line of GET /watch.
type Status struct {
	Version     string     `json:"version"`
	State       string     `json:"state" enum:"serving,paused,starting,stuck,idle"`
	PausedUntil *time.Time `json:"paused_until,omitempty" doc:"absent: until resumed"`
	Since       time.Time  `json:"since" doc:"start of the daemon"`
	Account     string     `json:"account"`
	Peer        string     `json:"peer"`
	Network     string     `json:"network"`
	Addrs       []string   `json:"addrs"`
	Peers       int        `json:"peers" doc:"connected"`
	Devices     []Device   `json:"devices"`
	Leases      []Lease    `json:"leases" doc:"that have not ended"`
	Owed        []Amount   `json:"owed" doc:"to the owner, by all, by unit"`
	Today       []Amount   `json:"today" doc:"earned since local midnight, by unit"`
	Warnings    []string   `json:"warnings"`
}

// Amount is money in a unit.
type Amount struct {
	Unit   string `json:"unit"`
	Amount string `json:"amount"`
}

// Device states.
const (
	DeviceFree      = "free"
	DeviceLeased    = "leased"
	DeviceMeasuring = "measuring"
	DeviceUnoffered = "not offered" // Detail says why: not measured yet, locked by another daemon, not configured
)

// Device is a card or a set of CPU cores of this machine.
type Device struct {
	ID         string     `json:"id" doc:"UUID as the driver gives it; for a cpu the hash of machine and cores"`
	Kind       string     `json:"kind" enum:"gpu,cpu"`
	Model      string     `json:"model"`
	State      string     `json:"state"`
	Detail     string     `json:"detail,omitempty"`
	Cores      string     `json:"cores,omitempty" doc:"core list of a cpu, such as 0-3"`
	MemoryMiB  uint64     `json:"memory_mib"`
	Price      string     `json:"price,omitempty" doc:"per device-hour"`
	Unit       string     `json:"unit,omitempty"`
	MeasuredAt *time.Time `json:"measured_at,omitempty"`
	Figures    []Figure   `json:"figures"`
}

// Figure is a measured quantity.
type Figure struct {
	Name  string  `json:"name" doc:"as queries write it"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Text  string  `json:"text" doc:"for people"`
}

// Devices is the answer to GET /devices.
type Devices struct {
	Devices []Device `json:"devices"`
}

// Lease is a lease of this provider.
type Lease struct {
	ID        string     `json:"id"`
	State     string     `json:"state" enum:"agreed,preparing,running,paused,stopping,ended"`
	Reason    string     `json:"reason,omitempty" doc:"code of a pause or end"`
	Detail    string     `json:"detail,omitempty"`
	Renter    string     `json:"renter" doc:"account"`
	Peer      string     `json:"peer"`
	Devices   []string   `json:"devices"`
	Image     string     `json:"image,omitempty"`
	Command   []string   `json:"command,omitempty"`
	Rate      string     `json:"rate" doc:"per device-hour"`
	Unit      string     `json:"unit"`
	Agreed    time.Time  `json:"agreed"`
	Started   *time.Time `json:"started,omitempty"`
	EndedAt   *time.Time `json:"ended,omitempty"`
	Seconds   float64    `json:"seconds" doc:"billable"`
	Charge    string     `json:"charge" doc:"metered"`
	Vouchered string     `json:"vouchered" doc:"signed for by the renter"`
	CPU       float64    `json:"cpu" doc:"cores in use"`
	MemoryMiB uint64     `json:"memory_mib" doc:"in use"`
	Exit      *Exit      `json:"exit,omitempty"`
	Wiped     bool       `json:"wiped"`
	Egress    *Egress    `json:"egress,omitempty" doc:"what the job had of the internet, once it has ended"`
	Away      *Away      `json:"away,omitempty" doc:"what the renter allowed for its absence; of leases that have not ended"`
}

// Egress is what a job's egress came to.
type Egress struct {
	In      uint64 `json:"in" doc:"bytes to the job"`
	Out     uint64 `json:"out" doc:"bytes from the job"`
	Flows   uint64 `json:"flows" doc:"connections"`
	Refused uint64 `json:"refused" doc:"connections that a rule denied"`
	Over    uint64 `json:"over" doc:"connections that a limit of the lease denied"`
	Capped  bool   `json:"capped" doc:"the byte cap was reached"`
}

// Away is a renter's signed word that it will sign for what runs in its absence.
type Away struct {
	Most  string    `json:"most" doc:"up to so much in all, from the lease's start on"`
	Until time.Time `json:"until"`
	Over  bool      `json:"over" doc:"its time is over"`
}

// Exit is how a job ended.
type Exit struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"`
	OOM    bool   `json:"oom,omitempty"`
}

// Leases is the answer to GET /leases.
type Leases struct {
	Leases []Lease `json:"leases"`
}

// Offers is the answer to GET /offers: what is advertised now, or why nothing is.
type Offers struct {
	Hash      string    `json:"hash,omitempty" doc:"of the signed offer"`
	Seq       uint64    `json:"seq"`
	IssuedAt  time.Time `json:"issued_at"`
	Bytes     int       `json:"bytes" doc:"size of the signed offer"`
	Lots      []Lot     `json:"lots"`
	NotServed string    `json:"not_served,omitempty" doc:"why nothing is offered"`
	Accounts  []string  `json:"accounts" doc:"whom the owner serves"`
}

// Lot is a lot of an offer.
type Lot struct {
	ID       int      `json:"id"`
	Kind     string   `json:"kind"`
	Model    string   `json:"model"`
	Devices  int      `json:"devices"`
	Free     int      `json:"free"`
	Price    string   `json:"price"`
	Unit     string   `json:"unit"`
	MinTerm  int      `json:"min_term_s"`
	MaxTerm  int      `json:"max_term_s"`
	Figures  []Figure `json:"figures"`
	Passport string   `json:"passport"`
}

// PauseRequest asks to stop renting out.
type PauseRequest struct {
	Seconds int `json:"seconds,omitempty" doc:"0: until resumed" minimum:"0"`
}

// BenchmarkRequest asks for a measurement.
type BenchmarkRequest struct {
	Device  string `json:"device,omitempty" doc:"empty: all that are free"`
	Profile string `json:"profile,omitempty" enum:"quick,standard" doc:"empty: quick"`
}

// BenchmarkEvent is a line of the answer to POST /benchmark.
type BenchmarkEvent struct {
	Device string  `json:"device"`
	Step   string  `json:"step"`
	Done   float64 `json:"done" doc:"0 to 1"`
	Result *Device `json:"result,omitempty" doc:"in the last line of a device"`
	Error  string  `json:"error,omitempty"`
}

// Status asks how the daemon stands.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	err = c.Get(ctx, "/status", &s)
	return s, err
}

// Watch calls f with the status at each change, until ctx ends.
func (c Client) Watch(ctx context.Context, f func(Status) error) error {
	return c.Stream(ctx, http.MethodGet, "/watch", nil, func(line []byte) error {
		var s Status
		if err := json.Unmarshal(line, &s); err != nil {
			return err
		}
		return f(s)
	})
}

// Pause stops renting out: no new leases, and running ones end as the owner's terms say.
func (c Client) Pause(ctx context.Context, d time.Duration) (s Status, err error) {
	err = c.Post(ctx, "/pause", PauseRequest{Seconds: int(d / time.Second)}, &s)
	return s, err
}

// Resume rents out again.
func (c Client) Resume(ctx context.Context) (s Status, err error) {
	err = c.Post(ctx, "/resume", struct{}{}, &s)
	return s, err
}

// Devices lists this machine's devices.
func (c Client) Devices(ctx context.Context) (d Devices, err error) {
	err = c.Get(ctx, "/devices", &d)
	return d, err
}

// Offers shows what is advertised.
func (c Client) Offers(ctx context.Context) (o Offers, err error) {
	err = c.Get(ctx, "/offers", &o)
	return o, err
}

// Leases lists leases: those that have not ended, or all.
func (c Client) Leases(ctx context.Context, all bool) (l Leases, err error) {
	path := "/leases"
	if all {
		path += "?all=true"
	}
	err = c.Get(ctx, path, &l)
	return l, err
}

// Lease shows one lease by its id or an unambiguous start of it.
func (c Client) Lease(ctx context.Context, id string) (l Lease, err error) {
	err = c.Get(ctx, "/leases/"+url.PathEscape(id), &l)
	return l, err
}

// StopLease takes the devices of a lease back, as the owner's right: the renter gets the reclaim credit of the offer.
func (c Client) StopLease(ctx context.Context, id string) (l Lease, err error) {
	err = c.Post(ctx, "/leases/"+url.PathEscape(id)+"/stop", struct{}{}, &l)
	return l, err
}

// Benchmark measures devices and calls f with each step.
func (c Client) Benchmark(ctx context.Context, req BenchmarkRequest, f func(BenchmarkEvent) error) error {
	return c.Stream(ctx, http.MethodPost, "/benchmark", req, func(line []byte) error {
		var e BenchmarkEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		return f(e)
	})
}

// Reload lets the daemon read its settings again. With a mistake in them nothing changes.
func (c Client) Reload(ctx context.Context) (s Status, err error) {
	err = c.Post(ctx, "/reload", struct{}{}, &s)
	return s, err
}
