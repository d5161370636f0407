package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestDoctorProvesDenial lets doctor prove the denial on a machine that has no network, and on one that has no way to make the job's.
func TestDoctorProvesDenial(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	doctor := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), self, append(args, "--set", "runtime.address="+t.TempDir()+"/none.sock", "doctor")...)
		cmd.Args[0] = "gpufaird"
		cmd.Env = append(os.Environ(), "GPUFAIR_HOME="+t.TempDir(), "NO_COLOR=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatalf("doctor in a network namespace (run these tests as root): %v", err)
		}
		return out.String()
	}
	for set, want := range map[string]string{
		"egress.internet=false": "ok    job network: jobs have none: a try just now found no way to any of ",
		"egress.internet=true":  "ok    job network: the internet, and nothing of yours: ",
	} {
		if out := doctor("--set", set); !strings.Contains(out, want) {
			t.Errorf("with %s doctor says no %q:\n%s", set, want, out)
		}
	}
	c := defaults()
	if got := checkDenial(t.Context(), &c, "/no/program"); got.Level != "fail" || !strings.Contains(got.Detail, "could not be tried") {
		t.Errorf("without the child: %+v", got)
	}
}
