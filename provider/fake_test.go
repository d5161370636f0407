package provider

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/wire"
)

// fakeRuntime keeps containers in memory: the tests of this package are about time, money and states. Real containers are run by
// cmd/internal/e2e.
type fakeRuntime struct {
	mu       sync.Mutex
	jobs     map[string]*fakeJob
	hang     chan struct{} // not nil: every call waits for it or for its ctx
	down     bool          // every call is ErrUnavailable
	deaf     bool          // jobs ignore SIGTERM
	undying  bool          // jobs ignore SIGKILL, too
	bare     bool          // it has no image until Import
	images   []ImageInfo
	specs    [][]byte // of Create
	deleted  int
	startErr error
}

type fakeJob struct {
	Container
	gone chan struct{} // closed when it has stopped
}

func (r *fakeRuntime) call(ctx context.Context) error {
	r.mu.Lock()
	hang, down := r.hang, r.down
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if down {
		return ErrUnavailable
	}
	return ctx.Err()
}

// with runs f on a container.
func (r *fakeRuntime) with(ctx context.Context, id string, f func(*fakeJob) error) error {
	if err := r.call(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.jobs[id]
	if j == nil {
		return ErrNotFound
	}
	return f(j)
}

func (j *fakeJob) exit(code int, at time.Time) {
	if j.State != ContainerStopped {
		j.State, j.Exit, j.ExitedAt = ContainerStopped, &ExitStatus{Code: code}, at
		close(j.gone)
	}
}

// exit ends the only job.
func (r *fakeRuntime) exit(code int, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		j.exit(code, at)
	}
}

func (r *fakeRuntime) state(id market.LeaseID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.jobs[id.String()]; j != nil {
		return j.State
	}
	return ""
}

func (r *fakeRuntime) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *fakeRuntime) Info(ctx context.Context) (RuntimeInfo, error) {
	return RuntimeInfo{Name: "fake", Sandbox: "none", UserNamespace: true}, r.call(ctx)
}

func (r *fakeRuntime) Import(ctx context.Context, req ImportRequest, archive *os.File) (ImageInfo, error) {
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return ImageInfo{}, err
	}
	r.set(func() { r.bare = false })
	return ImageInfo{Digest: req.Digest, Args: []string{"x"}}, r.call(ctx)
}

func (r *fakeRuntime) Image(ctx context.Context, digest string) (ImageInfo, error) {
	r.mu.Lock()
	bare := r.bare
	r.mu.Unlock()
	if bare {
		return ImageInfo{}, ErrNotFound
	}
	return ImageInfo{Digest: digest, Args: []string{"x"}}, r.call(ctx)
}

func (r *fakeRuntime) Images(ctx context.Context) ([]ImageInfo, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]ImageInfo(nil), r.images...), nil
}

func (r *fakeRuntime) RemoveImage(_ context.Context, digest string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, m := range r.images {
		if m.Digest == digest {
			r.images = append(r.images[:i], r.images[i+1:]...)
			break
		}
	}
	return nil
}

func (r *fakeRuntime) Create(ctx context.Context, req CreateRequest) (Created, error) {
	if err := r.call(ctx); err != nil {
		return Created{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.specs = append(r.specs, req.Spec)
	r.jobs[req.ID] = &fakeJob{Container{ID: req.ID, State: ContainerCreated}, make(chan struct{})}
	return Created{PID: 1}, nil
}

func (r *fakeRuntime) Start(ctx context.Context, id string) error {
	return r.with(ctx, id, func(j *fakeJob) error { j.State = ContainerRunning; return r.startErr })
}

func (r *fakeRuntime) Signal(ctx context.Context, req SignalRequest) error {
	return r.with(ctx, req.ID, func(j *fakeJob) error {
		if j.State == ContainerRunning && (req.Signal == "SIGTERM" && !r.deaf || req.Signal == "SIGKILL" && !r.undying) {
			j.exit(137, time.Now())
		}
		return nil
	})
}

func (r *fakeRuntime) Freeze(ctx context.Context, id string) error {
	return r.with(ctx, id, func(j *fakeJob) error { j.State = ContainerFrozen; return nil })
}

func (r *fakeRuntime) Thaw(ctx context.Context, id string) error {
	return r.with(ctx, id, func(j *fakeJob) error { j.State = ContainerRunning; return nil })
}

func (r *fakeRuntime) Status(ctx context.Context, id string) (c Container, err error) {
	err = r.with(ctx, id, func(j *fakeJob) error { c = j.Container; return nil })
	return c, err
}

func (r *fakeRuntime) Wait(ctx context.Context, id string) (Container, error) {
	r.mu.Lock()
	j := r.jobs[id]
	r.mu.Unlock()
	if j == nil {
		return Container{}, ErrNotFound
	}
	select {
	case <-j.gone:
		return r.Status(ctx, id)
	case <-ctx.Done():
		return Container{}, ctx.Err()
	}
}

func (r *fakeRuntime) Usage(ctx context.Context, id string) (u Usage, err error) {
	err = r.with(ctx, id, func(j *fakeJob) error {
		if j.State == ContainerRunning {
			u.Pids = 1
		}
		return nil
	})
	return u, err
}

func (r *fakeRuntime) List(ctx context.Context) ([]Container, error) {
	if err := r.call(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Container
	for _, j := range r.jobs {
		out = append(out, j.Container)
	}
	return out, nil
}

func (r *fakeRuntime) Delete(ctx context.Context, id string) error {
	return r.with(ctx, id, func(j *fakeJob) error {
		j.exit(137, time.Now())
		delete(r.jobs, id)
		r.deleted++
		return nil
	})
}

// fakeDevices is a card that works half the time.
type fakeDevices struct{ Devices }

func (fakeDevices) Read(context.Context, []wire.Hash) (Reading, error) {
	return Reading{GPU: &work.GPUUse{Percent: 50, VRAMMiB: 1024}, ClockMHz: 1500, EnergyJ: uint64(time.Now().Unix())}, nil // a watt
}

// fakeNetwork wires nothing, fakeMounts makes plain folders.
type fakeNetwork struct{}

func (fakeNetwork) Wire(context.Context, WireRequest) error { return nil }
func (fakeNetwork) Unwire(context.Context, string) error    { return nil }
func (fakeNetwork) List(context.Context) ([]string, error)  { return nil, nil }

func (fakeNetwork) Traffic(context.Context, string) (Traffic, error) {
	return Traffic{}, ErrNotFound // no job of these tests has egress
}

type fakeMounts struct {
	dir  string
	disk atomic.Int64 // what a job holds
}

func (m *fakeMounts) Info(context.Context) (MountsInfo, error) {
	return MountsInfo{Disk: DiskPlain}, nil
}

func (m *fakeMounts) Free(context.Context) (int64, error) {
	var st syscall.Statfs_t
	err := syscall.Statfs(m.dir, &st)
	return int64(st.Bavail) * st.Bsize, err
}

func (m *fakeMounts) Make(_ context.Context, req MountRequest) (Folders, error) {
	at := func(name string) string { return filepath.Join(m.dir, req.ID, name) }
	for _, n := range []string{"in", "out", "scratch", "record", "state"} {
		if err := os.MkdirAll(at(n), 0o700); err != nil {
			return Folders{}, err
		}
	}
	return Folders{In: at("in"), Out: at("out"), Scratch: at("scratch"), Record: at("record"), State: at("state")}, nil
}

func (m *fakeMounts) Usage(context.Context, string) (DiskUsage, error) {
	return DiskUsage{Bytes: m.disk.Load()}, nil
}

func (m *fakeMounts) Remove(_ context.Context, id string) (bool, error) {
	return true, os.RemoveAll(filepath.Join(m.dir, id))
}

func (m *fakeMounts) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(m.dir)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}

// fullDisk is an engine that can be made to refuse writes.
type fullDisk struct {
	kv.Memory
	full atomic.Bool
}

func (f *fullDisk) Writable(ctx context.Context) error {
	if f.full.Load() {
		return kv.ErrReadOnly
	}
	return f.Memory.Writable(ctx)
}
