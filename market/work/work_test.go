package work

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

var states = []State{Agreed, Preparing, Running, Paused, Stopping, Ended}

func TestStates(t *testing.T) {
	legal := map[State]string{
		Agreed: "preparing ended", Preparing: "running ended", Running: "paused stopping ended", Paused: "running stopping ended",
		Stopping: "ended", Ended: "",
	}
	for _, s := range states {
		var can []string
		for _, to := range states {
			if s.Can(to) {
				can = append(can, to.String())
			}
		}
		if got := strings.Join(can, " "); got != legal[s] {
			t.Errorf("%s can become %q, want %q", s, got, legal[s])
		}
		b, err := json.Marshal(s)
		var back State
		if err != nil || json.Unmarshal(b, &back) != nil || back != s {
			t.Errorf("%s as JSON: %s, %v", s, b, err)
		}
	}
	if State(0).String() != "unknown" || State(0).Can(Agreed) || State(9).Can(Ended) {
		t.Error("a state of another release has transitions")
	}
}

// TestEveryWalkEnds: from any state a lease can end, and never comes back from there.
func TestEveryWalkEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Agreed
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			if s != Ended && !s.Can(Ended) {
				t.Fatalf("%s cannot end", s)
			}
			to := rapid.SampledFrom(states).Draw(t, "to")
			if s == Ended && s.Can(to) {
				t.Fatalf("ended can become %s", to)
			}
			if s.Can(to) {
				s = to
			}
		}
	})
}

func spec() Spec {
	return Spec{
		Image: wire.Hash{1}, Name: "debian:12", Command: []string{"sh", "-c", "echo \n ok"}, Env: []string{"A=b=c", "EMPTY="},
		Dir: "/work", User: "1000:1000", Labels: map[string]string{"team": "blue"}, StopWait: 30,
	}
}

func TestSpecLimits(t *testing.T) {
	for name, ok := range map[string]func(*Spec){
		"all":   func(*Spec) {},
		"least": func(s *Spec) { *s = Spec{Image: wire.Hash{1}} },
		"root":  func(s *Spec) { s.Dir, s.User = "/", "root" },
	} {
		s := spec()
		ok(&s)
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, spoil := range map[string]func(*Spec){
		"no image":         func(s *Spec) { s.Image = wire.Hash{} },
		"long name":        func(s *Spec) { s.Name = strings.Repeat("x", maxName+1) },
		"name to the tty":  func(s *Spec) { s.Name = "x\x1b[2J" },
		"many words":       func(s *Spec) { s.Command = slices.Repeat([]string{"x"}, MaxArgs+1) },
		"empty command":    func(s *Spec) { s.Command = []string{""} },
		"zero byte":        func(s *Spec) { s.Command = []string{"x", "a\x00b"} },
		"not UTF-8":        func(s *Spec) { s.Command = []string{"x", "\xff"} },
		"many variables":   func(s *Spec) { s.Env = manyEnv(MaxEnv + 1) },
		"no name":          func(s *Spec) { s.Env = []string{"=x"} },
		"no value":         func(s *Spec) { s.Env = []string{"X"} },
		"odd name":         func(s *Spec) { s.Env = []string{"1X=y"} },
		"twice":            func(s *Spec) { s.Env = []string{"X=1", "X=2"} },
		"the provider's":   func(s *Spec) { s.Env = []string{"GPUFAIR_LEASE=1"} },
		"zero in variable": func(s *Spec) { s.Env = []string{"X=\x00"} },
		"relative folder":  func(s *Spec) { s.Dir = "work" },
		"folder upwards":   func(s *Spec) { s.Dir = "/data/../etc" },
		"folder with bell": func(s *Spec) { s.Dir = "/\a" },
		"user":             func(s *Spec) { s.User = "root; rm" },
		"user:group:x":     func(s *Spec) { s.User = "a:b:c" },
		"many labels":      func(s *Spec) { s.Labels = manyLabels(maxLabels + 1) },
		"empty label":      func(s *Spec) { s.Labels = map[string]string{"": "x"} },
		"long label":       func(s *Spec) { s.Labels = map[string]string{"x": strings.Repeat("x", maxLabel+1)} },
		"long stop":        func(s *Spec) { s.StopWait = MaxStopWait + 1 },
		"all too big":      func(s *Spec) { s.Command = []string{"x", strings.Repeat("x", MaxSpec)} },
	} {
		s := spec()
		spoil(&s)
		if err := s.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func manyEnv(n int) (env []string) {
	for i := range n {
		env = append(env, fmt.Sprintf("X%d=", i))
	}
	return env
}

func manyLabels(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprint(i)] = ""
	}
	return out
}

func TestHashesFollowTheValue(t *testing.T) {
	a, err := spec().Hash()
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := spec().Hash(); a != b {
		t.Error("equal specs, different hashes")
	}
	s := spec()
	s.Env = slices.Clone(s.Env)
	s.Env[0] = "A=b=d"
	if b, _ := s.Hash(); a == b {
		t.Error("different specs, equal hashes")
	}
	n := Needs{Kind: market.KindGPU, Devices: 1}
	x, _ := n.Hash()
	n.Devices = 2
	if y, _ := n.Hash(); x == y {
		t.Error("different needs, equal hashes")
	}
}

func TestNeeds(t *testing.T) {
	lot := market.Lot{Kind: market.KindGPU, MemoryMiB: 1000, DiskMiB: 500}
	good := Needs{Kind: market.KindGPU, Devices: 2, MemoryMiB: 2000, DiskMiB: 500}
	if err := errors.Join(good.Validate(), good.Fit(lot, 2), Needs{Kind: market.KindGPU, Devices: 1}.Fit(lot, 1)); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]Needs{
		"kind":    {Kind: market.KindCPU, Devices: 2},
		"devices": {Kind: market.KindGPU, Devices: 1},
		"memory":  {Kind: market.KindGPU, Devices: 2, MemoryMiB: 2001},
		"disk":    {Kind: market.KindGPU, Devices: 2, DiskMiB: 501},
	} {
		if err := n.Fit(lot, 2); !reason.Is(err, reason.ResourcesExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, n := range map[string]Needs{
		"kind":    {Kind: "tpu", Devices: 1},
		"none":    {Kind: market.KindGPU},
		"many":    {Kind: market.KindGPU, Devices: market.MaxSlots + 1},
		"memory":  {Kind: market.KindGPU, Devices: 1, MemoryMiB: 1 << 60},
		"no kind": {Devices: 1},
	} {
		if err := n.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAsks(t *testing.T) {
	s := spec()
	id := market.LeaseID{1}
	for name, a := range map[string]Ask{
		"ready":   {Lease: id, Action: ActReady, Signed: []byte("x")},
		"prepare": {Lease: id, Action: ActPrepare, Spec: &s},
		"start":   {Lease: id, Action: ActStart},
		"signal":  {Lease: id, Action: ActSignal, Signal: "SIGINT"},
		"stop":    {Lease: id, Action: ActStop},
		"status":  {Lease: id, Action: ActStatus},
		"release": {Lease: id, Action: ActRelease, Signed: []byte("x")},
		"fetched": {Lease: id, Action: ActFetched},
	} {
		if err := a.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, a := range map[string]Ask{
		"no lease":        {Action: ActStatus},
		"no action":       {Lease: id},
		"a later action":  {Lease: id, Action: 99},
		"unsigned ready":  {Lease: id, Action: ActReady},
		"big ready":       {Lease: id, Action: ActReady, Signed: make([]byte, market.MaxReady+1)},
		"big release":     {Lease: id, Action: ActRelease, Signed: make([]byte, market.MaxRelease+1)},
		"no spec":         {Lease: id, Action: ActPrepare},
		"invalid spec":    {Lease: id, Action: ActPrepare, Spec: &Spec{}},
		"no signal":       {Lease: id, Action: ActSignal},
		"SIGSTOP":         {Lease: id, Action: ActSignal, Signal: "SIGSTOP"},
		"a signal's name": {Lease: id, Action: ActSignal, Signal: "INT"},
	} {
		if err := a.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzMessages: no bytes panic the decoders of the job's conversations or their limits.
func FuzzMessages(f *testing.F) {
	s := spec()
	for _, v := range []any{Ask{Lease: market.LeaseID{1}, Action: ActPrepare, Spec: &s}, Order{Needs: Needs{Kind: "gpu", Devices: 1}}, Beat{Seq: 1}, LaneDown{Beat: &Beat{}}} {
		b, err := wire.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var ask Ask
		if wire.UnmarshalStrict(b, &ask) == nil && ask.Validate() == nil && ask.Spec != nil {
			if _, err := ask.Spec.Hash(); err != nil {
				t.Fatal(err)
			}
		}
		var o Order
		if wire.UnmarshalStrict(b, &o) == nil {
			_ = o.Needs.Validate()
		}
		var down LaneDown
		_ = wire.UnmarshalStrict(b, &down)
		var up LaneUp
		_ = wire.UnmarshalStrict(b, &up)
		var status Status
		_ = wire.UnmarshalStrict(b, &status)
	})
}
