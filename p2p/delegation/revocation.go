package delegation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// Limits of revocations. Whoever floods us with those of accounts that we never dealt with pushes out others of that kind, and nothing else.
const (
	MaxRevocations   = identity.MaxDevices // of one message: those of an account
	heardRevocations = 1 << 12             // of accounts that were never dealt with: 2 MiB
	tellWithin       = 10 * time.Second    // one exchange
	tellers          = 4                   // exchanges at once
	waitingPeers     = 1024                // to be told; the oldest goes first
	revocationRate   = 2                   // a second of one forwarding peer; people revoke by hand
	revocationBurst  = 128
	maxForwarders    = 1024
)

// Keeper keeps revocations for ever; ledger/books fulfils it through cmd. Safe for concurrent use.
type Keeper interface {
	// KeepRevocation stores one durably if its account is this one or was dealt with; kept says so.
	KeepRevocation(ctx context.Context, envelope []byte) (kept bool, err error)
	// Revocations gives those that were stored.
	Revocations(ctx context.Context) ([][]byte, error)
}

type who struct {
	account identity.AccountID
	device  identity.PeerID
}

type revoked struct {
	r   identity.Revocation
	raw []byte
}

// revocations is what is known of them.
type revocations struct {
	keeper  Keeper
	forward *lru.Cache[identity.PeerID, *rate.Limiter]
	news    chan []byte // to be gossiped

	mu    sync.Mutex
	kept  map[who]revoked          // guarded by mu; of those in the keeper, or higher
	heard *lru.Cache[who, revoked] // guarded by mu; of strangers
	keys  lineages                 // guarded by mu
	queue []identity.PeerID        // guarded by mu; peers to exchange with
	wake  chan struct{}            // capacity 1
}

func newRevocations() (*revocations, error) {
	heard, err := lru.New[who, revoked](heardRevocations)
	if err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	forward, err := lru.New[identity.PeerID, *rate.Limiter](maxForwarders)
	if err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	keys, err := newLineages()
	if err != nil {
		return nil, err
	}
	return &revocations{
		keys: keys, forward: forward, news: make(chan []byte, MaxRevocations), kept: map[who]revoked{}, heard: heard, wake: make(chan struct{}, 1),
	}, nil
}

// Remember gives the directory a keeper and loads what that has. Call it before Run and before anybody is answered; without it
// revocations are known until the end of the process.
func (d *Directory) Remember(ctx context.Context, k Keeper) error {
	all, err := k.Revocations(ctx)
	if err != nil {
		return fmt.Errorf("stored revocations: %w", err)
	}
	d.revoked.keeper = k
	for _, raw := range all {
		r, err := identity.OpenRevocation(raw)
		if err != nil {
			return fmt.Errorf("stored revocation: %w", err)
		}
		d.revoked.put(revoked{r, raw}, true)
	}
	return nil
}

// get is the highest revocation of a device that is known.
func (s *revocations) get(w who) (revoked, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.kept[w]; ok {
		return v, true
	}
	return s.heard.Get(w)
}

// isNews reports whether r is higher than what is known of its device, and by a key that the account has not replaced; or that it shows
// for the first time that one key of the account named two to follow it.
func (s *revocations) isNews(r identity.Revocation) bool {
	have, ok := s.get(who{r.Account, r.Device})
	s.mu.Lock()
	known := s.keys.of(r.Account)
	s.mu.Unlock()
	switch r.Chain.Against(known.chain) {
	case identity.OlderKey:
		return false
	case identity.Forked:
		return !known.forked
	}
	return !ok || r.Over(have.r)
}

// put remembers v unless a higher one came meanwhile.
func (s *revocations) put(v revoked, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := who{v.r.Account, v.r.Device}
	s.keys.follow(v.r.Account, v.r.Chain, kept)
	if have, ok := s.kept[w]; ok && !v.r.Over(have.r) && have.r.Serial != v.r.Serial {
		return
	}
	if have, ok := s.heard.Peek(w); ok && !v.r.Over(have.r) && have.r.Serial != v.r.Serial {
		return
	}
	if _, ok := s.kept[w]; kept || ok { // a higher one that could not be stored counts in a lower one's place, too
		s.kept[w] = v
		s.heard.Remove(w)
		return
	}
	s.heard.Add(w, v)
}

// Learn checks a revocation and remembers it if it is higher than what is known of the device: news says so. What was learned is never
// unlearned by a lower one.
func (d *Directory) Learn(ctx context.Context, envelope []byte) (news bool, err error) {
	r, err := identity.OpenRevocation(envelope)
	if err != nil {
		return false, err
	}
	if !d.revoked.isNews(r) {
		return false, nil
	}
	kept := false
	if d.revoked.keeper != nil {
		if kept, err = d.revoked.keeper.KeepRevocation(ctx, envelope); err != nil {
			err = fmt.Errorf("keep revocation of device %s: %w", r.Device.Short(), err) // it counts until the end of the process
		}
	}
	d.revoked.put(revoked{r, envelope}, kept)
	return true, err
}

// Spread learns a revocation and, if it is news, tells everybody.
func (d *Directory) Spread(ctx context.Context, envelope []byte) error {
	news, err := d.Learn(ctx, envelope)
	if news {
		select {
		case d.revoked.news <- envelope:
		default: // those that connect are told all the same
		}
	}
	return err
}

// Dealt says that an account has been dealt with: what was heard of its revoked devices is kept for ever from now on.
func (d *Directory) Dealt(ctx context.Context, account identity.AccountID) error {
	if d.revoked.keeper == nil {
		return nil
	}
	var errs []error
	for _, v := range d.revoked.of(account) {
		kept, err := d.revoked.keeper.KeepRevocation(ctx, v.raw)
		if kept && err == nil {
			d.revoked.put(v, true)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// of is what is known of accounts, of each at most [MaxRevocations], in the order in which they are named.
func (s *revocations) of(accounts ...identity.AccountID) (all []revoked) {
	by := make(map[identity.AccountID][]revoked, len(accounts))
	for _, a := range accounts {
		by[a] = nil
	}
	add := func(v revoked) {
		if have, ok := by[v.r.Account]; ok && len(have) < MaxRevocations {
			by[v.r.Account] = append(have, v)
		}
	}
	s.mu.Lock()
	for _, v := range s.kept {
		add(v)
	}
	for _, v := range s.heard.Values() {
		add(v)
	}
	s.mu.Unlock()
	for _, a := range accounts {
		all = append(all, by[a]...)
		delete(by, a)
	}
	return all
}

// Revoked is an error if a revocation is known that makes del void (it wraps [identity.ErrRevoked]), if the account has replaced the key that
// signed it ([identity.ErrReplaced]), or if two keys claim to follow one of the account's ([identity.ErrTwoKeys]); nil else.
func (d *Directory) Revoked(del identity.Delegation) error {
	if err := d.revoked.replaced(del); err != nil {
		return err
	}
	if v, ok := d.revoked.get(who{del.Account, del.Device}); ok && v.r.Voids(del) {
		return fmt.Errorf("%w: %s, on %s", identity.ErrRevoked, del.Device.Short(), time.UnixMilli(v.r.Time).UTC().Format(time.DateOnly))
	}
	return nil
}

// RevokedRecord is Revoked for a record's signer and its sealed delegation, which is only opened if a revocation of the device or a change of
// the account's key is known.
func (d *Directory) RevokedRecord(h identity.Header, delegation []byte) error {
	if _, ok := d.revoked.get(who{h.Account, h.Device}); !ok && !d.revoked.changed(h.Account) {
		return nil
	}
	del, err := identity.OpenDelegation(delegation)
	if err != nil {
		return err
	}
	return d.Revoked(del)
}

// Self is [Directory.Revoked] for this device.
func (d *Directory) Self() error { return d.Revoked(d.own.d) }

// told is what another peer is told: what is known of these accounts and of this one.
func (d *Directory) told(accounts ...identity.AccountID) (list [][]byte) {
	for _, v := range d.revoked.of(append(accounts, d.own.d.Account)...) {
		if len(list) < MaxRevocations {
			list = append(list, v.raw)
		}
	}
	return list
}

// hear takes the revocations that a peer tells, within its share. One that does not open is a mistake of the peer; one that can't be
// stored is this side's trouble, and counts until the end of the process.
func (d *Directory) hear(ctx context.Context, peer identity.PeerID, list [][]byte) error {
	if len(list) > MaxRevocations {
		return p2p.Errorf(p2p.KindBadRequest, "told %d revocations, want at most %d", len(list), MaxRevocations)
	}
	for _, raw := range list {
		r, err := identity.OpenRevocation(raw)
		if err != nil {
			return err
		}
		if d.revoked.isNews(r) && d.revoked.allow(peer, time.Now()) {
			_ = d.Spread(ctx, raw)
		}
	}
	return nil
}

// RevocationsTopic is the gossip topic of revocations on a network.
func RevocationsTopic(network string) string {
	return fmt.Sprintf("/gpufair/%s/revocations/1", network)
}

// Run spreads revocations until ctx ends: it exchanges those of both accounts with each peer that connects, and gossips news on the
// topic. The error is nil then. Call it once.
func (d *Directory) Run(ctx context.Context, topic string) error {
	t, err := d.net.Join(topic, identity.MaxRevocation, d.validate)
	if err != nil {
		return fmt.Errorf("join revocations topic: %w", err)
	}
	defer t.Leave() // the network ends: nothing to tell
	d.net.Watch(ctx, func(peer identity.PeerID, up bool) {
		if up {
			d.revoked.enqueue(peer)
		}
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.drain(ctx, t) })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case raw := <-d.revoked.news:
				_ = t.Publish(ctx, raw) // with nobody there, those that connect are told
			}
		}
	})
	for range tellers {
		g.Go(func() error { return d.exchange(ctx) })
	}
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (d *Directory) drain(ctx context.Context, t p2p.Topic) error {
	for {
		raw, _, err := t.Next(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read revocations topic: %w", err)
		}
		_, _ = d.Learn(ctx, raw) // the validator opened it; one that can't be stored counts all the same
	}
}

// validate forwards what is well formed and news. Our own news is published after it was learned, so its own message passes.
func (d *Directory) validate(_ context.Context, from identity.PeerID, data []byte) p2p.Verdict {
	own := from == d.net.Self()
	if !own && !d.revoked.allow(from, time.Now()) {
		return p2p.Ignore
	}
	r, err := identity.OpenRevocation(data)
	if err != nil {
		return p2p.Reject
	}
	if !own && !d.revoked.isNews(r) {
		return p2p.Ignore
	}
	return p2p.Accept
}

// allow takes one message of a forwarding peer's share.
func (s *revocations) allow(peer identity.PeerID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.forward.Get(peer)
	if !ok {
		l = rate.NewLimiter(revocationRate, revocationBurst)
		s.forward.Add(peer, l)
	}
	return l.AllowN(now, 1)
}

func (s *revocations) enqueue(peer identity.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.queue, peer) {
		return
	}
	if len(s.queue) == waitingPeers {
		s.queue = s.queue[1:]
	}
	s.queue = append(s.queue, peer)
	s.nudge()
}

// nudge wakes one teller.
func (s *revocations) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *revocations) next() (peer identity.PeerID, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return peer, false
	}
	peer, s.queue = s.queue[0], s.queue[1:]
	if len(s.queue) > 0 {
		s.nudge()
	}
	return peer, true
}

// exchange tells peers that connected what is known of this account's devices, and hears the same of them.
func (d *Directory) exchange(ctx context.Context) error {
	for {
		peer, ok := d.revoked.next()
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-d.revoked.wake:
			}
			continue
		}
		_ = d.Exchange(ctx, peer) // a peer that does not answer is told when it connects again
	}
}

// Exchange tells peer what is known of this account's devices, and hears what the peer knows of its own account's.
func (d *Directory) Exchange(ctx context.Context, peer identity.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	var a Answer
	if err := p2p.Call(ctx, d.net, peer, d.protocol, Ask{Revocations: d.told()}, &a, maxMessage); err != nil {
		return err
	}
	return d.hear(ctx, peer, a.Revocations)
}
