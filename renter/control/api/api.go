// Package api is the renter's local API, version 1: its values and its Go client. The command and scripts are its clients; the agent
// (`gpufair agent`) serves it. Standard library only.
package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/gpufair/gpufair/p2p/local"
)

// Client is the renter's client of a running agent. Peers, identity, ledger and settlements are asked through the embedded client.
type Client struct{ *local.Client }

// New makes a client of the agent on the given unix socket.
func New(socket string) Client { return Client{local.NewClient(socket)} }

// Status is the answer to GET /status.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Account string    `json:"account"`
	Peer    string    `json:"peer"`
	Network string    `json:"network"`
	Peers   int       `json:"peers"`
	Offers  int       `json:"offers" doc:"live in the book"`
	Jobs    int       `json:"jobs" doc:"that have not ended"`
	Skew    string    `json:"skew,omitempty"`
	// Warnings are lines for people.
	Warnings []string `json:"warnings,omitempty" doc:"what of the ledger asks for attention: payments that are late, reminded of or not signed for"`
}

// SearchRequest asks the book. Query and order are in the language of `gpufair search --help`.
type SearchRequest struct {
	Query        string `json:"query"`
	Order        string `json:"order,omitempty"`
	Limit        int    `json:"limit,omitempty" doc:"0: 20" minimum:"0" maximum:"1000"`
	AllowUnknown bool   `json:"allow_unknown,omitempty" doc:"a missing field matches"`
	NoProbe      bool   `json:"no_probe,omitempty" doc:"do not ask the top ten whether they are alive"`
}

// SearchResult is the answer to POST /search.
type SearchResult struct {
	Offers []Offer `json:"offers"`
	Known  int     `json:"known" doc:"live offers in the book"`
	Peers  int     `json:"peers" doc:"connected"`
	Note   string  `json:"note,omitempty" doc:"why there is so little"`
}

// WhyRequest asks why offers do not match a query.
type WhyRequest struct {
	Query        string `json:"query"`
	Limit        int    `json:"limit,omitempty" doc:"0: 10" minimum:"0" maximum:"1000"`
	AllowUnknown bool   `json:"allow_unknown,omitempty" doc:"a missing field matches"`
}

// WhyResult is the answer to POST /why: of the agent's own book, nobody is asked.
type WhyResult struct {
	Known      int              `json:"known" doc:"live lots in the book"`
	Matches    int              `json:"matches" doc:"of them, that meet every condition"`
	Peers      int              `json:"peers" doc:"connected"`
	Conditions []ConditionCount `json:"conditions" doc:"in the order of the query, the built-in ones last"`
	Nearest    []NearOffer      `json:"nearest" doc:"that do not match: the fewest refusals first, then the nearest"`
	Note       string           `json:"note,omitempty" doc:"why there is so little"`
}

// ConditionCount is how many lots one condition refuses.
type ConditionCount struct {
	Condition string `json:"condition"`
	Refuses   int    `json:"refuses"`
	Alone     int    `json:"alone" doc:"of them, that meet every other condition: so many would match without it"`
}

// NearOffer is a lot that a query refuses.
type NearOffer struct {
	Offer   Offer     `json:"offer"`
	Refused []Refused `json:"refused" doc:"a line for each condition that refuses it"`
}

// Refused is one condition that a lot does not meet.
type Refused struct {
	Condition string  `json:"condition"`
	Have      string  `json:"have,omitempty" doc:"what the lot states; absent if it states nothing"`
	Code      string  `json:"code" doc:"the reason"`
	Text      string  `json:"text" doc:"for people"`
	Next      string  `json:"next" doc:"what to do"`
	Off       float64 `json:"off" doc:"how far off, in parts of the larger of what it has and what passes; 1: not of degrees"`
}

// Offer is one lot of a provider's live offer.
type Offer struct {
	ID        string    `json:"id" doc:"end of the provider's peer id, a dot, the lot: what show and run --offer take"`
	Provider  string    `json:"provider" doc:"account"`
	Peer      string    `json:"peer"`
	Kind      string    `json:"kind" enum:"gpu,cpu"`
	Model     string    `json:"model"`
	NumGPUs   int       `json:"num_gpus" doc:"0 for a cpu"`
	Devices   int       `json:"devices"`
	Free      int       `json:"free"`
	Cores     int       `json:"cpu_cores" doc:"of each device"`
	MemoryMiB uint64    `json:"memory_mib"`
	DiskMiB   uint64    `json:"disk_mib"`
	VRAMMiB   uint64    `json:"vram_mib,omitempty"`
	Driver    string    `json:"driver,omitempty"`
	Price     string    `json:"price" doc:"per device-hour"`
	Unit      string    `json:"unit"`
	MinTerm   int       `json:"min_term_s"`
	MaxTerm   int       `json:"max_term_s"`
	Region    string    `json:"region,omitempty"`
	Sandbox   string    `json:"sandbox"`
	Egress    string    `json:"egress"`
	Arch      string    `json:"arch"`
	Figures   []Figure  `json:"figures" doc:"self-measured by the provider"`
	Credit    string    `json:"credit" doc:"the offer's limit for a stranger"`
	Path      string    `json:"path,omitempty" doc:"direct, punched or relayed; empty if not connected"`
	RTTMillis float64   `json:"rtt_ms,omitempty"`
	Heard     time.Time `json:"heard" doc:"last sign of life"`
	Alive     bool      `json:"alive" doc:"answered a probe just now"`
	IssuedAt  time.Time `json:"issued_at"`
}

// Figure is a measured quantity.
type Figure struct {
	Name  string  `json:"name" doc:"as queries write it"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Text  string  `json:"text" doc:"for people"`
}

// Explanation is the answer to GET /offers/{id}: an offer in full.
type Explanation struct {
	Offer    Offer    `json:"offer"`
	Passport Passport `json:"passport" doc:"fetched from the provider"`
	Terms    []string `json:"terms" doc:"what the owner promises and wants, a sentence each"`
	Warnings []string `json:"warnings" doc:"what this offer does not promise"`
}

// Passport is the benchmark passport of a lot.
type Passport struct {
	Hash     string    `json:"hash"`
	Checked  bool      `json:"checked" doc:"its signature is the provider's and it has not expired"`
	Profile  string    `json:"profile"`
	Measured time.Time `json:"measured"`
	Kernels  []string  `json:"kernels"`
	Figures  []Figure  `json:"figures"`
	Error    string    `json:"error,omitempty"`
}

// RunRequest starts a job. Paths are on the renter's machine, absolute.
type RunRequest struct {
	Image    string            `json:"image" doc:"path of an OCI archive, docker archive or OCI layout; or docker://HOST/NAME:TAG, which the provider pulls from that registry"`
	Command  []string          `json:"command,omitempty" doc:"empty: the image's own"`
	Env      []string          `json:"env,omitempty" doc:"KEY=value"`
	Dir      string            `json:"dir,omitempty"`
	User     string            `json:"user,omitempty"`
	Input    string            `json:"input,omitempty" doc:"folder or file that becomes /in"`
	Output   string            `json:"output" doc:"folder for /out; must not exist"`
	Query    string            `json:"query,omitempty" doc:"which offer; the cheapest that matches"`
	Order    string            `json:"order,omitempty"`
	Offer    string            `json:"offer,omitempty" doc:"an offer's id, in place of a query"`
	Bid      string            `json:"bid,omitempty" doc:"per device-hour: bid so much in a sealed auction of the offer, in place of buying at its price"`
	MaxPrice string            `json:"max_price,omitempty" doc:"per device-hour: ask the cheapest fits for a quote of at most so much, and take the best"`
	Buy      bool              `json:"buy,omitempty" doc:"with max_price: ask nobody, take the first fit that costs no more"`
	Devices  int               `json:"devices,omitempty" doc:"0: 1"`
	Memory   uint64            `json:"memory_mib,omitempty"`
	Term     int               `json:"term_s,omitempty" doc:"at most so long; 0: as long as the budget pays, within the offer's longest"`
	Budget   string            `json:"budget" doc:"the most that the job may cost"`
	StopWait int               `json:"stop_wait_s,omitempty"`
	Name     string            `json:"name,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Away     int               `json:"away_s,omitempty" doc:"sign an allowance for an absence of so long from the job's start on"`
	AwayMost string            `json:"away_most,omitempty" doc:"of the allowance; empty: what the time costs, within budget and credit"`
	DryRun   bool              `json:"dry_run,omitempty" doc:"answer with the plan, hold nothing"`
}

// Plan says what a run would buy, before anything is paid.
type Plan struct {
	Offer      Offer    `json:"offer"`
	Hold       string   `json:"hold" doc:"rate x minimum term, held on credit"`
	Bid        string   `json:"bid,omitempty" doc:"per device-hour, where the offer is to be got by a sealed bid"`
	MaxPrice   string   `json:"max_price,omitempty" doc:"per device-hour, at most"`
	Asks       bool     `json:"asks,omitempty" doc:"the offers that fit are asked for quotes; the offer is the cheapest by its own price"`
	Budget     string   `json:"budget"`
	Unit       string   `json:"unit"`
	BudgetEnds float64  `json:"budget_ends_s" doc:"seconds that the budget pays for"`
	CreditEnds float64  `json:"credit_ends_s" doc:"seconds that the provider's credit pays for"`
	ImageBytes int64    `json:"image_bytes"`
	InputBytes int64    `json:"input_bytes"`
	Warnings   []string `json:"warnings" doc:"such as: credit ends sooner than the budget"`
}

// Steps of a run, in order.
const (
	StepPlan    = "plan"    // offer chosen: Plan is set
	StepQuote   = "quote"   // an offer was asked for its price: Quote is its answer
	StepBuy     = "buy"     // Accept is being sent: from here on something may be held
	StepBid     = "bid"     // in place of buy: a sealed bid is held and on its way; Detail says how far
	StepLease   = "lease"   // both have signed
	StepPush    = "push"    // image and inputs
	StepPull    = "pull"    // the provider pulls the image and starts the container
	StepStart   = "start"   // the container starts
	StepRunning = "running" // the meter runs
	StepFetch   = "fetch"   // results come home
	StepDone    = "done"    // Job is final
)

// RunEvent is a line of the answer to POST /run and GET /jobs/{id}/watch.
type RunEvent struct {
	Step   string  `json:"step"`
	Detail string  `json:"detail,omitempty"`
	Plan   *Plan   `json:"plan,omitempty"`
	Quote  *Quote  `json:"quote,omitempty" doc:"of step quote"`
	Done   int64   `json:"done,omitempty" doc:"bytes, of push and fetch"`
	Total  int64   `json:"total,omitempty"`
	Job    *Job    `json:"job,omitempty"`
	Error  *Failed `json:"error,omitempty" doc:"last line of a run that failed"`
}

// Quote is what an offer answered that was asked for its price.
type Quote struct {
	Offer    string `json:"offer" doc:"as search shows it"`
	Provider string `json:"provider" doc:"account"`
	Model    string `json:"model"`
	Unit     string `json:"unit"`
	Price    string `json:"price,omitempty" doc:"per device-hour; absent: no quote"`
	Firm     bool   `json:"firm" doc:"its devices are held for you; false: it gives no quotes, and its offer's price counts"`
	Code     string `json:"code,omitempty" doc:"why there is no quote"`
	Detail   string `json:"detail,omitempty" doc:"the same for people"`
}

// Failed is why a run failed.
type Failed struct {
	Code   string `json:"code,omitempty"`
	Detail string `json:"detail"`
	Next   string `json:"next,omitempty"`
	Paid   string `json:"paid" doc:"what it cost all the same"`
}

// Job is a lease seen from the renter.
type Job struct {
	ID        string     `json:"id" doc:"the lease's id"`
	Name      string     `json:"name,omitempty"`
	State     string     `json:"state" enum:"buying,bidding,agreed,preparing,running,paused,stopping,fetching,ended"`
	Reason    string     `json:"reason,omitempty"`
	Detail    string     `json:"detail,omitempty"`
	Provider  string     `json:"provider" doc:"account"`
	Peer      string     `json:"peer"`
	Model     string     `json:"model"`
	Devices   int        `json:"devices"`
	Image     string     `json:"image"`
	Command   []string   `json:"command"`
	Rate      string     `json:"rate" doc:"per device-hour"`
	Unit      string     `json:"unit"`
	Budget    string     `json:"budget"`
	Agreed    time.Time  `json:"agreed"`
	Started   *time.Time `json:"started,omitempty"`
	EndedAt   *time.Time `json:"ended,omitempty"`
	Seconds   float64    `json:"seconds" doc:"billable"`
	Cost      string     `json:"cost" doc:"signed for so far"`
	Exit      *Exit      `json:"exit,omitempty"`
	Output    string     `json:"output" doc:"folder on this machine"`
	Results   string     `json:"results" enum:"none,fetching,complete,partial,kept" doc:"kept: here, but the output folder was taken; ask for another"`
	LogBytes  uint64     `json:"log_bytes" doc:"held on this machine"`
	Suspected bool       `json:"suspected" doc:"no beat for 5 s"`
	LastBeat  *time.Time `json:"last_beat,omitempty"`
	Away      *Away      `json:"away,omitempty" doc:"the allowance for this side's absence"`
	Doubt     string     `json:"doubt,omitempty" doc:"what the provider's own records contradict"`
	Auction   string     `json:"auction,omitempty" doc:"file of the auction that the job bid in: gpufair auction verify"`
}

// Away is an allowance: what the provider may meter while this side is not there.
type Away struct {
	Most    string     `json:"most,omitempty" doc:"that the lease may come to in all"`
	Until   *time.Time `json:"until,omitempty"`
	Told    bool       `json:"told" doc:"the provider has it"`
	Refused string     `json:"refused,omitempty" doc:"why it was not signed or not taken"`
}

// AwayRequest signs an allowance for a job that runs.
type AwayRequest struct {
	Seconds int    `json:"seconds" doc:"from now on"`
	Most    string `json:"most,omitempty" doc:"beyond what the job costs now; empty: what the time costs, within budget and credit"`
}

// Exit is how a job ended.
type Exit struct {
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"`
	OOM    bool   `json:"oom,omitempty"`
}

// Jobs is the answer to GET /jobs.
type Jobs struct {
	Jobs []Job `json:"jobs"`
}

// LogLine is a line of the answer to GET /jobs/{id}/logs. Data is a piece of output, not always a whole line.
type LogLine struct {
	Time   time.Time `json:"time"`
	Stream string    `json:"stream" enum:"out,err"`
	Data   []byte    `json:"data"`
}

// LogsRequest says which output to read.
type LogsRequest struct {
	Follow bool
	Since  time.Time // zero: from the start
	Tail   int       // last lines; 0: all
}

// SignalRequest asks to end a job, or to send it a signal.
type SignalRequest struct {
	Signal  string `json:"signal,omitempty" doc:"such as SIGINT; empty: stop as docker does, SIGTERM then SIGKILL"`
	Release bool   `json:"release,omitempty" doc:"give the lease up at once, without waiting for the job"`
}

// ResultsRequest fetches results again, or to another folder.
type ResultsRequest struct {
	Output string `json:"output,omitempty" doc:"folder that must not exist; empty: the job's own"`
}

// Status asks how the agent stands.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	err = c.Get(ctx, "/status", &s)
	return s, err
}

// Shutdown ends the agent. It refuses while jobs run, unless force is set: their providers then pause and end them.
func (c Client) Shutdown(ctx context.Context, force bool) error {
	return c.Post(ctx, fmt.Sprintf("/shutdown?force=%t", force), struct{}{}, nil)
}

// Search asks the book.
func (c Client) Search(ctx context.Context, req SearchRequest) (r SearchResult, err error) {
	err = c.Post(ctx, "/search", req, &r)
	return r, err
}

// Why asks the book why offers do not match.
func (c Client) Why(ctx context.Context, req WhyRequest) (r WhyResult, err error) {
	err = c.Post(ctx, "/why", req, &r)
	return r, err
}

// Offer shows one offer in full.
func (c Client) Offer(ctx context.Context, id string) (e Explanation, err error) {
	err = c.Get(ctx, "/offers/"+url.PathEscape(id), &e)
	return e, err
}

// Run starts a job and calls f with each event. When ctx ends the job goes on: the agent owns it.
func (c Client) Run(ctx context.Context, req RunRequest, f func(RunEvent) error) error {
	return c.events(ctx, http.MethodPost, "/run", req, f)
}

// Watch follows a job's events from now on.
func (c Client) Watch(ctx context.Context, id string, f func(RunEvent) error) error {
	return c.events(ctx, http.MethodGet, "/jobs/"+url.PathEscape(id)+"/watch", nil, f)
}

func (c Client) events(ctx context.Context, method, path string, in any, f func(RunEvent) error) error {
	return c.Stream(ctx, method, path, in, func(line []byte) error {
		var e RunEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		return f(e)
	})
}

// Jobs lists jobs: those that have not ended, or all.
func (c Client) Jobs(ctx context.Context, all bool) (j Jobs, err error) {
	err = c.Get(ctx, fmt.Sprintf("/jobs?all=%t", all), &j)
	return j, err
}

// Job shows one job by its id, an unambiguous start of it, or its name.
func (c Client) Job(ctx context.Context, id string) (j Job, err error) {
	err = c.Get(ctx, "/jobs/"+url.PathEscape(id), &j)
	return j, err
}

// Logs calls f with each piece of a job's output.
func (c Client) Logs(ctx context.Context, id string, req LogsRequest, f func(LogLine) error) error {
	q := url.Values{}
	if req.Follow {
		q.Set("follow", "true")
	}
	if !req.Since.IsZero() {
		q.Set("since", req.Since.Format(time.RFC3339Nano))
	}
	if req.Tail > 0 {
		q.Set("tail", fmt.Sprint(req.Tail))
	}
	return c.Stream(ctx, http.MethodGet, "/jobs/"+url.PathEscape(id)+"/logs?"+q.Encode(), nil, func(line []byte) error {
		var l LogLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		return f(l)
	})
}

// Signal ends a job or sends it a signal.
func (c Client) Signal(ctx context.Context, id string, req SignalRequest) (j Job, err error) {
	err = c.Post(ctx, "/jobs/"+url.PathEscape(id)+"/signal", req, &j)
	return j, err
}

// Away signs an allowance for a job, so that it runs on while this side is not there.
func (c Client) Away(ctx context.Context, id string, req AwayRequest) (j Job, err error) {
	err = c.Post(ctx, "/jobs/"+url.PathEscape(id)+"/away", req, &j)
	return j, err
}

// Results fetches a job's results and calls f with the progress.
func (c Client) Results(ctx context.Context, id string, req ResultsRequest, f func(RunEvent) error) error {
	return c.events(ctx, http.MethodPost, "/jobs/"+url.PathEscape(id)+"/results", req, f)
}
