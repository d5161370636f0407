// Package providertest is the conformance suite of the contracts that package provider declares: whatever fulfils Runtime, Network and
// Mounts, directly or over a socket, must pass it. It knows no implementation.
package providertest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/access"
	"github.com/gpufair/gpufair/provider/sandbox"
)

// patience is how long a test waits for what must happen, on a machine shared with others.
const patience = 60 * time.Second

// Rig is what the suite drives.
type Rig struct {
	Runtime provider.Runtime
	Network provider.Network
	Mounts  provider.Mounts
	Archive []byte // OCI archive of an image whose /bin/job is containerdtest's
	Digest  string // of its manifest
	Init    string // path of gpufair-init
	Resolv  string // resolv.conf of jobs; empty: none
}

// Job is a container of a test.
type Job struct {
	ID      string
	Folders provider.Folders
	Request provider.CreateRequest
	Created provider.Created
	rig     Rig
}

// Policy is a small lease on core 0.
func Policy() sandbox.Policy {
	return sandbox.Policy{Cores: []int{0}, MemoryBytes: 128 << 20, Pids: 32, OpenFiles: 4096, UserNamespace: true}
}

// Context is a test's context with its patience.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Import brings the rig's image in, through a pipe as a provider does.
func (r Rig) Import(t testing.TB) provider.ImageInfo {
	t.Helper()
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	go func() {
		_, _ = pw.Write(r.Archive) // a reader that stops early shows in the import's result
		pw.Close()
	}()
	info, err := r.Runtime.Import(Context(t), provider.ImportRequest{Digest: r.Digest, MaxBytes: 1 << 30}, pr)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Create makes a job of the rig's image up to its start, and deletes all of it at the end of the test.
func (r Rig) Create(t testing.TB, id string, p sandbox.Policy, w work.Spec) Job {
	t.Helper()
	return r.CreateEdited(t, id, p, w, 1<<30, func(spec []byte) []byte { return spec })
}

// CreateEdited is Create with a disk of so many bytes and a spec that the test changes.
func (r Rig) CreateEdited(t testing.TB, id string, p sandbox.Policy, w work.Spec, disk int64, edit func(spec []byte) []byte) Job {
	t.Helper()
	ctx := Context(t)
	img := r.Import(t)
	folders, err := r.Mounts.Make(ctx, provider.MountRequest{ID: id, MaxBytes: disk, UID: p.IDs().Base, GID: p.IDs().Base})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Remove(t, id) })
	spec, err := sandbox.Spec(sandbox.Job{
		Lease: id, Image: sandbox.Image{Args: img.Args, Env: img.Env, Dir: img.Dir, User: img.User}, Work: w, Policy: p,
		Folders: sandbox.Folders{In: folders.In, Out: folders.Out, Scratch: folders.Scratch, Record: folders.Record, Init: r.Init, Resolv: r.Resolv},
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	req := provider.CreateRequest{
		ID: id, Image: img.Digest, Spec: edit(raw), Labels: map[string]string{"lease": id}, Record: folders.Record, Root: folders.Root,
		Logs: provider.LogRequest{Path: LogDir(folders), MaxBytes: 1 << 20},
	}
	created, err := r.Runtime.Create(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return Job{ID: id, Folders: folders, Request: req, Created: created, rig: r}
}

// Run creates a job with the command, wires and starts it.
func (r Rig) Run(t testing.TB, id string, command ...string) Job {
	t.Helper()
	j := r.Create(t, id, Policy(), work.Spec{Command: command})
	j.Start(t)
	return j
}

// Start wires and starts the job.
func (j Job) Start(t testing.TB) {
	t.Helper()
	if err := j.rig.Network.Wire(Context(t), provider.WireRequest{ID: j.ID, PID: j.Created.PID, Egress: "none"}); err != nil {
		t.Fatal(err)
	}
	if err := j.rig.Runtime.Start(Context(t), j.ID); err != nil {
		t.Fatal(err)
	}
}

// Wait waits for the job's end.
func (j Job) Wait(t testing.TB) provider.Container {
	t.Helper()
	st, err := j.rig.Runtime.Wait(Context(t), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// Finish waits for the job's end, deletes it and gives how it ended and what it wrote.
func (j Job) Finish(t testing.TB) (provider.Container, string, string) {
	t.Helper()
	st := j.Wait(t)
	j.rig.Delete(t, j.ID)
	stdout, stderr := j.Output(t)
	return st, stdout, stderr
}

// Delete deletes a container and fails the test if that fails.
func (r Rig) Delete(t testing.TB, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := r.Runtime.Delete(ctx, id); err != nil {
		t.Error(err)
	}
}

// Remove deletes a container and its folders.
func (r Rig) Remove(t testing.TB, id string) {
	t.Helper()
	r.Delete(t, id)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if clean, err := r.Mounts.Remove(ctx, id); !clean || err != nil {
		t.Errorf("remove folders of %s: clean %v, %v", id, clean, err)
	}
}

// LogDir is where the suite keeps a job's log.
func LogDir(f provider.Folders) string { return filepath.Join(f.State, "log") }

// Output is what a deleted job wrote to standard output and to standard error.
func (j Job) Output(t testing.TB) (string, string) {
	t.Helper()
	ended := make(chan struct{})
	close(ended)
	src := access.Open(LogDir(j.Folders), ended)
	defer src.Close()
	var out [3]strings.Builder
	for offset := uint64(0); ; {
		c, err := src.Next(Context(t), offset, true)
		if errors.Is(err, io.EOF) {
			return out[access.Stdout].String(), out[access.Stderr].String()
		}
		if err != nil {
			t.Fatal(err)
		}
		out[c.Stream].Write(c.Data)
		offset = c.End()
	}
}

// Await reads the job's log until it holds text.
func (j Job) Await(t testing.TB, text string) {
	t.Helper()
	src := access.Open(LogDir(j.Folders), nil)
	defer src.Close()
	var seen strings.Builder
	for offset := uint64(0); !strings.Contains(seen.String(), text); {
		c, err := src.Next(Context(t), offset, true)
		if err != nil {
			t.Fatalf("wait for %q in the log: %v; it has %q", text, err, seen.String())
		}
		seen.Write(c.Data)
		offset = c.End()
	}
}
