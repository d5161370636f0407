package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/provider/sandbox"
)

// ready takes the renter's acknowledgement of the lease; the free minutes of preparing start.
func (k *keeper) ready(ctx context.Context, raw []byte) error {
	r, err := market.OpenReady(raw)
	if err != nil {
		return err
	}
	if err := market.CheckReady(r, k.accept, k.rec.Lease); err != nil {
		return err
	}
	if k.rec.State != work.Agreed {
		return nil // a repeat
	}
	return k.move(ctx, work.Preparing, reason.Reason{}, func(rec *record) { rec.Ready = time.Now().UnixMilli() })
}

// prepare takes the job's spec; what is missing of image and inputs is then asked with missing.
func (k *keeper) prepare(ctx context.Context, spec work.Spec) error {
	if k.rec.State != work.Preparing || k.busy != "" {
		return reason.Errorf(reason.NotPreparing, "the lease is %s", k.rec.State)
	}
	return k.update(ctx, func(r *record) { r.Spec = &spec }, nil)
}

// missing lists the blobs that the renter has to push before the job can start.
func (k *keeper) missing(ctx context.Context) ([]wire.Hash, error) {
	if k.rec.Spec == nil || k.rec.State != work.Preparing {
		return nil, nil
	}
	var out []wire.Hash
	if _, err := k.a.runtime.Image(ctx, digest(k.rec.Spec.Image)); errors.Is(err, ErrNotFound) {
		lack, err := k.a.lackOfImage(ctx, k.rec.Spec.Image)
		if err != nil {
			return nil, err
		}
		out = append(out, lack...)
	} else if err != nil {
		return nil, err
	}
	if in := k.rec.Spec.Inputs; !in.IsZero() {
		ok, err := k.a.hasTree(ctx, in)
		if err != nil {
			return nil, err
		}
		if !ok {
			out = append(out, in)
		}
	}
	return out, nil
}

// start begins to start the job: unpacking takes as long as the image is large, so it runs beside the keeper.
func (k *keeper) start(ctx context.Context) error {
	switch {
	case k.rec.State == work.Running || k.busy == "starting":
		return nil // a repeat
	case k.rec.State != work.Preparing || k.rec.Spec == nil:
		return reason.Errorf(reason.NotPreparing, "the lease is %s and has no job yet", k.rec.State)
	case k.lane == nil:
		return reason.Errorf(reason.NotPreparing, "no lane is open: without beats and vouchers no meter runs")
	}
	lack, err := k.missing(ctx)
	if err != nil {
		return err
	}
	if len(lack) > 0 {
		return reason.Errorf(reason.NotPreparing, "%d blobs of image and inputs are missing", len(lack))
	}
	k.busy, k.progress = "starting", "unpacking"
	rec := k.rec // a copy: the keeper goes on
	go func() {
		folders, err := k.a.launch(ctx, k.id, rec)
		k.post(func() { k.launched(ctx, folders, err) })
	}()
	return nil
}

// launch makes a lease's container and runs it.
func (a *Agent) launch(ctx context.Context, lease market.LeaseID, rec record) (Folders, error) {
	id, spec := lease.String(), *rec.Spec
	image, err := a.importImage(ctx, spec.Image, a.diskBytes(rec))
	if err != nil {
		return Folders{}, err
	}
	folders, err := a.mounts.Make(ctx, MountRequest{ID: id, MaxBytes: a.diskBytes(rec)})
	if err != nil {
		return folders, fmt.Errorf("folders of lease %s: %w", lease.Short(), err)
	}
	if !spec.Inputs.IsZero() {
		if err := a.unpackInputs(ctx, spec.Inputs, folders.In); err != nil {
			return folders, err
		}
	}
	oci, err := sandbox.Spec(sandbox.Job{
		Lease: id, Work: spec, Policy: a.policy(rec),
		Image:   sandbox.Image{Args: image.Args, Env: image.Env, Dir: image.Dir, User: image.User},
		Folders: sandbox.Folders{In: folders.In, Out: folders.Out, Scratch: folders.Scratch, Record: folders.Record, Init: a.initPath},
	})
	if err != nil {
		return folders, reason.Errorf(reason.StartFailed, "%v", err)
	}
	b, err := json.Marshal(oci)
	if err != nil {
		return folders, fmt.Errorf("spec of lease %s: %w", lease.Short(), err)
	}
	created, err := a.runtime.Create(ctx, CreateRequest{
		ID: id, Image: image.Digest, Spec: b, Record: folders.Record,
		Labels: map[string]string{LabelLease: id, LabelRenter: rec.Renter.String()},
		Logs:   LogRequest{Path: logDir(folders), MaxBytes: a.config().LogBytes},
	})
	if err != nil {
		return folders, err
	}
	if err := a.network.Wire(ctx, WireRequest{ID: id, PID: created.PID, Egress: "none"}); err != nil {
		return folders, fmt.Errorf("network of lease %s: %w", lease.Short(), err)
	}
	return folders, a.runtime.Start(ctx, id)
}

// Labels of every container that an agent makes, for its sweeper and for people.
const (
	LabelLease  = "gpufair.lease"
	LabelRenter = "gpufair.renter"
)

func logDir(f Folders) string { return filepath.Join(f.State, "log") }

// policy is what the lots of the leased devices give a job.
func (a *Agent) policy(rec record) sandbox.Policy {
	p := sandbox.Policy{OpenFiles: openFiles}
	for _, d := range rec.Devices {
		lot, ok := a.config().lot(d)
		if !ok {
			continue
		}
		p.Cores = append(p.Cores, lot.Cores...)
		p.MemoryBytes += int64(lot.MemoryMiB) << 20
		p.Pids += lot.Pids
	}
	if want := int64(rec.Needs.MemoryMiB) << 20; want > 0 && want < p.MemoryBytes {
		p.MemoryBytes = want
	}
	return p
}

// openFiles is what a job's process may have open: what most distributions give a login.
const openFiles = 16384

// diskBytes is what a job may write, and what its unpacked image may take.
func (a *Agent) diskBytes(rec record) int64 {
	var mib uint64
	for _, d := range rec.Devices {
		if lot, ok := a.config().lot(d); ok {
			mib += lot.DiskMiB
		}
	}
	if want := rec.Needs.DiskMiB; want > 0 && want < mib {
		mib = want
	}
	return int64(mib) << 20
}

// launched is the keeper's turn after launch: the meter starts, or the lease ends.
func (k *keeper) launched(ctx context.Context, folders Folders, err error) {
	k.rec.Folders = folders // stored with the next change
	k.busy, k.progress = "", ""
	if k.rec.State == work.Ended { // released meanwhile
		k.cleanUp(ctx)
		return
	}
	if err != nil {
		k.log.Warn("start job", "err", err)
		k.finish(ctx, startReason(err))
		return
	}
	k.watchContainer(ctx)
	if err := k.meter.Start(k.accept.Rate, k.accept.Quantity, k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	err = k.move(ctx, work.Running, reason.Reason{}, func(r *record) { r.Started = time.Now().UnixMilli() })
	if err != nil {
		k.log.Error("start job", "err", err)
		k.finish(ctx, reason.New(reason.StartFailed, "the provider could not store the start"))
		return
	}
	k.lastTick = time.Now()
	k.send(false)
}

// startReason is what the renter is told of a failed start.
func startReason(err error) reason.Reason {
	if r, ok := reason.Of(err); ok {
		return r
	}
	switch {
	case errors.Is(err, ErrCommand):
		return reason.New(reason.CommandMissing, "%v", err)
	case errors.Is(err, ErrImage):
		return reason.New(reason.ImageInvalid, "%v", err)
	case errors.Is(err, ErrNoSpace), errors.Is(err, blob.ErrQuota):
		return reason.New(reason.DiskFull, "no room for image and inputs")
	case errors.Is(err, ErrUnavailable):
		return reason.New(reason.RuntimeDown, "the container runtime does not answer")
	}
	return reason.New(reason.StartFailed, "the runtime could not start the job")
}

// watchContainer reports the container's end to the keeper.
func (k *keeper) watchContainer(ctx context.Context) {
	go func() {
		c, err := k.a.runtime.Wait(ctx, k.id.String())
		if ctx.Err() != nil {
			return // the daemon stops; the job runs on
		}
		k.post(func() { k.exited(ctx, c, err) })
	}()
}

// exited is the keeper's turn after the container has stopped, or vanished: the charge ends at that time, not at its discovery.
func (k *keeper) exited(ctx context.Context, c Container, err error) {
	if k.rec.State == work.Ended {
		return
	}
	at, now := k.now(), time.Now()
	if !c.ExitedAt.IsZero() && c.ExitedAt.Before(now) {
		at -= min(at, uint64(now.Sub(c.ExitedAt)/time.Millisecond))
	}
	if merr := k.meter.Stop(at); merr != nil {
		k.log.Error("meter", "err", merr)
	}
	why := k.rec.Reason
	switch {
	case err != nil || c.State == ContainerLost || c.Exit == nil:
		why = reason.New(reason.RuntimeLost, "the container vanished")
	case c.Exit.OOM:
		why = reason.New(reason.OutOfMemory, "over %d MiB", k.a.policy(k.rec).MemoryBytes>>20)
	case k.rec.State == work.Stopping: // asked to: the reason stands
	default:
		why = reason.New(reason.Completed, "")
	}
	if c.Exit != nil {
		k.rec.Exit = &market.Exit{Code: int32(c.Exit.Code), Signal: c.Exit.Signal, OOM: c.Exit.OOM}
	}
	k.finish(ctx, why)
}

// importImage hands the pushed image to the runtime, through a pipe, and drops the pushed copy.
func (a *Agent) importImage(ctx context.Context, manifest wire.Hash, limit int64) (ImageInfo, error) {
	image, err := a.runtime.Image(ctx, digest(manifest))
	if err == nil || !errors.Is(err, ErrNotFound) {
		return image, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return ImageInfo{}, fmt.Errorf("import image %s: %w", manifest.Short(), err)
	}
	defer r.Close()
	wrote := make(chan error, 1)
	go func() {
		err := a.writeArchive(ctx, w, manifest)
		wrote <- errors.Join(err, w.Close())
	}()
	image, err = a.runtime.Import(ctx, ImportRequest{Digest: digest(manifest), MaxBytes: max(limit, minImage)}, r)
	r.Close() // a writer that still writes gets EPIPE
	if werr := <-wrote; err == nil && werr != nil {
		err = fmt.Errorf("import image %s: %w", manifest.Short(), werr)
	}
	if err != nil {
		return ImageInfo{}, err
	}
	a.dropImageBlobs(ctx, manifest)
	return image, nil
}

// minImage is what an unpacked image may always have: less than the smallest distribution is no image.
const minImage = 256 << 20

func digest(h wire.Hash) string { return "sha256:" + h.String() }
