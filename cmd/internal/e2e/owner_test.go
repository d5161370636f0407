package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/tunnel"
	hash "github.com/gpufair/gpufair/p2p/wire"
	"github.com/gpufair/gpufair/renter/control/api"
)

// leased gives a market of one owner and one renter whose job runs.
func leased(t testing.TB, command ...string) (*fair, *owner, *tenant, market.LeaseID) {
	t.Helper()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	id, _ := r.background(r.order(m, command...))
	return m, o, r, id
}

// free says whether the device is; one that has just started may know of none yet.
func (o *owner) free() bool {
	d := o.agent.Devices()
	return len(d) > 0 && d[0].State == "free"
}

func (o *owner) offering() bool { return len(o.agent.Offers().Lots) > 0 }

// The owner's pause frees a device though the job does not listen, and one with an end comes off by itself. How fast is logged, for a
// machine that does nothing else: the provider's own tests hold the 2 s, in their own time.
func TestPauseIsFastAndEnds(t *testing.T) {
	t.Parallel()
	_, o, r, id := leased(t, "deaf")
	until(t, "the job to be deaf", patience, func() bool { out, _ := r.output(id); return strings.Contains(out, "ready") })
	began := time.Now()
	if err := o.agent.Pause(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "the device to be free", patience, o.free)
	t.Logf("free after %v", time.Since(began).Round(time.Millisecond))
	if o.offering() {
		t.Error("a paused owner offers")
	}
	if job := r.ends(id, patience); job.Reason != "owner_reclaimed" {
		t.Errorf("ended with %q", job.Reason)
	}
	const pause = 2 * time.Second
	began = time.Now()
	if err := o.agent.Pause(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	until(t, "the offer to come back", patience, o.offering)
	if early := pause - time.Since(began); early > 0 {
		t.Errorf("back %v early", early)
	}
}

// containerd dies under a job: nothing is offered, the renter can still end its lease, and the device is given back once containerd is
// there again and the job is gone.
func TestContainerdGone(t *testing.T) {
	t.Parallel()
	m, o, r, id := leased(t, "sleep")
	m.containerd.Kill()
	until(t, "the offer to go", patience, func() bool { return !o.offering() })
	if l, err := o.agent.FindLease(t.Context(), id.String()); err != nil || l.State != "running" {
		t.Fatalf("the lease is %s: %v", l.State, err)
	}
	if err := r.agent.Signal(t.Context(), id, api.SignalRequest{Release: true}); err != nil {
		t.Fatal(err)
	}
	if job := r.ends(id, patience); job.Reason != "stopped_renter" {
		t.Errorf("ended with %q", job.Reason)
	}
	if o.free() {
		t.Error("the device was given back with the job in it")
	}
	if err := m.containerd.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, "the device to be free", patience, o.free)
	until(t, "the offer to come back", patience, o.offering)
	sameMoney(t, o, r, id)
}

// Inputs that only their owner may read at home, and a job that is nobody: it reads them, writes results, and what is no result stays.
func TestFilesOfAnyUser(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	in := filepath.Join(t.TempDir(), "in")
	if err := errors.Join(os.MkdirAll(filepath.Join(in, "deep"), 0o700), os.WriteFile(filepath.Join(in, "deep", "a"), []byte("input"), 0o600)); err != nil {
		t.Fatal(err)
	}
	req := r.order(m, "copy", "/in/deep/a", "/out/b", "0s")
	req.Input, req.User = in, "1234:1234"
	s, err := r.submit(req)
	if err != nil || s.last.Job == nil || s.last.Job.Exit == nil || s.last.Job.Exit.Code != 0 {
		_, stderr := r.output(s.id)
		t.Fatalf("run: %v %+v\n%s", err, s.last, stderr)
	}
	if b, err := os.ReadFile(filepath.Join(req.Output, "b")); err != nil || string(b) != "input" {
		t.Fatalf("result: %q %v", b, err)
	}
	until(t, "the device to be free", patience, o.free)
	r.sees(1)
	req = r.order(m, "weird", "/out")
	req.User = "1234:1234"
	if s, err = r.submit(req); err != nil || s.last.Job == nil || s.last.Job.Results != "complete" || s.last.Job.Exit == nil || s.last.Job.Exit.Code != 0 {
		_, stderr := r.output(s.id)
		t.Fatalf("run: %v %+v\n%s", err, s.last, stderr)
	}
	var names []string
	entries, err := os.ReadDir(req.Output)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil || strings.Join(names, " ") != "deep" {
		t.Fatalf("results: %q %v", names, err)
	}
	if b, err := os.ReadFile(filepath.Join(req.Output, "deep", "secret")); err != nil || string(b) != "result" {
		t.Fatalf("result: %q %v", b, err)
	}
	until(t, "what was pushed to be gone", patience, func() bool {
		left, err := os.ReadDir(filepath.Join(o.dir, "inbox"))
		return err == nil && len(left) == 0
	})
}

// Whoever is not the device that bought a lease learns nothing of it and changes nothing, on any protocol, and neither garbage nor
// messages over the limit disturb those who are served.
func TestStrangersAtTheDoor(t *testing.T) {
	t.Parallel()
	m, o, r, id := leased(t, "trap")
	x := m.tenant("stranger")
	x.meet(o.party)
	self, to := x.base.Network, o.base.Network.Self()
	protocol := func(name string) p2p.Protocol { return p2p.ProtocolID("e2e", name) }
	release := market.Release{
		Header: x.base.Device.Header(market.Version), Delegation: x.base.Device.DelegationHash(), Lease: id,
		Reason: reason.New(reason.StoppedRenter, ""),
	}
	signed, err := x.base.Device.Seal(market.DomainRelease, release)
	if err != nil {
		t.Fatal(err)
	}
	spec := &work.Spec{Image: hash.Sum("", []byte("x"))}
	for _, ask := range []work.Ask{
		{Action: work.ActStatus},
		{Action: work.ActReady, Signed: signed},
		{Action: work.ActPrepare, Spec: spec},
		{Action: work.ActStart},
		{Action: work.ActSignal, Signal: "SIGKILL"},
		{Action: work.ActStop},
		{Action: work.ActRelease, Signed: signed},
		{Action: work.ActFetched},
		{Action: work.ActSync},
	} {
		ask.Lease = id
		err := p2p.Call(t.Context(), self, to, protocol(work.ProtoJob), ask, &work.Status{}, work.MaxMessage)
		if p2p.KindOf(err) != p2p.KindForbidden {
			t.Errorf("action %d: %v", ask.Action, err)
		}
	}
	err = p2p.Call(t.Context(), self, to, protocol(work.ProtoLane), work.LaneOpen{Lease: id}, &work.LaneOpened{}, work.MaxBeat)
	if p2p.KindOf(err) != p2p.KindForbidden {
		t.Errorf("lane: %v", err)
	}
	_, err = tunnel.LogClient{Network: self, Protocol: protocol(work.ProtoLogs), Peer: to, Lease: hash.Hash(id)}.Read(t.Context(), 0, false,
		func(tunnel.Chunk) error { return nil })
	if p2p.KindOf(err) != p2p.KindForbidden {
		t.Errorf("log: %v", err)
	}
	strangeBlobs(t, blob.Client{Network: self, Protocol: protocol(work.ProtoBlob), Peer: to, Lease: hash.Hash(id)})
	for _, name := range []string{work.ProtoJob, work.ProtoLane, work.ProtoLogs, work.ProtoBlob, work.ProtoPassport, work.ProtoTrade} {
		for what, b := range map[string][]byte{
			"garbage": bytes.Repeat([]byte{0xff}, 64), "a huge frame": append([]byte{0xff, 0xff, 0xff, 0x7f}, make([]byte, 1<<20)...),
			"nothing": nil, "an empty map": {1, 0xa0},
		} {
			annoy(t, self, to, protocol(name), name+": "+what, b)
		}
	}
	if job := r.job(id); job.State != "running" || job.Suspected {
		t.Fatalf("the job is %s", job.State)
	}
	if err := r.agent.Signal(t.Context(), id, api.SignalRequest{}); err != nil {
		t.Fatal(err)
	}
	r.ends(id, patience)
	sameMoney(t, o, r, id)
}

// strangeBlobs pushes and fetches what the client may not.
func strangeBlobs(t *testing.T, files blob.Client) {
	t.Helper()
	store, err := blob.OpenStore(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	have, err := store.Put(t.Context(), []byte("a stranger's"))
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Push(t.Context(), store, have, nil); !errors.Is(err, blob.ErrForbidden) {
		t.Errorf("push: %v", err)
	}
	if err := files.Fetch(t.Context(), store, hash.Sum("", []byte("y")), nil); !errors.Is(err, blob.ErrForbidden) {
		t.Errorf("fetch: %v", err)
	}
}

// annoy sends bytes and reads until the other side has enough: soon, and without sending much.
func annoy(t *testing.T, n p2p.Network, to identity.PeerID, protocol p2p.Protocol, what string, b []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := n.Open(ctx, to, protocol)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer s.Close()
	if err := s.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	if _, err := s.Write(b); err != nil {
		return // it was reset already
	}
	if err := s.CloseWrite(); err != nil {
		return
	}
	got := 0
	for buf := make([]byte, 4096); ; {
		k, err := s.Read(buf)
		got += k
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: no answer", what)
		}
		if err != nil {
			break
		}
	}
	if got > 4096 {
		t.Errorf("%s: answered with %d bytes", what, got)
	}
}

// A provider that dies in the middle of things and starts anew: the lease ends once, the device is free, the money agrees.
func TestRestartWhileStopping(t *testing.T) {
	t.Parallel()
	_, o, r, id := leased(t, "deaf")
	if err := r.agent.Signal(t.Context(), id, api.SignalRequest{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the lease to stop", patience, func() bool {
		l, err := o.agent.FindLease(context.Background(), id.String())
		return err == nil && l.State == "stopping"
	})
	o.stop()
	o.start()
	r.meet(o.party)
	if job := r.ends(id, patience); job.Reason != "stopped_renter" || job.Exit == nil || job.Exit.Signal != "SIGKILL" {
		t.Errorf("ended with %q, exit %+v", job.Reason, job.Exit)
	}
	until(t, "the device to be free", patience, o.free)
	sameMoney(t, o, r, id)
}
