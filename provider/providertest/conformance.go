package providertest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider"
)

// Conformance runs the suite.
func Conformance(t *testing.T, r Rig) {
	t.Run("images", r.images)
	t.Run("life", r.life)
	t.Run("stop", r.stop)
	t.Run("freeze", r.freeze)
	t.Run("no such command", r.noCommand)
	t.Run("not there", r.notThere)
	t.Run("folders", r.folders)
}

func (r Rig) images(t *testing.T) {
	ctx := Context(t)
	info := r.Import(t)
	again := r.Import(t)
	if info.Digest != r.Digest || again.Digest != r.Digest || len(info.Args) == 0 || info.Size == 0 {
		t.Fatalf("import gives %+v, then %+v", info, again)
	}
	if all, err := r.Runtime.Images(ctx); err != nil || len(all) != 1 {
		t.Fatalf("images: %+v, %v", all, err)
	}
	for range 2 {
		if err := r.Runtime.RemoveImage(ctx, r.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Runtime.Image(ctx, r.Digest); !errors.Is(err, provider.ErrNotFound) {
		t.Fatalf("image after its removal: %v", err)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("this is no image"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(garbage)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := r.Runtime.Import(ctx, provider.ImportRequest{Digest: r.Digest, MaxBytes: 1 << 20}, f); !errors.Is(err, provider.ErrImage) {
		t.Fatalf("import of garbage: %v", err)
	}
}

func (r Rig) life(t *testing.T) {
	ctx := Context(t)
	if info, err := r.Runtime.Info(ctx); err != nil || info.Name == "" || info.Version == "" || info.Sandbox == "" || !info.UserNamespace {
		t.Fatalf("info: %+v, %v", info, err)
	}
	j := r.Create(t, "c0ffee01", Policy(), work.Spec{Command: []string{"job", "say", "hello"}, Env: []string{"A=b"}})
	st, err := r.Runtime.Status(ctx, j.ID)
	if err != nil || st.State != provider.ContainerCreated || st.PID != j.Created.PID || st.Labels["lease"] != j.ID {
		t.Fatalf("status after create: %+v, %v", st, err)
	}
	if again, err := r.Runtime.Create(ctx, j.Request); err != nil || again != j.Created {
		t.Fatalf("create again: %+v, %v; was %+v", again, err, j.Created)
	}
	j.Start(t)
	if err := r.Runtime.Start(ctx, j.ID); err != nil {
		t.Fatalf("start again: %v", err)
	}
	end := j.Wait(t)
	if end.State != provider.ContainerStopped || end.Exit == nil || *end.Exit != (provider.ExitStatus{}) || end.ExitedAt.IsZero() {
		t.Fatalf("end: %+v exit %+v", end, end.Exit)
	}
	if list, err := r.Runtime.List(ctx); err != nil || len(list) != 1 || list[0].ID != j.ID {
		t.Fatalf("list: %+v, %v", list, err)
	}
	r.Delete(t, j.ID)
	r.Delete(t, j.ID)
	if stdout, stderr := j.Output(t); stdout != "out hello\n" || stderr != "err hello\n" {
		t.Fatalf("output %q and %q", stdout, stderr)
	}
	for name, spoil := range map[string]func(*provider.CreateRequest){
		"id":    func(c *provider.CreateRequest) { c.ID = "../x" },
		"spec":  func(c *provider.CreateRequest) { c.Spec = []byte("{}") },
		"log":   func(c *provider.CreateRequest) { c.Logs.Path = "relative" },
		"cap":   func(c *provider.CreateRequest) { c.Logs.MaxBytes = 0 },
		"place": func(c *provider.CreateRequest) { c.Record = "relative" },
		"root":  func(c *provider.CreateRequest) { c.Root.Upper = "/x,lowerdir=/" },
	} {
		req := j.Request
		spoil(&req)
		if _, err := r.Runtime.Create(ctx, req); !errors.Is(err, provider.ErrRequest) {
			t.Errorf("create with a bad %s: %v", name, err)
		}
	}
	missing := j.Request
	missing.Image = "sha256:" + strings.Repeat("0", 64)
	if _, err := r.Runtime.Create(ctx, missing); !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("create without its image: %v", err)
	}
	if list, err := r.Runtime.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("list after delete: %+v, %v", list, err)
	}
}

func (r Rig) stop(t *testing.T) {
	ctx := Context(t)
	j := r.Run(t, "c0ffee02", "job", "trap")
	j.Await(t, "ready")
	if err := r.Runtime.Signal(ctx, provider.SignalRequest{ID: j.ID, Signal: "SIGTERM"}); err != nil {
		t.Fatal(err)
	}
	if end := j.Wait(t); end.Exit == nil || end.Exit.Code != 3 || end.Exit.Signal != "" {
		t.Fatalf("end after SIGTERM: %+v", end.Exit)
	}
	if err := r.Runtime.Signal(ctx, provider.SignalRequest{ID: j.ID, Signal: "SIGTERM"}); err != nil {
		t.Fatalf("signal after the end: %v", err)
	}
	if err := r.Runtime.Signal(ctx, provider.SignalRequest{ID: j.ID, Signal: "SIGNOT"}); !errors.Is(err, provider.ErrRequest) {
		t.Fatalf("signal with no such name: %v", err)
	}
}

func (r Rig) freeze(t *testing.T) {
	ctx := Context(t)
	j := r.Run(t, "c0ffee03", "job", "sleep")
	for _, step := range []struct {
		do    func() error
		state string
	}{
		{func() error { return r.Runtime.Thaw(ctx, j.ID) }, provider.ContainerRunning},
		{func() error { return r.Runtime.Freeze(ctx, j.ID) }, provider.ContainerFrozen},
		{func() error { return r.Runtime.Freeze(ctx, j.ID) }, provider.ContainerFrozen},
		{func() error { return r.Runtime.Thaw(ctx, j.ID) }, provider.ContainerRunning},
		{func() error { return r.Runtime.Freeze(ctx, j.ID) }, provider.ContainerFrozen},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if st, err := r.Runtime.Status(ctx, j.ID); err != nil || st.State != step.state {
			t.Fatalf("status %+v, %v; want %s", st, err, step.state)
		}
	}
	if u, err := r.Runtime.Usage(ctx, j.ID); err != nil || u.MemoryBytes == 0 || u.MemoryPeak < u.MemoryBytes || u.Pids == 0 || u.CPU == 0 {
		t.Fatalf("usage %+v, %v", u, err)
	}
	if err := r.Runtime.Signal(ctx, provider.SignalRequest{ID: j.ID, Signal: "SIGKILL", All: true}); err != nil {
		t.Fatal(err)
	}
	if end := j.Wait(t); end.Exit == nil || end.Exit.Code != 137 || end.Exit.Signal != "SIGKILL" || end.Exit.OOM {
		t.Fatalf("end of a frozen job that was killed: %+v", end.Exit)
	}
	if err := r.Runtime.Freeze(ctx, j.ID); !errors.Is(err, provider.ErrState) {
		t.Fatalf("freeze after the end: %v", err)
	}
}

func (r Rig) noCommand(t *testing.T) {
	ctx := Context(t)
	j := r.Create(t, "c0ffee04", Policy(), work.Spec{Command: []string{"nonesuch"}})
	for range 2 {
		if err := r.Runtime.Start(ctx, j.ID); !errors.Is(err, provider.ErrCommand) {
			t.Fatalf("start: %v", err)
		}
	}
	if end := j.Wait(t); end.Exit == nil || end.Exit.Code != 127 || end.Exit.ExecError == "" {
		t.Fatalf("end: %+v", end.Exit)
	}
}

func (r Rig) notThere(t *testing.T) {
	ctx := Context(t)
	const id = "c0ffee05"
	_, status := r.Runtime.Status(ctx, id)
	_, wait := r.Runtime.Wait(ctx, id)
	_, usage := r.Runtime.Usage(ctx, id)
	_, disk := r.Mounts.Usage(ctx, id)
	for name, err := range map[string]error{
		"status": status, "wait": wait, "usage": usage, "disk usage": disk, "start": r.Runtime.Start(ctx, id),
		"freeze": r.Runtime.Freeze(ctx, id), "thaw": r.Runtime.Thaw(ctx, id),
		"signal": r.Runtime.Signal(ctx, provider.SignalRequest{ID: id, Signal: "SIGTERM"}),
		"wire":   r.Network.Wire(ctx, provider.WireRequest{ID: id, PID: 1 << 30, Egress: "none"}),
	} {
		if !errors.Is(err, provider.ErrNotFound) {
			t.Errorf("%s of what is not there: %v", name, err)
		}
	}
	r.Remove(t, id)
	if err := r.Network.Unwire(ctx, id); err != nil {
		t.Errorf("unwire of what is not there: %v", err)
	}
	if err := r.Network.Wire(ctx, provider.WireRequest{ID: id, PID: os.Getpid(), Egress: "none"}); err == nil {
		t.Error("our own namespace was taken for a job's")
	}
}

func (r Rig) folders(t *testing.T) {
	ctx := Context(t)
	const id = "c0ffee06"
	req := provider.MountRequest{ID: id, MaxBytes: 1 << 20, UID: 1000, GID: 1000}
	if info, err := r.Mounts.Info(ctx); err != nil || info.Disk == "" {
		t.Fatalf("info: %+v, %v", info, err)
	}
	if free, err := r.Mounts.Free(ctx); err != nil || free <= 0 {
		t.Fatalf("free: %d, %v", free, err)
	}
	first, err := r.Mounts.Make(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Mounts.Make(ctx, req); err != nil || again != first {
		t.Fatalf("make again: %+v, %v", again, err)
	}
	before, err := r.Mounts.Usage(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first.Scratch, "f"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := r.Mounts.Usage(ctx, id)
	if err != nil || after.Bytes-before.Bytes < 1<<20 || after.Inodes != before.Inodes+1 {
		t.Fatalf("usage %+v, then %+v, %v", before, after, err)
	}
	if ids, err := r.Mounts.List(ctx); err != nil || len(ids) != 1 || ids[0] != id {
		t.Fatalf("list: %v, %v", ids, err)
	}
	r.Remove(t, id)
	if _, err := os.Lstat(first.Out); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("after remove: %v", err)
	}
	if _, err := r.Mounts.Make(ctx, provider.MountRequest{ID: "../x"}); !errors.Is(err, provider.ErrRequest) {
		t.Fatalf("make of an id that leads out: %v", err)
	}
}
