package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

const (
	runtimeName = "io.containerd.runc.v2"
	// labelRecord keeps CreateRequest.Record for the process that adopts the container.
	labelRecord = "gpufair/record"
	// forkTries is how often a container is made anew when the machine has no process to spare for a moment, a second apart at most.
	forkTries = 5
	// endIn bounds killing and removing, so that neither an unkillable process nor a dead shim holds a caller for ever.
	endIn = 30 * time.Second
	// startIn is how long init may take to execute the command on a busy machine before Start stops looking and trusts it.
	startIn = 20 * time.Second
)

// Create implements provider.Runtime. It adds to the spec the seccomp profile (containerd's default, made for the spec's capabilities) where it has none, the
// cgroup's path, the limits of huge pages that this host knows, and the numbers of a user given by name.
func (c *Client) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	ctx = c.with(ctx)
	spec, uri, err := c.checkCreate(req)
	if err != nil {
		return provider.Created{}, fmt.Errorf("create container %s: %w", req.ID, err)
	}
	unlock, err := c.making.lock(ctx, req.ID)
	if err != nil {
		return provider.Created{}, fmt.Errorf("create container %s: %w", req.ID, err)
	}
	defer unlock()
	if old, err := c.task(ctx, req.ID); err == nil {
		return provider.Created{PID: int(old.Pid())}, nil // made by a call whose answer was lost
	} else if !errdefs.IsNotFound(err) {
		return provider.Created{}, c.fail(err, "create container %s", req.ID)
	}
	if err := c.remove(ctx, req.ID); err != nil { // what a call that was cut off left behind
		return provider.Created{}, err
	}
	img, err := c.client.GetImage(ctx, imageName(req.Image))
	if err != nil {
		return provider.Created{}, c.fail(err, "create container %s: image %s", req.ID, req.Image)
	}
	pid, err := c.make(ctx, req, img, spec, uri)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), endIn)
		defer cancel()
		return provider.Created{}, errors.Join(c.fail(err, "create container %s", req.ID), c.remove(clean, req.ID))
	}
	return provider.Created{PID: pid}, nil
}

// make does the work of Create; what it leaves behind when it fails, remove removes.
func (c *Client) make(ctx context.Context, req provider.CreateRequest, img containerd.Image, spec *specs.Spec, uri *url.URL) (int, error) {
	root, release, err := c.rootfs(ctx, req.ID, img, req.Root, spec.Linux.UIDMappings)
	if err != nil {
		return 0, err
	}
	defer release()
	labels := map[string]string{labelRecord: req.Record}
	maps.Copy(labels, req.Labels)
	ct, err := c.client.NewContainer(ctx, req.ID, containerd.WithContainerLabels(labels),
		containerd.WithRuntime(runtimeName, &options.Options{Root: c.config.RuntimeRoot}),
		containerd.WithSpec(spec, withUser, withSeccomp))
	if err != nil {
		return 0, err
	}
	task, err := newTask(ctx, ct, cio.LogURI(uri), containerd.WithRootFS(root))
	if err != nil {
		return 0, err
	}
	return int(task.Pid()), nil
}

// checkCreate refuses what can't become a container and completes the spec.
func (c *Client) checkCreate(req provider.CreateRequest) (*specs.Spec, *url.URL, error) {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,75}$`).MatchString(req.ID) { // containerd's own limit is 76
		return nil, nil, fmt.Errorf("the id is not 1 to 76 of a-z, 0-9 and -: %w", provider.ErrRequest)
	}
	if !filepath.IsAbs(req.Record) {
		return nil, nil, fmt.Errorf("record folder %q is not absolute: %w", req.Record, provider.ErrRequest)
	}
	uri, err := loggerURI(c.config.Logger, req.Logs)
	if err != nil {
		return nil, nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(req.Spec, &spec); err != nil {
		return nil, nil, fmt.Errorf("spec: %w: %w", provider.ErrRequest, err)
	}
	if spec.Linux == nil || spec.Process == nil || spec.Process.Capabilities == nil || spec.Root == nil {
		return nil, nil, fmt.Errorf("spec: no Linux process with capabilities and a root: %w", provider.ErrRequest)
	}
	for _, dir := range []string{req.Root.Upper, req.Root.Work, req.Root.Lower} {
		if !filepath.IsAbs(dir) || strings.ContainsAny(dir, ",:\\") { // which mean something in overlay's options
			return nil, nil, fmt.Errorf("folder %q of the root file system is not absolute, or has a comma, colon or backslash: %w", dir, provider.ErrRequest)
		}
	}
	if spec.Linux.Resources == nil {
		return nil, nil, fmt.Errorf("spec: no limits: %w", provider.ErrRequest)
	}
	spec.Linux.Resources.HugepageLimits = c.cgroups.noHugepages("/sys/kernel/mm/hugepages")
	spec.Linux.CgroupsPath = cgroupPath(c.config.Namespace, req.ID)
	return &spec, uri, nil
}

// withUser replaces a user's name by its numbers, from the image's own passwd and group.
func withUser(ctx context.Context, client oci.Client, ct *containers.Container, s *oci.Spec) error {
	name := s.Process.User.Username
	if name == "" {
		return nil
	}
	s.Process.User.Username = ""
	image := *ct // the container itself has no snapshot, see rootfs
	image.Snapshotter, image.SnapshotKey = snapshotter, ct.ID
	if err := oci.WithUser(name)(ctx, client, &image, s); err != nil {
		return fmt.Errorf("user %q: the image does not know it: %w: %w", name, provider.ErrRequest, err)
	}
	if ids := s.Linux.UIDMappings; len(ids) > 0 && max(s.Process.User.UID, s.Process.User.GID) >= ids[0].Size {
		return fmt.Errorf("user %q: it is id %d:%d, and a job has ids up to %d: %w", name, s.Process.User.UID, s.Process.User.GID, ids[0].Size-1, provider.ErrRequest)
	}
	return nil
}

// withSeccomp gives a spec that has no profile containerd's default one.
func withSeccomp(ctx context.Context, client oci.Client, ct *containers.Container, s *oci.Spec) error {
	if s.Linux.Seccomp != nil {
		return nil
	}
	return seccomp.WithDefaultProfile()(ctx, client, ct, s)
}

// newTask makes the first process, again if the machine had none to spare.
func newTask(ctx context.Context, ct containerd.Container, io cio.Creator, opts ...containerd.NewTaskOpts) (containerd.Task, error) {
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		task, err := ct.NewTask(ctx, io, opts...)
		if err == nil || try == forkTries || !strings.Contains(err.Error(), "resource temporarily unavailable") {
			return task, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

// task loads the task of a container; errors are containerd's.
func (c *Client) task(ctx context.Context, id string) (containerd.Task, error) {
	ct, err := c.client.LoadContainer(ctx, id)
	if err != nil {
		return nil, err
	}
	return ct.Task(ctx, nil) // no attach: the logger has the streams
}

// Start implements provider.Runtime.
func (c *Client) Start(ctx context.Context, id string) error {
	ctx = c.with(ctx)
	ct, err := c.client.LoadContainer(ctx, id)
	if err != nil {
		return c.fail(err, "start container %s", id)
	}
	labels, err := ct.Labels(ctx)
	if err != nil {
		return c.fail(err, "start container %s", id)
	}
	task, err := ct.Task(ctx, nil)
	if err != nil {
		return c.fail(err, "start container %s", id)
	}
	st, err := task.Status(ctx)
	if err != nil {
		return c.fail(err, "start container %s", id)
	}
	if st.Status == containerd.Created {
		if err := task.Start(ctx); err != nil {
			return c.fail(err, "start container %s", id)
		}
	}
	return c.awaitExec(ctx, id, task, labels[labelRecord])
}

// awaitExec waits until init says that the command runs, or that it could not be executed, or is gone.
func (c *Client) awaitExec(ctx context.Context, id string, task containerd.Task, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, startIn)
	defer cancel()
	exit, err := task.Wait(ctx)
	if err != nil {
		return c.fail(err, "start container %s", id)
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for stopped := false; ; {
		if startedIn(dir) {
			return nil
		}
		if r, ok := readExit(dir); ok {
			if r.ExecError != "" {
				return fmt.Errorf("start container %s: %w: %s", id, provider.ErrCommand, r.ExecError)
			}
			return nil
		}
		if stopped {
			return nil // without a word from init: Status tells how
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil
			}
			return fmt.Errorf("start container %s: %w", id, ctx.Err())
		case <-exit:
			stopped = true
		case <-tick.C:
		}
	}
}

// Signal implements provider.Runtime. A job that has ended takes no signal: that is no error.
func (c *Client) Signal(ctx context.Context, req provider.SignalRequest) error {
	ctx = c.with(ctx)
	sig := unix.SignalNum(req.Signal)
	if sig == 0 {
		return fmt.Errorf("signal container %s: %q is not a signal's name, like SIGTERM: %w", req.ID, req.Signal, provider.ErrRequest)
	}
	task, err := c.task(ctx, req.ID)
	if err != nil {
		return c.fail(err, "signal container %s", req.ID)
	}
	var opts []containerd.KillOpts
	if req.All {
		opts = append(opts, containerd.WithKillAll)
	}
	err = task.Kill(ctx, syscall.Signal(sig), opts...)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return c.fail(err, "send %s to container %s", req.Signal, req.ID)
}

// Freeze implements provider.Runtime.
func (c *Client) Freeze(ctx context.Context, id string) error {
	return c.freeze(ctx, id, "freeze", containerd.Paused, containerd.Running, containerd.Task.Pause)
}

// Thaw implements provider.Runtime.
func (c *Client) Thaw(ctx context.Context, id string) error {
	return c.freeze(ctx, id, "thaw", containerd.Running, containerd.Paused, containerd.Task.Resume)
}

// freeze brings a container from one state to the other; being there already is no error, being in a third one is.
func (c *Client) freeze(ctx context.Context, id, op string, to, from containerd.ProcessStatus, do func(containerd.Task, context.Context) error) error {
	ctx = c.with(ctx)
	task, err := c.task(ctx, id)
	if err != nil {
		return c.fail(err, "%s container %s", op, id)
	}
	st, err := task.Status(ctx)
	if err != nil {
		return c.fail(err, "%s container %s", op, id)
	}
	switch st.Status {
	case to:
		return nil
	case from:
		return c.fail(do(task, ctx), "%s container %s", op, id)
	}
	return fmt.Errorf("%s container %s: it is %s: %w", op, id, st.Status, provider.ErrState)
}

// Delete implements provider.Runtime.
func (c *Client) Delete(ctx context.Context, id string) error {
	unlock, err := c.making.lock(ctx, id)
	if err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	defer unlock()
	return c.remove(ctx, id)
}

// remove is Delete; the id is locked.
func (c *Client) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(c.with(ctx), endIn)
	defer cancel()
	ct, err := c.client.LoadContainer(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return c.fail(err, "delete container %s", id)
	}
	if err == nil {
		if err := deleteTask(ctx, ct); err != nil {
			return c.fail(err, "delete container %s", id)
		}
	}
	if err := c.cgroups.clear(ctx, cgroupPath(c.config.Namespace, id)); err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	if ct != nil {
		if err := ct.Delete(ctx); err != nil && !errdefs.IsNotFound(err) {
			return c.fail(err, "delete container %s", id)
		}
	}
	err = c.client.SnapshotService(snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return c.fail(err, "delete snapshot of container %s", id)
	}
	return nil
}

// deleteTask kills and removes a container's processes. None there is what is wanted.
func deleteTask(ctx context.Context, ct containerd.Container) error {
	task, err := ct.Task(ctx, nil)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var opts []containerd.ProcessDeleteOpts
	if st, err := task.Status(ctx); err != nil || st.Status != containerd.Stopped { // killing a stopped one fails under some runtimes
		opts = append(opts, containerd.WithProcessKill)
	}
	if _, err := task.Delete(ctx, opts...); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}
