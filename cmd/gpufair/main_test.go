package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/renter/control/api"
)

// TestMain lets the test's own program be gpufair: under that name for the scripts, and for the agents that they start.
func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"gpufair": main}) }

// TestScripts runs the verbs as a person does, with an agent of each script's own that knows no peers.
func TestScripts(t *testing.T) {
	image := containerdtest.NewImage(t, containerdtest.ImageConfig{Files: map[string][]byte{"bin/job": []byte("x")}}).Archive(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, "h")
			e.Setenv(cli.HomeVariable, home)
			e.Setenv("GPUFAIR_LISTEN", "127.0.0.1:0")
			e.Setenv("NO_COLOR", "1")
			e.Defer(func() {
				stop := exec.Command("gpufair", "--home", home, "agent", "stop", "--force")
				if out, err := stop.CombinedOutput(); err != nil {
					t.Errorf("agent of %s not stopped: %v\n%s", e.WorkDir, err, out)
				}
			})
			return os.WriteFile(filepath.Join(e.WorkDir, "image.tar"), image, 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits, "killagent": killAgent, "field": field},
	})
}

// exits CODE PROGRAM ARGS... runs a program that must end with this exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
	case err != nil:
		ts.Fatalf("run %v: %v", args[1:], err)
	case want != 0:
		ts.Fatalf("%v ended with 0, want %d", args[1:], want)
	default:
		return
	}
	if exit.ExitCode() != want {
		ts.Fatalf("%v ended with %d, want %d", args[1:], exit.ExitCode(), want)
	}
}

// killagent ends the agent as a crash would: its socket and its lock files are left behind.
func killAgent(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(ts.Exec("gpufair", "agent", "status", "--json"))
	var s api.Status
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &s))
	p, err := os.FindProcess(s.PID)
	ts.Check(err)
	ts.Check(p.Kill())
	for ts.Exec("gpufair", "agent", "status") == nil { // until it is gone
	}
}

// field FILE NAME VARIABLE takes a text out of an object of JSON into the environment.
func field(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: field FILE NAME VARIABLE")
	}
	var v map[string]any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	text, ok := v[args[1]].(string)
	if !ok {
		ts.Fatalf("%s has no text %q", args[0], args[1])
	}
	ts.Setenv(args[2], text)
}
