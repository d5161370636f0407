package renter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// askWithin bounds one question to a provider: what takes it longer, it does beside the answer.
const askWithin = 15 * time.Second

// buy sends the stored order. A lost answer is asked for again, with the same bytes, for as long as the provider may still hold the lease
// for them: after that it has withdrawn it, unpaid, because nobody said Ready.
func (j *job) buy(ctx context.Context) error {
	j.tell(api.RunEvent{Step: api.StepBuy})
	rec := j.record()
	p := negotiate.Purchase{ID: j.id, Offer: j.offer, Accept: j.accept, AcceptRaw: rec.Accept, VoucherRaw: rec.Voucher, Needs: rec.Needs, QuoteRaw: rec.Quote}
	var deal negotiate.Deal
	for start := time.Now(); ; {
		var err error
		deal, err = negotiate.Buy(ctx, j.a.Network, j.a.conf.Network, j.a.Device, p)
		if err == nil {
			break
		}
		if errors.Is(err, p2p.ErrUnreachable) && !errors.Is(err, negotiate.ErrOutcome) {
			return reason.Errorf(reason.ProviderGone, "%v", err) // nothing was sent
		}
		if ctx.Err() != nil || !errors.Is(err, negotiate.ErrOutcome) {
			return err
		}
		if time.Since(start) > work.ReadyIn*time.Second {
			return reason.Errorf(reason.ProviderGone, "no answer to the order for %d s", work.ReadyIn)
		}
		j.log.Info("order without an answer; asking again", "err", err)
	}
	return j.keepLease(ctx, work.Sold{Lease: deal.LeaseRaw, Delegation: deal.DelegationRaw})
}

// keepLease stores a lease that the provider signed, even if it was given up meanwhile, so that the release can be checked against it.
func (j *job) keepLease(ctx context.Context, sold work.Sold) error {
	if _, _, err := j.a.Delegations.Add(sold.Delegation); err != nil { // for people: `peers` names the account
		j.log.Debug("delegation of the provider not remembered", "err", err)
	}
	if err := j.a.Delegations.Dealt(ctx, j.offer.Account); err != nil {
		j.log.Warn("revocations of the provider's other devices not kept", "err", err)
	}
	err := j.update(context.WithoutCancel(ctx), func(r *record) { r.Lease, r.State = sold.Lease, work.Agreed }, func(tx *books.Tx, r *record) error {
		if _, _, err := tx.KeepDelegation(sold.Delegation); err != nil {
			return err
		}
		return r.Bid.free(tx, j.channel()) // the lane's own hold stays
	})
	if err != nil {
		return err
	}
	j.tell(api.RunEvent{Step: api.StepLease})
	return nil
}

// ask sends one question about the lease.
func (j *job) ask(ctx context.Context, q work.Ask) (work.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	q.Lease = j.id
	var status work.Status
	err := p2p.Call(ctx, j.a.Network, j.offer.Device, j.a.protocol(work.ProtoJob), q, &status, work.MaxMessage)
	return status, negotiate.Typed(err)
}

// askAgain is ask that goes on while the provider can't be reached, until ctx ends.
func (j *job) askAgain(ctx context.Context, q work.Ask) (status work.Status, err error) {
	err = j.insist(ctx, transient, func() (err error) {
		status, err = j.ask(ctx, q)
		return err
	})
	return status, err
}

// asksState asks how the lease stands and reports whether it has ended by its provider's word.
func (j *job) asksState(ctx context.Context) bool {
	status, err := j.ask(ctx, work.Ask{Action: work.ActStatus})
	if err == nil {
		err = j.onStatus(ctx, status)
	}
	if err != nil {
		j.log.Debug("state of the lease", "err", err)
	}
	return j.record().State == work.Ended
}

// faults is how many internal errors of a provider in a row are taken for its restart.
const faults = 5

// insist tries f again as long as another try may succeed; a transfer goes on from where the last one was.
func (j *job) insist(ctx context.Context, again func(error) bool, f func() error) error {
	internal := 0
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		start := time.Now()
		err := f()
		if err == nil || !again(err) {
			return err
		}
		var wired *p2p.Error
		if internal++; !errors.As(err, &wired) || wired.Kind != p2p.KindInternal {
			internal = 0
		}
		if internal == faults {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Since(start) > 10*time.Second {
			pause = 250 * time.Millisecond // it worked for a while
		}
		j.log.Debug("trying again", "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// transient reports whether another try may succeed: the line broke, or the provider is restarting. What this machine's own files or the
// provider's bytes are to blame for stays as it is.
func transient(err error) bool {
	for _, own := range []error{
		blob.ErrQuota, blob.ErrHashMismatch, blob.ErrPath, blob.ErrChanged, blob.ErrNotFound, blob.ErrForbidden, wire.ErrFormat, wire.ErrTooLarge,
		identity.ErrSignature, p2p.ErrUnsupported,
	} {
		if errors.Is(err, own) {
			return errors.Is(own, p2p.ErrUnsupported) // which a daemon says that is just starting
		}
	}
	if _, ok := reason.Of(err); ok || localFault(err) || errBooks(err) {
		return false
	}
	var wired *p2p.Error
	if errors.As(err, &wired) {
		switch wired.Kind {
		case p2p.KindBusy, p2p.KindTimeout, p2p.KindUnavailable, p2p.KindInternal:
			return true
		}
		return false
	}
	return true
}

// localFault reports whether this machine's disk is to blame: full, or not to be written.
func localFault(err error) bool {
	var path *fs.PathError
	var link *os.LinkError
	return errors.As(err, &path) || errors.As(err, &link)
}

// badStatus is a word of the provider that can't be true.
func badStatus(format string, args ...any) error {
	return fmt.Errorf("provider's status: "+format+": %w", append(args, wire.ErrFormat)...)
}
