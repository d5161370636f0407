package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

const (
	// maxRecord bounds the exit record, which the job could overwrite: a path and an error, in JSON.
	maxRecord = 16 << 10
	// retryEvery is how often Wait asks a containerd that does not answer.
	retryEvery = 200 * time.Millisecond
)

// exitRecord is exit.json as gpufair-init writes it.
type exitRecord struct {
	Code      int    `json:"code"`
	Signal    int    `json:"signal"`
	ExecError string `json:"exec_error"`
	At        int64  `json:"at"`
}

// readExit reads a job's exit record. The folder is the job's to write, so whatever else lies there in its place is no record: the code
// is a claim of the job's anyway, and no more than that.
func readExit(dir string) (exitRecord, bool) {
	var r exitRecord
	root, err := os.OpenRoot(dir)
	if err != nil {
		return r, false
	}
	defer root.Close()
	f, err := root.OpenFile("exit.json", os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return r, false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxRecord {
		return r, false
	}
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&r); err != nil {
		return exitRecord{}, false
	}
	if r.Code < 0 || r.Code > 255 || r.Signal < 0 || r.Signal > 64 {
		return exitRecord{}, false
	}
	if len(r.ExecError) > 512 {
		r.ExecError = r.ExecError[:512]
	}
	return r, true
}

// startedIn reports whether init said that the command runs.
func startedIn(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "started"))
	return err == nil
}

// Status implements provider.Runtime.
func (c *Client) Status(ctx context.Context, id string) (provider.Container, error) {
	ctx = c.with(ctx)
	ct, err := c.client.LoadContainer(ctx, id)
	if err != nil {
		return provider.Container{}, c.fail(err, "status of container %s", id)
	}
	return c.status(ctx, ct)
}

func (c *Client) status(ctx context.Context, ct containerd.Container) (provider.Container, error) {
	labels, err := ct.Labels(ctx)
	if err != nil {
		return provider.Container{}, c.fail(err, "status of container %s", ct.ID())
	}
	record := labels[labelRecord]
	delete(labels, labelRecord)
	out := provider.Container{ID: ct.ID(), State: provider.ContainerLost, Labels: labels}
	task, err := ct.Task(ctx, nil)
	if err != nil && !errdefs.IsNotFound(err) {
		return provider.Container{}, c.fail(err, "status of container %s", ct.ID())
	}
	var st containerd.Status
	if err == nil {
		if st, err = task.Status(ctx); err != nil && !errdefs.IsNotFound(err) {
			return provider.Container{}, c.fail(err, "status of container %s", ct.ID())
		}
		out.PID = int(task.Pid())
	}
	switch st.Status {
	case containerd.Created:
		out.State = provider.ContainerCreated
	case containerd.Running:
		out.State = provider.ContainerRunning
	case containerd.Paused, containerd.Pausing:
		out.State = provider.ContainerFrozen
	default: // stopped, or no task: containerd may have lost it, but init may have told how it ended
		c.ended(&out, record, st)
	}
	return out, nil
}

// ended fills in how a container without a live task ended.
func (c *Client) ended(out *provider.Container, dir string, st containerd.Status) {
	out.PID = 0
	r, told := readExit(dir)
	if !told && st.Status != containerd.Stopped {
		return // lost
	}
	out.State, out.ExitedAt = provider.ContainerStopped, st.ExitTime
	exit := &provider.ExitStatus{Code: int(st.ExitStatus)}
	switch {
	case told:
		exit.Code, exit.ExecError = r.Code, r.ExecError
		if r.Signal != 0 {
			exit.Signal = unix.SignalName(unix.Signal(r.Signal))
		}
		if out.ExitedAt.IsZero() || out.ExitedAt.Unix() <= 0 {
			out.ExitedAt = time.Unix(0, r.At)
		}
	case exit.Code > 128 && exit.Code <= 128+64: // init itself was killed
		exit.Signal = unix.SignalName(unix.Signal(exit.Code - 128))
	}
	exit.OOM = exit.Code != 0 && c.cgroups.oomKilled(cgroupPath(c.config.Namespace, out.ID))
	out.Exit = exit
}

// Wait implements provider.Runtime.
func (c *Client) Wait(ctx context.Context, id string) (provider.Container, error) {
	for {
		st, err := c.Status(ctx, id)
		switch {
		case err == nil && (st.State == provider.ContainerStopped || st.State == provider.ContainerLost):
			return st, nil
		case err == nil:
			if c.waitTask(ctx, id) {
				continue
			}
		case !errors.Is(err, provider.ErrUnavailable):
			return provider.Container{}, err
		}
		select {
		case <-ctx.Done():
			return provider.Container{}, fmt.Errorf("wait for container %s: %w", id, ctx.Err())
		case <-time.After(retryEvery):
		}
	}
}

// waitTask waits for the end of a task and reports whether it saw one.
func (c *Client) waitTask(ctx context.Context, id string) bool {
	ctx = c.with(ctx)
	task, err := c.task(ctx, id)
	if err != nil {
		return false
	}
	exit, err := task.Wait(ctx)
	if err != nil {
		return false
	}
	s := <-exit // it comes with an error when ctx ends or containerd goes
	return s.Error() == nil
}

// Usage implements provider.Runtime. It reads the kernel's counters and needs no answer of containerd.
func (c *Client) Usage(_ context.Context, id string) (provider.Usage, error) {
	u, err := c.cgroups.usage(cgroupPath(c.config.Namespace, id))
	if err != nil {
		return u, fmt.Errorf("usage of container %s: %w", id, err)
	}
	return u, nil
}

// List implements provider.Runtime.
func (c *Client) List(ctx context.Context) ([]provider.Container, error) {
	ctx = c.with(ctx)
	all, err := c.client.Containers(ctx)
	if err != nil {
		return nil, c.fail(err, "list containers")
	}
	out := make([]provider.Container, 0, len(all))
	for _, ct := range all {
		st, err := c.status(ctx, ct)
		if errors.Is(err, provider.ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	return out, nil
}
