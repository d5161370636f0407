package renter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/renter/control/api"
)

// probed is how many of a search's results are asked whether they are alive before a person sees them.
const probed = 10

// Search asks the book; the top ten are probed, so that nobody is shown an offer that has been dead for over 2 s.
func (a *Agent) Search(ctx context.Context, req api.SearchRequest) (api.SearchResult, error) {
	q, order, err := parseSearch(req.Query, req.Order, req.AllowUnknown)
	if err != nil {
		return api.SearchResult{}, err
	}
	limit := req.Limit
	if limit <= 0 {
		limit = 20
	}
	found := a.Board.Book().Search(q, order, limit+probed, time.Now())
	out := api.SearchResult{Offers: []api.Offer{}, Known: a.Board.Book().Len(), Peers: len(a.Network.Peers())}
	alive := 0
	if !req.NoProbe {
		top := min(len(found), probed)
		live := a.Board.ProbeAll(ctx, found[:top])
		live = slices.DeleteFunc(live, func(f book.Found) bool { return !q.Match(&f.Facts) })
		alive = len(live)
		found = append(live, found[top:]...)
		if len(found) == 0 {
			found = a.refresh(ctx, q, order)
			alive = len(found)
		}
	}
	for i, f := range found[:min(len(found), limit)] {
		v := a.viewOffer(f)
		v.Alive = i < alive
		out.Offers = append(out.Offers, v)
	}
	if len(out.Offers) == 0 {
		out.Note = "none matches; known: " + count(out.Known, "offer")
		if out.Known == 0 {
			out.Note = nothingKnown(out.Peers)
		}
	}
	return out, nil
}

// viewOffer is a lot for people.
func (a *Agent) viewOffer(f book.Found) api.Offer {
	o, l := f.Entry, f.Lot
	v := api.Offer{
		ID: fmt.Sprintf("%s.%d", o.Device.Short(), l.ID), Provider: o.Account.String(), Peer: o.Device.String(), Kind: string(l.Kind), Model: l.Model,
		NumGPUs: l.NumGPUs(), Devices: len(l.Slots), Free: l.Free(), Cores: int(l.Cores), MemoryMiB: l.MemoryMiB, DiskMiB: l.DiskMiB,
		VRAMMiB: l.VRAMMiB, Driver: l.Driver, Price: l.Price.String(), Unit: string(o.Unit), MinTerm: int(l.MinTerm), MaxTerm: int(l.MaxTerm),
		Region: o.Region, Sandbox: o.Terms.Sandbox, Egress: o.Terms.Egress, Arch: o.Terms.Arch, Figures: figures(l.Figures),
		Credit: o.Credit.Stranger.String(), Heard: o.Heard, IssuedAt: o.Issued(),
	}
	for _, p := range a.Network.Peers() {
		if p.Peer == o.Device {
			v.Path, v.RTTMillis = string(p.Reach), float64(p.RTT)/float64(time.Millisecond)
		}
	}
	return v
}

func figures(list []benchmark.Figure) []api.Figure {
	out := []api.Figure{}
	for _, f := range list {
		if info, ok := benchmark.Info(f.ID); ok {
			text := info.Format(f.Value)
			if f.Kernel != benchmark.KernelUnknown {
				text += " (" + f.Kernel.String() + ")"
			}
			out = append(out, api.Figure{Name: info.Name, Value: float64(f.Value) / float64(info.Scale), Unit: info.Unit, Text: text})
		}
	}
	return out
}

// Show explains one offer: its passport, fetched from the provider, its terms and what it does not promise.
func (a *Agent) Show(ctx context.Context, id string) (api.Explanation, error) {
	f, err := a.findOffer(ctx, id)
	if err != nil {
		return api.Explanation{}, err
	}
	e := api.Explanation{Offer: a.viewOffer(f), Passport: a.passport(ctx, f), Terms: termsOf(f)}
	e.Warnings = []string{"figures are measured by the provider itself", "the owner of the machine can read the job's memory, files and environment"}
	return e, nil
}

// termsOf is what buyer and owner agree to, for people.
func termsOf(f book.Found) []string {
	t := f.Entry.Terms
	return []string{
		fmt.Sprintf("%s %s per device-hour, billed by the millisecond while the job runs, however short that is", f.Lot.Price, f.Entry.Unit),
		fmt.Sprintf("a lease is for %d s to %d s: the rent of the least is held on credit, not charged", f.Lot.MinTerm, f.Lot.MaxTerm),
		fmt.Sprintf("the owner may take the device back with %d s of notice; %d s of rent come off then", t.Notice, t.Reclaim),
		fmt.Sprintf("credit for a stranger: %s %s; due in %s; paid by %s", f.Entry.Credit.Stranger, f.Entry.Unit, count(int(t.DueDays), "day"), strings.Join(t.Settlement, ", ")),
		fmt.Sprintf("sandbox %s, network: %s", t.Sandbox, egressOf(t)),
		registriesOf(t.Registries),
	}
}

// egressOf is what a job reaches, in words.
func egressOf(t market.Terms) string {
	if t.Egress == "none" {
		return "none: a job reaches nothing but itself"
	}
	return fmt.Sprintf("the internet (TCP, UDP, names; no mail, none of the owner's own networks), %.1f MiB/s each way and %.1f GiB of a lease at most; the owner logs connections for 30 days",
		float64(t.EgressRate)/(1<<20), float64(t.EgressCap)/(1<<30))
}

// passport fetches and checks a lot's benchmark passport.
func (a *Agent) passport(ctx context.Context, f book.Found) api.Passport {
	out := api.Passport{Hash: f.Lot.Passport.String(), Kernels: []string{}, Figures: []api.Figure{}}
	var raw []byte
	err := p2p.Call(ctx, a.Network, f.Entry.Device, a.protocol(work.ProtoPassport), f.Lot.Passport, &raw, work.MaxMessage)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	p, err := benchmark.OpenPassport(raw)
	switch {
	case err == nil && identity.Hash(raw) != f.Lot.Passport:
		err = errors.New("the provider sent another passport than its offer names")
	case err == nil && p.Account != f.Entry.Account:
		err = errors.New("the passport is another account's")
	case err == nil:
		err = p.Valid(time.Now())
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Checked, out.Profile, out.Measured, out.Figures = true, string(p.Profile), time.UnixMilli(p.Finished), figures(p.Figures())
	for _, m := range p.Measurements {
		if !slices.Contains(out.Kernels, m.KernelName) {
			out.Kernels = append(out.Kernels, m.KernelName)
		}
	}
	return out
}

// Jobs lists the jobs that have not ended, or all that are kept, newest first. Only the latter reads the store.
func (a *Agent) Jobs(ctx context.Context, everything bool) ([]api.Job, error) {
	select {
	case <-a.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	a.mu.Lock()
	live := make([]*job, 0, len(a.jobs))
	for _, j := range a.jobs {
		live = append(live, j)
	}
	a.mu.Unlock()
	out, seen := []api.Job{}, map[market.LeaseID]bool{}
	for _, j := range live {
		out, seen[j.id] = append(out, j.view()), true
	}
	if everything {
		records, err := a.records(ctx)
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			if !seen[rec.ID] {
				out = append(out, viewOf(rec))
			}
		}
	}
	slices.SortFunc(out, func(x, y api.Job) int { return y.Agreed.Compare(x.Agreed) })
	return out, nil
}

var (
	// ErrNoJob says that there is no such job.
	ErrNoJob = errors.New("no such job")
	// ErrAmbiguous says that a name or the start of an id fits more than one job.
	ErrAmbiguous = errors.New("fits more than one job")
)

// FindJob finds a job by its id, an unambiguous start of it, or its name (the newest of that name).
func (a *Agent) FindJob(ctx context.Context, name string) (market.LeaseID, api.Job, error) {
	var id market.LeaseID
	if len(name) == 2*len(id) && id.UnmarshalText([]byte(strings.ToLower(name))) == nil {
		return a.findByID(ctx, id)
	}
	jobs, err := a.Jobs(ctx, true)
	if err != nil {
		return market.LeaseID{}, api.Job{}, err
	}
	var hits []api.Job
	for _, j := range jobs {
		if name != "" && j.Name == name {
			hits = []api.Job{j}
			break
		}
		if len(name) >= 4 && strings.HasPrefix(j.ID, strings.ToLower(name)) {
			hits = append(hits, j)
		}
	}
	switch len(hits) {
	case 0:
		return market.LeaseID{}, api.Job{}, fmt.Errorf("job %q: %w", name, ErrNoJob)
	case 1:
		err := id.UnmarshalText([]byte(hits[0].ID))
		return id, hits[0], err
	}
	return market.LeaseID{}, api.Job{}, fmt.Errorf("job %q: %w: give more of its id", name, ErrAmbiguous)
}

// findByID finds a job without reading the others.
func (a *Agent) findByID(ctx context.Context, id market.LeaseID) (market.LeaseID, api.Job, error) {
	if j := a.find(id); j != nil {
		return id, j.view(), nil
	}
	rec, ok, err := a.load(ctx, id)
	if err == nil && !ok {
		err = fmt.Errorf("job %s: %w", id.Short(), ErrNoJob)
	}
	if err != nil {
		return id, api.Job{}, err
	}
	return id, viewOf(rec), nil
}

// view is the job as it stands now.
func (j *job) view() api.Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := viewOf(j.now())
	v.Suspected = j.suspected
	if j.finding != nil {
		v.Doubt = j.finding.String()
	}
	if j.rec.Started != 0 && !j.lastBeat.IsZero() {
		at := j.lastBeat
		v.LastBeat = &at
	}
	return v
}

// viewOf is a stored job for people.
func viewOf(r record) api.Job {
	v := api.Job{
		ID: r.ID.String(), Name: r.Name, State: r.State.String(), Reason: string(r.Reason.Code), Detail: r.Reason.Detail, Provider: r.Provider.String(),
		Peer: r.Peer.String(), Model: r.Model, Devices: int(r.Devices), Image: r.Spec.Name, Command: r.Spec.Command, Rate: r.Rate.String(),
		Unit: string(r.Unit), Budget: r.Budget.String(), Agreed: time.UnixMilli(r.Agreed), Started: at(r.Started), EndedAt: at(r.Ended),
		Seconds: float64(r.Billable) / 1000, Cost: r.Paid.String(), Output: r.Output, Results: r.Results, LogBytes: r.LogOffset,
	}
	if v.Command == nil {
		v.Command = []string{} // the image's own
	}
	switch {
	case r.Lease == nil && !r.Final && r.Bid != nil:
		v.State = "bidding"
	case r.Lease == nil && !r.Final:
		v.State = "buying"
	case r.State == work.Ended && !r.Final:
		v.State = "fetching"
	}
	if end, err := market.OpenEnd(r.End); r.End != nil && err == nil {
		v.Cost, v.Seconds = min(end.Charge, r.Paid).String(), float64(end.Billable)/1000
	}
	if r.Bid != nil {
		v.Auction = r.Bid.File
	}
	v.Away = awayOf(r)
	if r.Exit != nil {
		v.Exit = &api.Exit{Code: int(r.Exit.Code), Signal: r.Exit.Signal, OOM: r.Exit.OOM}
	}
	return v
}

func at(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := time.UnixMilli(ms)
	return &t
}

// stepOf is what a job is doing, for who watches it.
func (j *job) stepOf() api.RunEvent {
	view := j.view()
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.step
	switch {
	case j.rec.Final:
		e = api.RunEvent{Step: api.StepDone}
	case j.rec.State == work.Running || j.rec.State == work.Paused || j.rec.State == work.Stopping:
		e = api.RunEvent{Step: api.StepRunning}
	}
	e.Job = &view
	return e
}

// watchEvery bounds how often a watcher hears of a job: progress moves with every frame.
const watchEvery = 200 * time.Millisecond

// Watch tells send how a job goes until it is over.
func (a *Agent) Watch(ctx context.Context, id market.LeaseID, send func(api.RunEvent) error) error {
	j := a.find(id)
	if j == nil {
		return nil
	}
	_, err := a.follow(ctx, j, send, false)
	return err
}

// follow tells send how a job goes until it is over. With retry, a refusal that another offer may not give is handed back instead.
func (a *Agent) follow(ctx context.Context, j *job, send func(api.RunEvent) error, retry bool) (*reason.Reason, error) {
	for {
		j.mu.Lock()
		news := j.news
		j.mu.Unlock()
		e := j.stepOf()
		rec := j.record()
		if rec.Final && rec.Lease == nil && retry && another(rec.Reason) {
			return &rec.Reason, nil
		}
		if rec.Final && rec.Lease == nil {
			e.Error = failed(rec)
		}
		if err := send(e); err != nil || rec.Final {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-news:
		}
		select { // let changes gather
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(watchEvery):
		}
	}
}

func failed(rec record) *api.Failed {
	advice, _ := rec.Reason.Code.Advice()
	f := &api.Failed{Code: string(rec.Reason.Code), Detail: rec.Reason.String(), Next: advice.Renter, Paid: rec.Paid.String()}
	if rec.Bid != nil && rec.Bid.File != "" {
		f.Next += "; `gpufair auction verify " + rec.Bid.File + "` works the result out again"
	}
	return f
}

// Signal sends a signal to a job, stops it (no signal), or gives its lease up. A job that does not run yet is given up by any of them, and
// of one that has ended what is not home yet.
func (a *Agent) Signal(ctx context.Context, id market.LeaseID, req api.SignalRequest) error {
	j := a.find(id)
	if j == nil {
		return &refusal{
			why: fmt.Errorf("job %s has ended already", id.Short()), next: "gpufair results " + id.Short() + " says where its results lie",
		}
	}
	switch state := j.record().State; {
	case req.Release, state != work.Running && state != work.Paused && state != work.Stopping:
		why := reason.New(reason.StoppedRenter, "")
		if err := j.update(ctx, func(r *record) { r.GivenUp = &why }, nil); err != nil {
			return err
		}
		j.release(why)
		return nil
	case req.Signal == "":
		return j.heard(j.ask(ctx, work.Ask{Action: work.ActStop}))
	}
	return j.heard(j.ask(ctx, work.Ask{Action: work.ActSignal, Signal: req.Signal}))
}

// heard words for people that a provider did not hear a signal.
func (j *job) heard(_ work.Status, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || !transient(err) {
		return err
	}
	j.log.Info("signal not delivered", "err", err)
	return fmt.Errorf("job %s: %w, so the job did not hear it", j.id.Short(), ErrSilent)
}
