package renter

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// prepare brings the job to running: it acknowledges the lease, pushes what the provider lacks and starts. Each step may be repeated,
// so after a restart of either side it simply runs again.
func (j *job) prepare(ctx context.Context) error {
	switch rec := j.record(); rec.State {
	case work.Agreed, work.Preparing:
	default:
		return nil // it runs or has run
	}
	if ctx.Err() != nil {
		return ctx.Err() // released: nothing is acknowledged any more
	}
	if err := j.acknowledge(ctx); err != nil {
		return err
	}
	spec := j.record().Spec
	status, err := j.askAgain(ctx, work.Ask{Action: work.ActPrepare, Spec: &spec})
	for pushes := 0; err == nil && len(status.Missing) > 0; pushes++ {
		if pushes == maxPushes {
			return fmt.Errorf("push image and inputs: the provider still lacks %d of them", len(status.Missing))
		}
		if err = j.push(ctx, status.Missing); err != nil {
			return err
		}
		status, err = j.askAgain(ctx, work.Ask{Action: work.ActStatus})
	}
	if err != nil {
		return err
	}
	return j.startJob(ctx)
}

// maxPushes bounds how often a provider may say that it lacks something: the manifest first, what it names then, and what it lost since.
const maxPushes = 8

func (j *job) acknowledge(ctx context.Context) error {
	rec := j.record()
	if rec.Ready {
		return nil
	}
	dev := j.a.Device
	ready, err := dev.Seal(market.DomainReady, market.Ready{
		Header: dev.Header(market.Version), Delegation: dev.DelegationHash(), Lease: j.id, Hash: wire.Sum("", rec.Lease),
	})
	if err != nil {
		return err
	}
	if _, err := j.askAgain(ctx, work.Ask{Action: work.ActReady, Signed: ready}); err != nil {
		return err
	}
	return j.update(ctx, func(r *record) { r.Ready = true }, nil)
}

// startJob asks the provider to start the job until it does: the lane must be open first, which happens beside this. That it was asked is
// stored before: until then no claim of a running job is believed.
func (j *job) startJob(ctx context.Context) error {
	step := api.StepStart
	if j.record().Spec.Source != "" {
		step = api.StepPull
	}
	j.tell(api.RunEvent{Step: step})
	if err := j.update(ctx, func(r *record) { r.Asked = true }, nil); err != nil {
		return err
	}
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		_, err := j.askAgain(ctx, work.Ask{Action: work.ActStart})
		if err == nil || !reason.Is(err, reason.NotPreparing) {
			return err
		}
		if state := j.record().State; state != work.Agreed && state != work.Preparing {
			return nil // the lane has told how it went on
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// push sends what the provider lacks of image and inputs.
func (j *job) push(ctx context.Context, missing []wire.Hash) error {
	rec := j.record()
	image, inputs, err := j.files.get(ctx, j.a.Images, rec)
	if err != nil {
		return err
	}
	client := j.blobs()
	sizes := map[wire.Hash]int64{}
	for _, b := range image.Blobs() {
		sizes[b.Hash] = b.Size
	}
	var total, before int64
	for _, h := range missing {
		total += sizes[h]
	}
	for _, h := range missing {
		what, push, src := "image", client.Push, blob.Source(image)
		if inputs != nil && h == rec.Spec.Inputs {
			what, push, src = "inputs", client.PushTree, inputs
		}
		progress := func(done, size int64) {
			j.tell(api.RunEvent{Step: api.StepPush, Detail: what, Done: before + done, Total: max(total, before+size)})
		}
		if err := j.insist(ctx, transient, func() error { return push(ctx, src, h, progress) }); err != nil {
			return fmt.Errorf("push %s to the provider: %w", what, err)
		}
		before += sizes[h]
	}
	return nil
}
