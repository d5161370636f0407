package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpufair/gpufair/provider/containerd"
)

// TestMain lets the test's own program be gpufaird: under that name for the scripts and the tests of the running daemon, and with the
// hidden verbs for the children that a daemon starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == probeVerb || os.Args[1] == jobnetVerb || os.Args[1] == containerd.LoggerVerb) {
		main()
	}
	testscript.Main(m, map[string]func(){"gpufaird": main})
}

// TestScripts runs the verbs as a person does, without a daemon.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("GPUFAIR_HOME", e.WorkDir+"/h")
			e.Setenv("NO_COLOR", "1")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
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
