package renter

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	if err := j.acknowledge(ctx); err != nil {
		return err
	}
	spec := j.record().Spec
	status, err := j.askAgain(ctx, work.Ask{Action: work.ActPrepare, Spec: &spec})
	for err == nil && len(status.Missing) > 0 {
		if err = j.push(ctx, status.Missing); err != nil {
			return err
		}
		status, err = j.askAgain(ctx, work.Ask{Action: work.ActStatus})
	}
	if err != nil {
		return err
	}
	j.tell(api.RunEvent{Step: api.StepStart})
	return j.startJob(ctx)
}

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

// startJob asks the provider to start the job until it does: the lane must be open first, which happens beside this.
func (j *job) startJob(ctx context.Context) error {
	for {
		status, err := j.askAgain(ctx, work.Ask{Action: work.ActStart})
		if err == nil || !reason.Is(err, reason.NotPreparing) || j.ending() || j.record().State != work.Preparing {
			if err == nil && status.State == work.Ended {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.stop:
			return err
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// push sends what the provider lacks of image and inputs.
func (j *job) push(ctx context.Context, missing []wire.Hash) error {
	if err := j.openFiles(ctx); err != nil {
		return err
	}
	client := blob.Client{Network: j.a.Network, Protocol: j.a.protocol(work.ProtoBlob), Peer: j.offer.Device, Lease: wire.Hash(j.id)}
	rec := j.record()
	sizes := map[wire.Hash]int64{}
	for _, b := range j.image.Blobs() {
		sizes[b.Hash] = b.Size
	}
	var total, before int64
	for _, h := range missing {
		total += sizes[h]
	}
	for _, h := range missing {
		what, push, src := "image", client.Push, blob.Source(j.image)
		if h == rec.Spec.Inputs {
			what, push, src = "inputs", client.PushTree, j.inputs
		}
		progress := func(done, size int64) {
			j.tell(api.RunEvent{Step: api.StepPush, Detail: what, Done: before + done, Total: max(total, before+size)})
		}
		if err := j.insist(ctx, func() error { return push(ctx, src, h, progress) }); err != nil {
			return fmt.Errorf("push %s to the provider: %w", what, err)
		}
		before += sizes[h]
	}
	return nil
}

// insist tries a transfer again while the line breaks: each try goes on from where the last one was.
func (j *job) insist(ctx context.Context, f func() error) error {
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := f()
		if err == nil || !transient(err) {
			return err
		}
		j.log.Debug("transfer broke; going on", "err", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.stop:
			return err
		case <-time.After(pause):
		}
	}
}

// openFiles opens image and inputs again after a restart; they must be what was ordered.
func (j *job) openFiles(ctx context.Context) error {
	rec := j.record()
	if j.image == nil {
		image, err := j.a.Images.Open(ctx, rec.ImagePath, rec.Platform)
		if err != nil {
			return err
		}
		j.image = image
		if image.Manifest() != rec.Spec.Image {
			return fmt.Errorf("image %s: it changed since the job was ordered: order it again", rec.ImagePath)
		}
	}
	if j.inputs == nil && rec.InputPath != "" {
		inputs, err := packInput(ctx, rec.InputPath)
		if err != nil {
			return err
		}
		j.inputs = inputs
		if inputs.ID != rec.Spec.Inputs {
			return fmt.Errorf("input %s: it changed since the job was ordered: order it again", rec.InputPath)
		}
	}
	return nil
}

// packInput packs a folder, or a single file as a folder that holds it.
func packInput(ctx context.Context, path string) (*blob.Packed, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	if info.IsDir() {
		return blob.Pack(ctx, path, blob.PackOptions{})
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("input %s: it is neither a folder nor a file", path)
	}
	dir, err := os.MkdirTemp("", "gpufair-input-")
	if err != nil {
		return nil, fmt.Errorf("input %s: %w", path, err)
	}
	defer os.RemoveAll(dir) // the pack holds the files open by their folder
	if err := copyFile(path, filepath.Join(dir, filepath.Base(path)), info.Mode().Perm()); err != nil {
		return nil, fmt.Errorf("input %s: %w", path, err)
	}
	return blob.Pack(ctx, dir, blob.PackOptions{})
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
