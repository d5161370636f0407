package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
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
	return k.move(ctx, work.Preparing, reason.Reason{}, func(rec *record) { rec.Ready, rec.ReadySigned = time.Now().UnixMilli(), raw })
}

// prepare takes the job's spec; what is missing of image and inputs is then asked with lack.
func (k *keeper) prepare(ctx context.Context, spec work.Spec) error {
	if k.rec.State != work.Preparing || k.busy != "" {
		return reason.Errorf(reason.NotPreparing, "the lease is %s", k.rec.State)
	}
	if err := k.a.config().mayPull(spec); err != nil {
		return err
	}
	return k.update(ctx, func(r *record) { r.Spec = &spec }, nil)
}

// lack lists the blobs that the renter has to push before the job can start, and those that must be pulled from the image's registry. It asks
// the runtime and reads manifests, so it is not for the keeper's goroutine.
func (k *keeper) lack(ctx context.Context) (push, pull []wire.Hash, err error) {
	var spec *work.Spec
	err = k.do(ctx, func() error {
		if k.rec.State == work.Preparing && k.busy == "" {
			spec = k.rec.Spec
		}
		return nil
	})
	if err != nil || spec == nil {
		return nil, nil, err
	}
	within, cancel := context.WithTimeout(ctx, choreIn)
	defer cancel()
	imported, err := k.a.imported(within, spec.Image)
	if err != nil {
		return nil, nil, err
	}
	image, inputs, err := k.stage.missing(ctx, *spec, imported)
	if spec.Source != "" {
		return inputs, image, err
	}
	return append(image, inputs...), nil, err
}

// lackToPush is lack for the renter: what is to be pulled is on its way when it returns.
func (k *keeper) lackToPush(ctx context.Context) ([]wire.Hash, error) {
	push, pull, err := k.lack(ctx)
	if err == nil && len(pull) > 0 {
		err = k.pull(ctx)
	}
	return push, err
}

// start begins to start the job: unpacking takes as long as the image is large, so it runs beside the keeper.
func (k *keeper) start(ctx context.Context) error {
	switch {
	case k.rec.State == work.Running || k.busy == "starting":
		return nil // a repeat
	case k.pulling:
		return reason.Errorf(reason.NotPreparing, "%s", k.progress)
	case k.rec.State != work.Preparing || k.rec.Spec == nil || k.busy != "" || k.ending != nil:
		return reason.Errorf(reason.NotPreparing, "the lease is %s and has no job yet", k.rec.State)
	case k.lane == nil:
		return reason.Errorf(reason.NotPreparing, "no lane is open: without beats and vouchers no meter runs")
	}
	k.busy, k.progress = "starting", "unpacking"
	rec := k.rec // a copy: the keeper goes on
	starting, halt := context.WithCancel(ctx)
	k.halt = halt
	k.beside(func() {
		folders, err := k.a.launch(starting, k, rec)
		halt()
		k.post(func() { k.launched(ctx, folders, err) })
	})
	return nil
}

// launch makes a lease's container and runs it.
func (a *Agent) launch(ctx context.Context, k *keeper, rec record) (Folders, error) {
	id, spec := k.id.String(), *rec.Spec
	image, err := a.importImage(ctx, k.stage, spec.Image, rec.diskBytes())
	if err != nil {
		return Folders{}, err
	}
	info, err := a.runtime.Info(ctx) // not what was last seen: a job must not lose its user ids since one look failed
	if err != nil {
		return Folders{}, fmt.Errorf("container runtime: %w", err)
	}
	limits := policy(rec, info)
	owner := limits.IDs().Base
	inputs, err := k.inputBytes(ctx, spec)
	if err != nil {
		return Folders{}, err
	}
	folders, err := a.mounts.Make(ctx, MountRequest{ID: id, MaxBytes: rec.diskBytes() + min(inputs, rec.diskBytes()), UID: owner, GID: owner})
	if err != nil {
		return folders, fmt.Errorf("folders of lease %s: %w", k.id.Short(), err)
	}
	if !spec.Inputs.IsZero() {
		store, err := k.stage.open()
		if err != nil {
			return folders, err
		}
		if err := unpackInputs(ctx, store, spec.Inputs, folders.In, rec.diskBytes()); err != nil {
			return folders, err
		}
	}
	oci, err := sandbox.Spec(sandbox.Job{
		Lease: id, Work: spec, Policy: limits,
		Image:   sandbox.Image{Args: image.Args, Env: image.Env, Dir: image.Dir, User: image.User},
		Folders: sandbox.Folders{In: folders.In, Out: folders.Out, Scratch: folders.Scratch, Record: folders.Record, Init: a.initPath, Resolv: a.resolvOf(rec)},
	})
	if err != nil {
		return folders, reason.Errorf(reason.StartFailed, "%v", err)
	}
	b, err := json.Marshal(oci)
	if err != nil {
		return folders, fmt.Errorf("spec of lease %s: %w", k.id.Short(), err)
	}
	created, err := a.runtime.Create(ctx, CreateRequest{
		ID: id, Image: image.Digest, Spec: b, Record: folders.Record, Root: folders.Root,
		Labels: map[string]string{LabelLease: id, LabelRenter: rec.Renter.String()},
		Logs:   LogRequest{Path: logDir(folders), MaxBytes: a.config().LogBytes},
	})
	if err != nil {
		return folders, err
	}
	if err := a.network.Wire(ctx, a.wireRequest(id, created.PID, rec)); err != nil {
		return folders, fmt.Errorf("network of lease %s: %w", k.id.Short(), err)
	}
	return folders, a.runtime.Start(ctx, id)
}

// inputBytes is what the inputs of a job come to: they lie on the lease's disk beside what the job may write.
func (k *keeper) inputBytes(ctx context.Context, spec work.Spec) (int64, error) {
	if spec.Inputs.IsZero() {
		return 0, nil
	}
	store, err := k.stage.open()
	if err != nil {
		return 0, err
	}
	raw, err := readSmall(ctx, store, spec.Inputs, blob.MaxManifest)
	if err != nil {
		return 0, fmt.Errorf("inputs: %w", err)
	}
	m, err := blob.DecodeManifest(raw)
	if err != nil {
		return 0, fmt.Errorf("inputs: %w", err)
	}
	return m.Bytes(), nil
}

// wireRequest is the network that the lease was sold with; what the owner denies is that of now.
func (a *Agent) wireRequest(id string, pid int, rec record) WireRequest {
	if rec.EgressRate == 0 {
		return WireRequest{ID: id, PID: pid, Egress: EgressNone}
	}
	return WireRequest{ID: id, PID: pid, Egress: EgressInternet, Rate: rec.EgressRate, Cap: rec.EgressCap, Deny: a.config().Egress.Deny}
}

// resolvOf is the resolv.conf of a job that can look names up.
func (a *Agent) resolvOf(rec record) string {
	if rec.EgressRate == 0 {
		return ""
	}
	return a.resolv
}

// Labels of every container that an agent makes, for its sweeper and for people.
const (
	LabelLease  = "gpufair.lease"
	LabelRenter = "gpufair.renter"
)

func logDir(f Folders) string { return filepath.Join(f.State, "log") }

// policy is what a lease gives its job, on a runtime that can do what info says.
func policy(rec record, info RuntimeInfo) sandbox.Policy {
	return sandbox.Policy{
		OpenFiles: openFiles, Cores: rec.Cores, MemoryBytes: rec.memoryBytes(), Pids: rec.Pids, UserNamespace: info.UserNamespace,
	}
}

// openFiles is what a job's process may have open: what most distributions give a login.
const openFiles = 16384

// launched is the keeper's turn after launch: the meter starts, or the lease ends.
func (k *keeper) launched(ctx context.Context, folders Folders, err error) {
	if folders.State != "" {
		k.rec.Folders = folders // stored with the next change
	}
	k.busy, k.progress, k.halt = "", "", nil
	switch {
	case k.rec.State == work.Ended: // released meanwhile
		k.cleanUp(ctx)
		return
	case k.ending != nil: // and the ledger has yet to take it
		k.killed = false
		return
	case ctx.Err() != nil: // the daemon stops: the next start starts it anew
		return
	case err != nil:
		k.log.Warn("start job", "err", err)
		k.finish(ctx, startReason(err))
		return
	}
	if err := k.meter.Start(k.accept.Rate, k.accept.Quantity, k.now()); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.alive = k.now()
	k.ev.begin(time.Now())
	err = k.move(ctx, work.Running, reason.Reason{}, func(r *record) { r.Started = time.Now().UnixMilli() })
	if err != nil {
		k.log.Error("start job", "err", err)
		k.finish(ctx, reason.New(reason.StartFailed, "the provider could not store the start"))
		return
	}
	k.watchContainer(ctx)
	k.dropStage()
	k.lastTick = time.Now()
	k.send(ctx, false)
}

// dropStage frees what was pushed, beside the keeper.
func (k *keeper) dropStage() {
	k.beside(func() {
		if err := k.stage.drop(); err != nil {
			k.log.Warn("pushed blobs not dropped", "err", err)
		}
	})
}

// startReason is what the renter is told of a failed start.
func startReason(err error) reason.Reason {
	if r, ok := reason.Of(err); ok {
		return r
	}
	switch {
	case errors.Is(err, ErrCommand):
		return reason.New(reason.CommandMissing, "%s", after(err, ErrCommand))
	case errors.Is(err, ErrImage):
		return reason.New(reason.ImageInvalid, "%s", after(err, ErrImage))
	case errors.Is(err, ErrNoSpace), errors.Is(err, blob.ErrQuota):
		return reason.New(reason.DiskFull, "no room for image and inputs")
	case errors.Is(err, ErrUnavailable):
		return reason.New(reason.RuntimeDown, "the container runtime does not answer")
	}
	return reason.New(reason.StartFailed, "the runtime could not start the job")
}

// after is what err says after its kind, which the reason's code says already; before it stand ids that the renter does not know.
func after(err, kind error) string {
	said := err.Error()
	if i := strings.LastIndex(said, kind.Error()); i >= 0 {
		return strings.TrimPrefix(said[i+len(kind.Error()):], ": ")
	}
	return ""
}

// watchContainer reports the container's end to the keeper.
func (k *keeper) watchContainer(ctx context.Context) {
	k.beside(func() {
		for {
			c, err := k.a.runtime.Wait(ctx, k.id.String())
			if ctx.Err() != nil {
				return // the daemon stops; the job runs on
			}
			if err == nil || errors.Is(err, ErrNotFound) {
				over := k.overDisk(ctx) // whatever it wrote since the last count
				k.post(func() { k.exited(ctx, c, err, over) })
				return
			}
			k.log.Warn("wait for the job's end", "err", err) // it may well run: asking again costs nothing
			select {
			case <-ctx.Done():
				return
			case <-time.After(work.BeatInterval * time.Second):
			}
		}
	})
}

// exited is the keeper's turn after the container has stopped, or vanished: the charge ends at that time, not at its discovery. over says
// by what it is over its disk, or nothing.
func (k *keeper) exited(ctx context.Context, c Container, err error, over string) {
	if ctx.Err() != nil {
		return // the daemon stops; the next start finds it stopped
	}
	if k.rec.State == work.Ended || k.ending != nil {
		return
	}
	k.stopMeter(k.exitTime(c, err))
	why := k.rec.Reason
	switch {
	case err != nil || c.State == ContainerLost || c.Exit == nil:
		why = reason.New(reason.RuntimeLost, "the container vanished")
	case c.Exit.OOM:
		why = reason.New(reason.OutOfMemory, "over %d MiB", k.rec.memoryBytes()>>20)
	case k.rec.State == work.Stopping: // asked to: the reason stands
	case over != "":
		why = reason.New(reason.ResourcesExceeded, "%s", over)
	default:
		why = reason.New(reason.Completed, "")
	}
	if c.Exit != nil {
		k.rec.Exit = &market.Exit{Code: int32(c.Exit.Code), Signal: c.Exit.Signal, OOM: c.Exit.OOM}
	}
	k.finish(ctx, why)
}

// exitTime is when the job ended, on the meter's clock. The runtime tells it by the wall clock, which may have stepped: it lies between
// the last time that the job was known to run and now. A container that vanished without a word ended right after the former.
func (k *keeper) exitTime(c Container, err error) uint64 {
	now := k.now()
	if err != nil || c.ExitedAt.Unix() <= 0 {
		return min(k.alive, now)
	}
	ago := max(time.Since(c.ExitedAt), 0) // by the wall clock: the runtime's time has no other
	return max(now-min(now, uint64(ago/time.Millisecond)), min(k.alive, now))
}

// stopMeter ends the charge at a time of the meter's clock, within the term.
func (k *keeper) stopMeter(at uint64) {
	if err := k.meter.Stop(at); err != nil {
		k.log.Error("meter", "err", err)
	}
	k.capMeter()
}
