package renter

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/renter/control/api"
)

// planned is a run that was checked and not yet bought.
type planned struct {
	req    api.RunRequest
	budget money.Micro
	bid    money.Rate // per device-hour, in a sealed auction of the only offer; 0: buy at the price
	most   money.Rate // per device-hour, at most; 0: whatever the offer's price is
	asks   bool       // the offers for quotes, in place of taking the first at its price
	quoted map[lotKey]negotiate.Quoted
	needs  work.Needs
	offers []book.Found // the first is bought, the others are tried when it is taken
	files  *files
	name   string // of the image, for people
	plan   api.Plan

	away     time.Duration // to be allowed for; 0: none
	awayMost money.Micro
}

// plan checks everything that can be checked before anything is held, and chooses offers.
func (a *Agent) plan(ctx context.Context, req api.RunRequest) (*planned, error) {
	p := &planned{req: req, files: newFiles()}
	var err error
	if p.budget, err = money.Parse(req.Budget); err != nil || p.budget == 0 {
		return nil, refuse("budget %q: want an amount above 0, such as 0.5", req.Budget)
	}
	if req.Bid != "" {
		if p.bid, err = money.ParseRate(req.Bid); err != nil || p.bid == 0 || req.Offer == "" {
			return nil, refuse("bid %q: want a price above 0 such as 0.35, and an offer that it is for", req.Bid)
		}
	}
	if err := p.readPrice(req); err != nil {
		return nil, err
	}
	if req.Away != 0 || req.AwayMost != "" {
		if p.away, p.awayMost, err = awayFor(req.Away, req.AwayMost); err != nil {
			return nil, err
		}
	}
	if err := checkOutput(req.Output); err != nil {
		return nil, err
	}
	if err := a.mayBuy(); err != nil {
		return nil, err
	}
	if p.offers, err = a.choose(ctx, req); err != nil {
		return nil, err
	}
	if p.offers, err = a.notRevoked(p.offers); err != nil {
		return nil, err
	}
	if p.offers, err = roomy(ctx, p.offers, req); err != nil {
		return nil, err
	}
	if p.offers, err = pullable(p.offers, req); err != nil {
		return nil, err
	}
	if p.offers, err = p.within(p.offers); err != nil {
		return nil, err
	}
	if err := a.plannable(ctx, p); err != nil {
		p.files.drop()
		return nil, err
	}
	return p, nil
}

// plannable opens the files and works the money out for the first offer.
func (a *Agent) plannable(ctx context.Context, p *planned) (err error) {
	first := p.offers[0]
	p.offers = slices.DeleteFunc(p.offers, func(f book.Found) bool { return !alike(f, first) })
	p.needs = work.Needs{
		Kind: first.Lot.Kind, Devices: uint32(max(p.req.Devices, 1)), MemoryMiB: p.req.Memory,
	}
	platform := first.Entry.Terms.OS + "/" + first.Entry.Terms.Arch
	if p.files.image, err = a.Images.Open(ctx, p.req.Image, platform); err != nil {
		return &refusal{why: err}
	}
	p.pin()
	for _, b := range p.files.image.Blobs() {
		p.plan.ImageBytes += b.Size
	}
	if p.req.Input != "" {
		if p.files.inputs, err = packInput(ctx, p.req.Input); err != nil {
			return &refusal{why: err}
		}
		p.plan.InputBytes = p.files.inputs.Manifest.Bytes()
	}
	if err := p.spec().Validate(); err != nil {
		return &refusal{why: err}
	}
	return a.price(ctx, p, first)
}

// alike reports whether what is planned for one offer holds for another: the same machine for the image, kind for the needs, and unit for
// the budget.
func alike(f, first book.Found) bool {
	return f.Entry.Terms.OS == first.Entry.Terms.OS && f.Entry.Terms.Arch == first.Entry.Terms.Arch && f.Lot.Kind == first.Lot.Kind &&
		f.Entry.Unit == first.Entry.Unit
}

// price works out what the run would hold and how long budget and credit last.
func (a *Agent) price(ctx context.Context, p *planned, f book.Found) error {
	p.plan.Offer = a.viewOffer(f)
	if p.bid > 0 {
		f.Lot.Price, p.plan.Bid = p.bid, p.bid.String()
	}
	if p.most > 0 {
		p.plan.MaxPrice, p.plan.Asks = p.most.String(), p.asks
		f.Lot.Price = min(f.Lot.Price, p.most)
	}
	rate, n, unit := f.Lot.Price, p.needs.Devices, f.Entry.Unit
	hold, err := market.Hold(rate, n, f.Lot.MinTerm)
	if err != nil {
		return err
	}
	term, err := p.term(f.Lot)
	if err != nil {
		return err
	}
	credit, err := a.creditWith(ctx, f.Entry.SealedOffer)
	if err != nil {
		return err
	}
	pays, lasts := money.Lasts(p.budget, rate, n), money.Lasts(credit, rate, n)
	p.plan.Hold, p.plan.Budget, p.plan.Unit = hold.String(), p.budget.String(), string(unit)
	p.plan.BudgetEnds, p.plan.CreditEnds = pays.Seconds(), lasts.Seconds()
	p.plan.Warnings = []string{}
	if hold > credit {
		return reason.Errorf(reason.CreditLimit, "the offer holds %v %s and gives you %v", hold, unit, credit)
	}
	if lasts < time.Duration(term)*time.Second {
		p.plan.Warnings = append(p.plan.Warnings, fmt.Sprintf(
			"credit by the offer ends after %v, before the budget: settle or prepay in time, or the job is ended then", lasts.Round(time.Second)))
	}
	if p.away > lasts {
		p.plan.Warnings = append(p.plan.Warnings, fmt.Sprintf(
			"while you are away the job runs on for %v at most, by the offer's credit: settle or prepay for more", lasts.Round(time.Second)))
	}
	for _, e := range p.req.Env {
		p.plan.Warnings = append(p.plan.Warnings, secretWarning(e)...)
	}
	return nil
}

// secretWarning warns of what looks like a secret: the owner of the machine can read a job's environment (spec: jobs).
func secretWarning(env string) []string {
	name, _, _ := strings.Cut(env, "=")
	for _, word := range []string{"TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "PRIVATE"} {
		if strings.Contains(strings.ToUpper(name), word) {
			return []string{"the owner of the machine can read the job's environment and memory: " + name + " looks like a secret"}
		}
	}
	return nil
}

// term is the longest that the lease may last: as long as the budget pays, so that the provider itself ends it in time.
func (p *planned) term(lot market.Lot) (uint32, error) {
	pays := money.Lasts(p.budget, lot.Price, p.needs.Devices) / time.Second
	least, term := time.Duration(lot.MinTerm), time.Duration(lot.MaxTerm)
	if asked := time.Duration(p.req.Term); asked > 0 {
		if asked < least {
			return 0, refuse("the shortest term of the offer is %d s, and %d s were asked for; ask for --term %ds or more, or choose another offer",
				least, asked, least)
		}
		term = min(term, asked)
	}
	term = min(term, pays)
	if term < least {
		return 0, refuse("the shortest term of the offer is %d s, and budget %v pays for %d s at %v an hour; raise --budget or choose another offer",
			least, p.budget, pays, lot.Price)
	}
	return uint32(term), nil
}

// creditWith is how much this account may still come to owe a provider, as its offer says and our own books know.
func (a *Agent) creditWith(ctx context.Context, o market.SealedOffer) (money.Micro, error) {
	limits := ledger.Limits{
		Stranger: o.Credit.Stranger, StrangersTotal: o.Credit.StrangersTotal, KnownPercent: o.Credit.KnownPercent, KnownCap: o.Credit.KnownCap,
	}
	var room money.Micro
	err := a.Books.View(ctx, func(r *books.Reader) error {
		mine, err := r.Account(ledger.AsRenter, o.Unit, o.Account)
		if err != nil {
			return err
		}
		room, _, err = limits.Room(mine.Standing, 0)
		return err
	})
	return room, err
}

func checkOutput(path string) error {
	if !filepath.IsAbs(path) {
		return refuse("output folder %q: want an absolute path", path)
	}
	if _, err := os.Lstat(path); err == nil {
		return refuse("output folder %s exists: name one that does not, so that nothing is overwritten", path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return refuse("output folder %s: %v", path, err)
	}
	parent := filepath.Dir(path)
	info, err := os.Stat(parent)
	if err != nil || !info.IsDir() {
		return refuse("output folder %s: its parent %s is no folder: make it first", path, parent)
	}
	probe, err := os.CreateTemp(parent, ".gpufair-*")
	if err != nil {
		return refuse("output folder %s: nothing can be written to %s: %v", path, parent, err)
	}
	probe.Close()
	return os.Remove(probe.Name())
}

// triedOffers is how many offers one run tries before it gives up.
const triedOffers = 5

// choose finds the offers that a run may take, best first, alive a moment ago.
func (a *Agent) choose(ctx context.Context, req api.RunRequest) ([]book.Found, error) {
	if req.Offer != "" {
		f, err := a.findOffer(ctx, req.Offer)
		if err == nil && f.Entry.Account == a.Device.Account() {
			err = refuse("offer %q: it is your own account's, which can't lease from itself: choose another's", req.Offer)
		}
		return []book.Found{f}, err
	}
	q, order, err := parseSearch(req.Query, req.Order, false)
	if err != nil {
		return nil, err
	}
	all := a.Board.Book().Search(q, order, book.MaxLimit, time.Now())
	own := len(all)
	all = a.others(all)
	own -= len(all)
	kept := enough(a.Board.ProbeAll(ctx, all[:min(len(all), 2*triedOffers)]), req.Devices)
	if len(kept) == 0 {
		kept = enough(a.others(a.refresh(ctx, q, order)), req.Devices)
	}
	if len(kept) == 0 {
		return nil, noOffer(req, a.Board.Book().Len(), len(a.Network.Peers()), own)
	}
	most := triedOffers
	if req.MaxPrice != "" && !req.Buy {
		most = askedOffers
	}
	return kept[:min(len(kept), most)], nil
}

// others are the lots of other accounts: one's own PCs, which act for one account, owe each other nothing.
func (a *Agent) others(found []book.Found) []book.Found {
	return slices.DeleteFunc(found, func(f book.Found) bool { return f.Entry.Account == a.Device.Account() })
}

// enough are the lots with so many free devices, at least one.
func enough(found []book.Found, devices int) []book.Found {
	return slices.DeleteFunc(found, func(f book.Found) bool { return f.Lot.Free() < max(devices, 1) })
}

// refreshed is how many devices are asked before it is said that nothing is free: all at once, so that nobody waits longer for them than
// for one, and few enough that a search can't be made a flood.
const refreshed = 20

// refresh asks the devices whose lots would match q if they were free, and gives those that do match now. The book hears only with a
// machine's next heartbeat that a job there has ended, some seconds later. First the index is asked for machines that the book lacks.
func (a *Agent) refresh(ctx context.Context, q query.Query, order query.Order) []book.Found {
	everything, err := query.Parse("kind=any free=any")
	if err != nil {
		return nil // it is a constant
	}
	everything.AllowUnknown = true
	a.Board.Discover(ctx)
	devices := map[identity.PeerID]bool{}
	maybe := slices.DeleteFunc(a.Board.Book().Search(everything, order, book.MaxLimit, time.Now()), func(f book.Found) bool {
		facts := f.Facts
		facts.SetFree(len(f.Lot.Slots))
		if !q.Match(&facts) || len(devices) == refreshed && !devices[f.Entry.Device] {
			return true
		}
		devices[f.Entry.Device] = true
		return false
	})
	return slices.DeleteFunc(a.Board.ProbeAll(ctx, maybe), func(f book.Found) bool { return !q.Match(&f.Facts) })
}

func parseSearch(q, order string, unknown bool) (query.Query, query.Order, error) {
	parsed, err := query.Parse(q)
	if err != nil {
		return parsed, query.Order{}, &refusal{why: err}
	}
	parsed.AllowUnknown = unknown
	if order == "" {
		order = "price"
	}
	o, err := query.ParseOrder(order)
	if err != nil {
		return parsed, o, &refusal{why: err}
	}
	return parsed, o, nil
}

// findOffer finds an offer by the id that search shows: the end of the provider's peer id, a dot, the lot.
func (a *Agent) findOffer(ctx context.Context, id string) (book.Found, error) {
	short, lotText, _ := strings.Cut(id, ".")
	lot, err := strconv.ParseUint(lotText, 10, 8)
	if err != nil || len(short) < 4 {
		return book.Found{}, refuse("offer %q: want an id as `gpufair search` shows it, such as 8QmxYz1p.1", id)
	}
	q, order, err := parseSearch("kind=any free>=0", "", true)
	if err != nil {
		return book.Found{}, err
	}
	var hits []book.Found
	for _, f := range a.Board.Book().Search(q, order, book.MaxLimit, time.Now()) {
		if strings.HasSuffix(f.Entry.Device.String(), short) && uint64(f.Lot.ID) == lot {
			hits = append(hits, f)
		}
	}
	if len(hits) > 1 {
		return book.Found{}, refuse("offer %q: fits %s: give more of the peer id", id, count(len(hits), "offer"))
	}
	if len(hits) == 1 {
		hits = a.Board.ProbeAll(ctx, hits)
	}
	if len(hits) == 0 {
		return book.Found{}, refuse("offer %q: not live any more, or never seen: `gpufair search` shows what is", id)
	}
	return hits[0], nil
}

func (p *planned) spec() work.Spec {
	s := work.Spec{
		Image: p.files.image.Manifest(), Name: p.name, Source: p.files.image.Source(), Command: p.req.Command, Env: p.req.Env, Dir: p.req.Dir, User: p.req.User,
		Labels: p.req.Labels, StopWait: uint32(p.req.StopWait),
	}
	if p.files.inputs != nil {
		s.Inputs = p.files.inputs.ID
	}
	return s
}

// order signs an order for one offer and stores it with its hold, in one durable transaction, before anything is sent.
func (a *Agent) order(ctx context.Context, p *planned, f book.Found) (*job, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err() // nothing is held yet
	}
	ctx = context.WithoutCancel(ctx) // from here on the order is stored whole or not at all
	term, err := p.term(f.Lot)
	if err != nil {
		return nil, err
	}
	w := negotiate.Order{Lot: f.Lot.ID, Quantity: p.needs.Devices, Term: term, Needs: p.needs, Quote: p.quoteOf(f)}
	if w.Quote != nil {
		w.Term = min(term, w.Quote.Quote.Term)
	}
	if _, err := rand.Read(w.Nonce[:]); err != nil {
		return nil, fmt.Errorf("nonce: %w", err)
	}
	offer := f.Entry.SealedOffer
	hold, err := market.Hold(f.Lot.Price, p.needs.Devices, f.Lot.MinTerm)
	if err != nil {
		return nil, err
	}
	rec := a.newRecord(p, f)
	err = a.Books.Update(ctx, func(tx *books.Tx) error {
		purchase, err := negotiate.Prepare(a.Device, offer, w, time.Now(), func(id market.LeaseID) ([]byte, error) {
			return tx.Promise(books.Opening{
				Channel: a.Books.Channel(offer.Account, offer.Unit), Lane: ledger.Lane(id), Rate: f.Lot.Price, Devices: p.needs.Devices, Hold: hold,
				DueDays: offer.Terms.DueDays,
			})
		})
		if err != nil {
			return err
		}
		rec.ID, rec.Accept, rec.Voucher, rec.Quote = purchase.ID, purchase.AcceptRaw, purchase.VoucherRaw, purchase.QuoteRaw
		return errors.Join(kv.Save(tx.Of(kv.Renter), jobKey(rec.ID), rec), kv.Save(tx.Of(kv.Renter), peerKey(rec.Provider), rec.Peer))
	})
	if errors.Is(err, books.ErrDisputed) {
		return nil, reason.Errorf(reason.Disputed, "%v", err)
	}
	if err != nil {
		return nil, err
	}
	return a.newJob(rec, p.files.share())
}

// newRecord is the record of a job at the price of f's lot, that is ordered now; what was signed is missing.
func (a *Agent) newRecord(p *planned, f book.Found) record {
	offer := f.Entry.SealedOffer
	return record{
		Version: recordVersion, Offer: offer.Raw, OfferProof: offer.DelegationRaw, Needs: p.needs, Peer: offer.Device, Provider: offer.Account,
		Spec: p.spec(), ImagePath: p.req.Image, InputPath: p.req.Input, Output: p.req.Output, Name: p.req.Name, Budget: p.budget,
		Agreed: time.Now().UnixMilli(), Model: f.Lot.Model, Rate: f.Lot.Price, Unit: offer.Unit, Devices: p.needs.Devices,
		Platform: offer.Terms.OS + "/" + offer.Terms.Arch, Results: resultsNone, Away: uint32(p.away / time.Second), AwayMost: p.awayMost,
	}
}

// another reports whether a refusal is about this one offer or its owner, so that the next may do.
func another(why reason.Reason) bool {
	switch why.Code {
	case reason.DeviceTaken, reason.OfferUnknown, reason.OfferExpired, reason.Measuring, reason.OwnerPaused, reason.OwnerUsing, reason.RuntimeDown,
		reason.ProviderGone, reason.NotServed, reason.CreditLimit, reason.StrangersTotal, reason.NotMeasured, reason.DiskFull, reason.LedgerReadOnly,
		reason.TermsChanged, reason.PriceBelow, reason.TermOutOfRange, reason.ResourcesExceeded, reason.QuoteLapsed, reason.QuoteDiffers:
		return true
	}
	return false
}

// Submit plans, buys and drives a job, and tells send each step; the job goes on in the agent when ctx ends after the order was sent.
func (a *Agent) Submit(ctx context.Context, req api.RunRequest, send func(api.RunEvent) error) error {
	select {
	case <-a.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	p, err := a.plan(ctx, req)
	if err != nil {
		return err
	}
	defer p.files.drop()
	if err := send(api.RunEvent{Step: api.StepPlan, Plan: &p.plan}); err != nil || req.DryRun {
		return err
	}
	if p.asks {
		if err := a.quotes(ctx, p, send); err != nil {
			return err
		}
	}
	return a.tryOffers(ctx, p, send)
}

// tryOffers buys the first of the planned offers that is sold, and follows its job.
func (a *Agent) tryOffers(ctx context.Context, p *planned, send func(api.RunEvent) error) error {
	order := a.order
	if p.bid > 0 {
		order = a.bidFor
	}
	for i, f := range p.offers {
		j, err := order(ctx, p, f)
		if err != nil {
			return err
		}
		last := i == len(p.offers)-1
		if err := a.start(j); err != nil {
			return err
		}
		why, err := a.follow(ctx, j, func(e api.RunEvent) error {
			if e.Job != nil && e.Job.State != "buying" {
				p.leaveOthers(a, keyOf(f))
			}
			return send(e)
		}, !last)
		if err != nil || why == nil {
			return err
		}
		if err := send(api.RunEvent{Step: api.StepPlan, Detail: "the offer was not sold to you (" + why.String() + "); trying the next"}); err != nil {
			return err
		}
	}
	return nil
}
