package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/control"
	"github.com/gpufair/gpufair/renter/control/api"
)

// market of one offer, behind the real API on a real socket: what the verbs print and ask can be seen without a provider.
type stall struct {
	offer     api.Offer
	jobs      []api.Job
	submitted []api.RunRequest // those that were no dry run
	signals   []api.SignalRequest
	aways     []api.AwayRequest
	refuse    error
	nothing   *api.SearchResult // in place of the offer
}

var _ control.Agent = (*stall)(nil)

func (s *stall) Search(context.Context, api.SearchRequest) (api.SearchResult, error) {
	if s.nothing != nil {
		return *s.nothing, nil
	}
	return api.SearchResult{Offers: []api.Offer{s.offer}, Known: 1, Peers: 1}, nil
}

func (s *stall) Why(_ context.Context, req api.WhyRequest) (api.WhyResult, error) {
	if s.nothing != nil {
		return api.WhyResult{Note: s.nothing.Note}, nil
	}
	return api.WhyResult{
		Known: 2, Matches: 1, Peers: 1,
		Conditions: []api.ConditionCount{{Condition: "price<0.2", Refuses: 1, Alone: 0}, {Condition: "gpu_ram>=80", Refuses: 1}},
		Nearest: []api.NearOffer{{Offer: s.offer, Refused: []api.Refused{
			{Condition: "price<0.2", Text: "price<0.2: the lot has 0.25/h", Code: "price_below"}, {Condition: "gpu_ram>=80", Text: "gpu_ram>=80: the lot has 24 GiB\x1b[31m"},
		}}},
	}, nil
}

func (s *stall) Show(_ context.Context, id string) (api.Explanation, error) {
	if id != s.offer.ID {
		return api.Explanation{}, fmt.Errorf("%w: offer %q: not live any more", renter.ErrRequest, id)
	}
	return api.Explanation{
		Offer: s.offer, Terms: []string{"a term"}, Warnings: []string{"a warning\x1b[31m"},
		Passport: api.Passport{Hash: "abc", Checked: true, Profile: "quick", Kernels: []string{"openblas"}, Figures: s.offer.Figures},
	}, nil
}

func (s *stall) Submit(_ context.Context, req api.RunRequest, send func(api.RunEvent) error) error {
	if s.refuse != nil {
		return s.refuse
	}
	plan := api.Plan{
		Offer: s.offer, Hold: "0.01", Budget: req.Budget, Unit: "CREDIT", BudgetEnds: 7200, CreditEnds: 1e18, ImageBytes: 3 << 20,
		Warnings: []string{"be careful"},
	}
	if err := send(api.RunEvent{Step: api.StepPlan, Plan: &plan}); err != nil || req.DryRun {
		return err
	}
	s.submitted = append(s.submitted, req)
	j := s.jobs[0]
	j.Output = req.Output
	return send(api.RunEvent{Step: api.StepDone, Job: &j})
}

func (s *stall) Watch(context.Context, market.LeaseID, func(api.RunEvent) error) error { return nil }

func (s *stall) Jobs(_ context.Context, all bool) ([]api.Job, error) {
	out := []api.Job{}
	for _, j := range s.jobs {
		if all || j.State != "ended" {
			out = append(out, j)
		}
	}
	return out, nil
}

func (s *stall) FindJob(_ context.Context, name string) (id market.LeaseID, j api.Job, err error) {
	for _, j := range s.jobs {
		if j.Name == name {
			return id, j, nil
		}
	}
	return id, j, fmt.Errorf("job %q: %w", name, renter.ErrNoJob)
}

func (s *stall) Logs(_ context.Context, _ market.LeaseID, since time.Time, _ bool, f func(api.LogLine) error) error {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, text := range []string{"one\n", "two\n", "three\n"} {
		l := api.LogLine{Time: at.Add(time.Duration(i) * time.Hour), Stream: "out", Data: []byte(text)}
		if i == 1 {
			l.Stream = "err"
		}
		if l.Time.Before(since) {
			continue
		}
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

func (s *stall) Away(_ context.Context, _ market.LeaseID, req api.AwayRequest) error {
	s.aways = append(s.aways, req)
	return s.refuse
}

func (s *stall) Signal(_ context.Context, _ market.LeaseID, req api.SignalRequest) error {
	s.signals = append(s.signals, req)
	return s.refuse
}

func (s *stall) Results(_ context.Context, _ market.LeaseID, output string) (string, error) {
	if output == "" {
		output = "/their/own"
	}
	return output, s.refuse
}

// open puts a stall behind a socket under a new home, which it gives.
func (s *stall) open(t *testing.T) (home string) {
	t.Helper()
	home, err := os.MkdirTemp("", "gf") // short: a socket's path may have 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	server, err := serve.New(serve.Config{Socket: filepath.Join(home, "run", "api.sock"), Title: "t", Version: "1"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	control.Register(server.API(), s, control.Program{
		Status: func(context.Context) (api.Status, error) {
			return api.Status{Version: cli.ThisBuild().Version, Account: "gfprovideraccount"}, nil
		},
		Shutdown: func() {},
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return home
}

func newStall() *stall {
	at := time.Now().Add(-time.Minute)
	ended := api.Job{
		ID: strings.Repeat("cd", 32), Name: "old", State: "ended", Provider: "gfprovideraccount", Model: "EPYC", Devices: 2, Image: "a.tar",
		Unit: "CREDIT", Budget: "1", Cost: "0.5", Started: &at, Seconds: 60, Exit: &api.Exit{}, Results: "complete", Output: "/o", Reason: "completed",
	}
	live := ended
	live.ID, live.Name, live.State, live.Exit, live.Results, live.Suspected = strings.Repeat("ef", 32), "new", "running", nil, "none", true
	live.Output = "/taken"
	return &stall{
		offer: api.Offer{
			ID: "8QmxYz1p.1", Provider: "gfprovideraccount", Peer: "12D3", Kind: "gpu", Model: "RTX_4090", NumGPUs: 1, Devices: 2, Free: 1, Cores: 4,
			MemoryMiB: 2048, DiskMiB: 4096, VRAMMiB: 24 << 10, Price: "0.25", Unit: "CREDIT", MinTerm: 60, MaxTerm: 7200, Region: "eu", Arch: "amd64",
			Figures: []api.Figure{{Name: "mem_copy", Text: "1.92 TB/s"}, {Name: "fp32_matmul", Text: "80.1 TFLOPS"}}, Credit: "0.1", RTTMillis: 12,
			Heard: at, Alive: true, IssuedAt: at,
		},
		jobs: []api.Job{ended, live},
	}
}

// person is a command line with what a person types at the questions.
type person struct {
	home, answers string
	tty           bool
}

func (p person) types(t *testing.T, args ...string) (code cli.ExitCode, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	term := cli.Pipe(strings.NewReader(p.answers), &o, &e)
	term.InTTY, term.ErrTTY = p.tty, p.tty
	code = execute(t.Context(), term, append([]string{"--home", p.home}, args...))
	return code, o.String(), e.String()
}

// TestVerbs wants what each verb prints, of an agent with an offer and two jobs.
func TestVerbs(t *testing.T) {
	p := person{home: newStall().open(t)}
	for _, c := range []struct {
		line string
		code cli.ExitCode
		out  []string // in stdout; nil: nothing is printed
		errs string   // in stderr
	}{
		{"search", 0, []string{"OFFER", "8QmxYz1p.1  0.25 CREDIT  RTX_4090 24 GiB   1/2", "fp32_matmul 80.1 TFLOPS, mem_copy 1.92 TB/s", "12 ms", "alive", "gfprovider (you)"}, ""},
		{"search --json", 0, []string{`{"id":"8QmxYz1p.1",`}, ""},
		{"why price<0.2 gpu_ram>=80", 0, []string{
			"CONDITION    REFUSES  ALONE", "price<0.2     1 of 2      0", "8QmxYz1p.1  0.25 CREDIT  RTX_4090 24 GiB   1/2  price<0.2: the lot has 0.25/h\n",
			"   gpu_ram>=80: the lot has 24 GiB?[31m",
		}, "1 offer matches"},
		{"why price<0.2 --json", 0, []string{`{"known":2,"matches":1,`}, ""},
		{"why nosuch>1", cli.ExitUsage, nil, "no field"},
		{"why price<1 --limit 0", cli.ExitUsage, nil, "1 to 1000"},
		{"show 8QmxYz1p.1", 0, []string{"1 of 2 free", "0.25 CREDIT per device-hour", "it is valid", "a term", "a warning?[31m", "12D3"}, ""},
		{"show 8QmxYz1p.1 --json", 0, []string{`{"offer":{`}, ""},
		{"show nosuch", cli.ExitUsage, nil, "not live any more"},
		{"ps", 0, []string{"efefefefefef  new   running, provider silent  2 x EPYC", "0.5 CREDIT"}, ""},
		{"ps -a", 0, []string{"cdcdcdcdcdcd  old   exit 0 ", "/o"}, ""},
		{"ps -q", 0, []string{"efefefefefef\n"}, ""},
		{"ps --json", 0, []string{`{"id":"efef`}, ""},
		{"logs old", 0, []string{"one\nthree\n"}, "two\n"},
		{"logs old --tail 1", 0, []string{"three\n"}, ""},
		{"logs old --since 2026-01-02T04:04:05Z", 0, []string{"three\n"}, "two\n"},
		{"logs old --json", 0, []string{`{"time":"2026-01-02T03:04:05Z","stream":"out","text":"one\n"}`, `"stream":"err"`}, ""},
		{"logs nosuch", cli.ExitNotFound, nil, "gpufair ps --all"},
		{"stop new", 0, nil, "job efefefefefef got SIGTERM; SIGKILL follows"},
		{"stop new --release", 0, nil, "the lease of job efefefefefef is released"},
		{"stop new -s usr1", 0, nil, "got SIGUSR1"},
		{"stop new --json", 0, []string{`{"id":"efef`}, ""},
		{"results old", 0, []string{"/their/own\n"}, ""},
		{"results old --json", 0, []string{`"output":"/their/own"`}, ""},
		{"agent status", 0, []string{"running  pid 0"}, ""},
		{"agent stop", cli.ExitRefused, nil, "gpufair: stop agent: jobs run"},
	} {
		code, out, errs := p.types(t, strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(errs, c.errs) || (len(c.out) == 0) != (out == "") || (c.errs == "") != (errs == "") {
			t.Errorf("%q: exit %d\nout %s\nerr %s", c.line, code, out, errs)
		}
		for _, want := range c.out {
			if !strings.Contains(out, want) {
				t.Errorf("%q does not print %q:\n%s", c.line, want, out)
			}
		}
	}
}

// TestPays: what lasts for ever is not paid "for for ever".
func TestPays(t *testing.T) {
	if a, b := pays(7200), pays(1e12); a != "pays for 2 h" || b != "never runs out" {
		t.Error(a, b)
	}
}

// TestQuestions runs an image with and without a terminal: what is asked, what is taken without asking, and what is then bought.
func TestQuestions(t *testing.T) {
	dir := t.TempDir()
	img := filepath.Join(dir, "a.tar")
	archive := containerdtest.NewImage(t, containerdtest.ImageConfig{Files: map[string][]byte{"bin/x": []byte("x")}}).Archive(t)
	if err := os.WriteFile(img, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		answers string
		tty     bool
		args    []string
		code    cli.ExitCode
		budget  string // of what was bought; empty: nothing was
		offer   string // that was pinned
		errs    []string
	}{
		"nobody to ask":  {budget: "0.25", errs: []string{"no --budget: the job may cost 0.25 CREDIT, an hour of offer 8QmxYz1p.1", "be careful"}},
		"budget given":   {args: []string{"--budget", "2"}, budget: "2", errs: []string{"2 CREDIT at the most, which pays for 2 h", "by the offer it lasts for ever; the owner may have set you another limit"}},
		"asked":          {tty: true, answers: "\ny\n", budget: "0.25", offer: "8QmxYz1p.1", errs: []string{"The most that the job may cost, in CREDIT", "Buy it?"}},
		"asked and told": {tty: true, answers: "0.5\nyes\n", budget: "0.5", offer: "8QmxYz1p.1"},
		"nonsense":       {tty: true, answers: "much\n", code: cli.ExitRun, errs: []string{`"much" is no amount`}},
		"too much":       {args: []string{"--budget", "99999999999999"}, code: cli.ExitRun, errs: []string{"is too large", "next: write 9223372036854.775807 or less"}},
		"no":             {tty: true, answers: "\nn\n", code: cli.ExitInterrupted, errs: []string{"not bought, nothing is held"}},
		"input ends":     {tty: true, answers: "\n", code: cli.ExitRun, errs: []string{"Buy it?"}},
		"--yes":          {tty: true, args: []string{"--yes"}, budget: "0.25"},
		"dry run":        {args: []string{"--dry-run"}},
		"many":           {args: []string{"--devices", "2"}, code: cli.ExitRun, errs: []string{"no live offer matches", "2 free devices"}},
		"taken folder":   {args: []string{"--output", "/taken"}, code: cli.ExitRun, errs: []string{"is to hold the results of job efefefefefef"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStall()
			p := person{home: s.open(t), answers: c.answers, tty: c.tty}
			args := []string{"run", img}
			if name != "taken folder" {
				args = append(args, "--output", filepath.Join(dir, "new"))
			}
			code, out, errs := p.types(t, append(append(args, c.args...), "--", "x", "-y")...)
			if code != c.code || (out != "") != (name == "dry run") {
				t.Errorf("exit %d\nout %s\nerr %s", code, out, errs)
			}
			for _, want := range c.errs {
				if !strings.Contains(errs, want) {
					t.Errorf("does not say %q:\n%s", want, errs)
				}
			}
			if bought := len(s.submitted) > 0; bought != (c.budget != "") {
				t.Fatalf("bought %+v\n%s", s.submitted, errs)
			}
			if c.budget == "" {
				return
			}
			if r := s.submitted[0]; r.Budget != c.budget || r.Offer != c.offer || strings.Join(r.Command, " ") != "x -y" || r.Image != img {
				t.Errorf("bought %+v", r)
			}
		})
	}
}

// TestNothingFound wants a next step that fits: whoever is connected need not join.
func TestNothingFound(t *testing.T) {
	for name, c := range map[string]struct {
		query string
		found api.SearchResult
		want  string
	}{
		"alone":     {"kind=cpu", api.SearchResult{Note: "none"}, "next: gpufair join STRING"},
		"connected": {"kind=cpu", api.SearchResult{Note: "none", Peers: 1}, "next: try again in a minute; gpufair peers"},
		"no kind":   {"", api.SearchResult{Note: "none", Known: 1, Peers: 1}, "only GPUs are searched"},
	} {
		s := newStall()
		s.nothing = &c.found
		code, _, errs := person{home: s.open(t)}.types(t, "search", c.query)
		if code != cli.ExitNothing || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit %d: %s", name, code, errs)
		}
		if code, _, errs := (person{home: s.open(t)}).types(t, "why", c.query); code != cli.ExitNothing || !strings.Contains(errs, "none") {
			t.Errorf("why %s: exit %d: %s", name, code, errs)
		}
	}
}

// TestKeptResults wants it said where results are that have no folder.
func TestKeptResults(t *testing.T) {
	j := newStall().jobs[0]
	j.Results = "kept"
	for _, got := range []string{summary(j), resultsOf(j)} {
		if !strings.Contains(got, "kept") || !strings.Contains(got, "gpufair results cdcdcdcdcdcd --output DIR") {
			t.Error(got)
		}
	}
}

// TestRefusals holds the exit codes of what an agent refuses.
func TestRefusals(t *testing.T) {
	s := newStall()
	p := person{home: s.open(t)}
	for code, want := range map[reason.Code]cli.ExitCode{
		reason.CreditLimit: cli.ExitMoney, reason.StrangersTotal: cli.ExitMoney, reason.NotPreparing: cli.ExitRefused,
	} {
		s.refuse = reason.Errorf(code, "said so")
		if got, _, errs := p.types(t, "stop", "new"); got != want || !strings.Contains(errs, "said so") {
			t.Errorf("%s: exit %d, want %d: %s", code, got, want, errs)
		}
	}
	s.refuse = fmt.Errorf("%w: job has not ended", renter.ErrRequest)
	if got, _, errs := p.types(t, "results", "new"); got != cli.ExitUsage || !strings.Contains(errs, "has not ended") {
		t.Errorf("exit %d: %s", got, errs)
	}
	s.refuse = fmt.Errorf("job efef: %w, so the job did not hear it", renter.ErrSilent)
	for _, args := range [][]string{{"stop", "new"}, {"stop", "new", "-s", "INT"}} {
		if got, out, errs := p.types(t, args...); got != cli.ExitFailure || out != "" || !strings.Contains(errs, "did not hear it") || !strings.Contains(errs, "--release") {
			t.Errorf("%v: exit %d: %s%s", args, got, out, errs)
		}
	}
	s.refuse = fmt.Errorf("no space is left in /x: %w", renter.ErrDiskFull)
	if got, _, errs := p.types(t, "results", "new"); got != cli.ExitSystem || !strings.Contains(errs, "no space is left in /x") {
		t.Errorf("exit %d: %s", got, errs)
	}
	s.refuse = reason.Errorf(reason.CreditLimit, "the offer holds too much")
	img := filepath.Join(t.TempDir(), "a.tar")
	archive := containerdtest.NewImage(t, containerdtest.ImageConfig{Files: map[string][]byte{"bin/x": []byte("x")}}).Archive(t)
	if err := os.WriteFile(img, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	got, _, errs := p.types(t, "run", img, "--budget", "1", "--output", filepath.Join(t.TempDir(), "o"))
	if got != cli.ExitRun || !strings.Contains(errs, "the offer holds too much") || !strings.Contains(errs, "next: settle or prepay") {
		t.Errorf("exit %d: %s", got, errs)
	}
}
