//go:build unix

package rail_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/ledger/rail"
)

// program writes a program of the shell, where the user that runs it can read it, and gives it.
func program(t *testing.T, text string) rail.Command {
	t.Helper()
	dir, err := os.MkdirTemp("", "rail")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755)); err != nil {
		t.Fatal(err)
	}
	return rail.Command{Args: []string{path, "a b", "$(id)"}, Timeout: time.Minute}
}

var (
	invoice = rail.Request{Action: rail.Invoice, Key: strings.Repeat("ab", 32), Account: "gfme", Peer: "gfyou", Unit: "CREDIT", Amount: "3.5", Methods: []string{"bank"}}
	check   = rail.Request{Action: rail.Check, Reference: "17", Method: "bank", Amount: "3.5"}
	pay     = rail.Request{Action: rail.Pay, Reference: "17", Method: "bank", Pay: "IBAN", Amount: "3.5"}
)

// TestAnswers are what a program may say to each action, and what not.
func TestAnswers(t *testing.T) {
	for _, x := range []struct {
		ask  rail.Request
		says string
		want rail.Answer // zero: an error
	}{
		{invoice, `{"reference":"17","pay":"IBAN XY","later":1}`, rail.Answer{State: rail.Open, Reference: "17", Method: "bank", Pay: "IBAN XY"}},
		{invoice, `{"reference":"17","method":"lightning","state":"open"}`, rail.Answer{State: rail.Open, Reference: "17", Method: "lightning"}},
		{invoice, `{"reference":"17","state":"paid"}`, rail.Answer{}},
		{invoice, `{}`, rail.Answer{}},
		{invoice, ``, rail.Answer{}},
		{invoice, `not json`, rail.Answer{}},
		{invoice, `{"reference":"a\u0007"}`, rail.Answer{}},
		{invoice, `{"reference":"` + strings.Repeat("x", 129) + `"}`, rail.Answer{}},
		{invoice, `{"reference":"1","pay":"` + strings.Repeat("x", 5000) + `"}`, rail.Answer{}},
		{invoice, `{"reference":"17"}{"reference":"18"}`, rail.Answer{}},
		{check, `{"state":"open"}`, rail.Answer{State: rail.Open}},
		{check, `{"state":"paid","amount":"3.5"}`, rail.Answer{State: rail.Paid, Amount: "3.5"}},
		{check, `{"state":"expired"}`, rail.Answer{State: rail.Expired}},
		{check, `{"state":"refused"}`, rail.Answer{}},
		{check, `{"state":"yes"}`, rail.Answer{}},
		{pay, `{"state":"paid"}`, rail.Answer{State: rail.Paid}},
		{pay, `{"state":"refused","why":"no route"}`, rail.Answer{State: rail.Refused, Why: "no route"}},
		{pay, `{"state":"expired"}`, rail.Answer{}},
	} {
		got, err := program(t, "cat >/dev/null\ncat <<'END'\n"+x.says+"\nEND\n").Do(t.Context(), x.ask)
		if got != x.want && x.want != (rail.Answer{}) || (x.want == rail.Answer{}) != errors.Is(err, rail.ErrAnswer) {
			t.Errorf("%s: %.80q: %+v, %v", x.ask.Action, x.says, got, err)
		}
	}
}

// TestRequest is what a program reads: one line, all of it, and no shell before it.
func TestRequest(t *testing.T) {
	c := program(t, `read line
[ "$1" = "a b" ] && [ "$2" = '$(id)' ] || exit 9
printf '%s' "$line" >&2
exit 1
`)
	_, err := c.Do(t.Context(), rail.Request{Action: rail.Invoice, Key: "k", Account: "gfme", Peer: "gfyou", Unit: "EUR", Amount: "1"})
	want := `{\"version\":1,\"action\":\"invoice\",\"key\":\"k\",\"account\":\"gfme\",\"peer\":\"gfyou\",\"unit\":\"EUR\",\"amount\":\"1\"}`
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "exit status 1") {
		t.Error(err)
	}
}

// TestConfined: none of the daemon's environment, files and rights.
func TestConfined(t *testing.T) {
	t.Setenv("GPUFAIR_SECRET", "x")
	inherited, err := syscall.Dup(0) // not to be closed by exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	c := program(t, `cat >/dev/null
[ "$(pwd)" = / ] || exit 2
env | grep -q SECRET && exit 3
fds=$(ls /proc/self/fd 2>/dev/null | tr "\n" " "); [ "$fds" = "0 1 2 3 " ] || [ "$fds" = "0 1 10 2 3 " ] || [ ! -d /proc/self ] || { echo "$fds" >&2; exit 4; }
[ "$(id -u)" != 0 ] || exit 5
[ "$(id -G)" = "$(id -g)" ] || [ "`+fmt.Sprint(os.Geteuid())+`" != 0 ] || exit 6
echo '{"state":"open"}'
`)
	if _, err := c.Do(t.Context(), check); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		c.User = "root"
		if _, err := c.Do(t.Context(), check); err == nil {
			t.Error("it ran as root")
		}
	}
	if err := os.Chmod(c.Args[0], 0o777); err != nil {
		t.Fatal(err)
	}
	c.User = ""
	if _, err := c.Do(t.Context(), check); err == nil || !strings.Contains(err.Error(), "may change it") {
		t.Errorf("a program that anybody may change: %v", err)
	}
}

// TestMisbehaves: a program that hangs, floods or fails ends soon, with a line that says so; nothing of it is left running.
func TestMisbehaves(t *testing.T) {
	for name, x := range map[string]struct{ text, want string }{
		"hangs":       {"", "no answer within 10s"},
		"hangs apart": {"wait\n", "no answer within 10s"},
		"floods":      {"exec cat /dev/zero\n", "more than 65536 bytes"},
		"chatters":    {"head -c 1000000 /dev/zero >&2; echo gone >&2; exit 3\n", "exit status 3"},
		"dies":        {"kill -9 $$\n", "signal: killed"},
		"fails":       {"echo first >&2; printf 'no money\\033[2J\\n' >&2; exit 1\n", `exit status 1 (it said "no money [2J")`},
		"holds pipes": {"echo '{\"state\":\"open\"}'\nexit\n", ""},
	} {
		child := "sleep 1000 >/dev/null 2>&1 &"
		if name == "holds pipes" {
			child = "sleep 1000 &"
		}
		c := program(t, child+"\necho $! $$ >\"${0%/*}/pids\"\n"+x.text+"sleep 1000\n")
		pids := filepath.Join(filepath.Dir(c.Args[0]), "pids")
		if err := errors.Join(os.WriteFile(pids, nil, 0o666), os.Chmod(pids, 0o666)); err != nil { // the user that runs it writes it
			t.Fatal(err)
		}
		c.Timeout = 10 * time.Second // enough to start it and its child, on a busy machine
		if !strings.HasPrefix(x.want, "no answer") {
			c.Timeout = time.Minute
		}
		got, err := c.Do(t.Context(), check)
		if x.want == "" && (err != nil || got.State != rail.Open) || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		ended(t, name, pids)
	}
}

// ended checks that no process of those that a file lists is left. The system may take a moment to end one that was killed.
func ended(t *testing.T, name, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(text))
	if len(pids) != 2 {
		t.Fatalf("%s: it wrote %q", name, text)
	}
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); running(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s: process %d is left running", name, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
		}
	}
}

// running reports whether a process is there and not merely waiting to be buried by its parent.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

// TestNoAnswer: a program that asks for time, is not there, or is stopped with the daemon.
func TestNoAnswer(t *testing.T) {
	if _, err := program(t, "exit 75\n").Do(t.Context(), check); !errors.Is(err, rail.ErrLater) {
		t.Errorf("later: %v", err)
	}
	if _, err := (rail.Command{Args: []string{"/nowhere/there"}}).Do(t.Context(), check); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := program(t, "sleep 1000\n").Do(ctx, check); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}

// TestCheck: what the first payment would find out is found before.
func TestCheck(t *testing.T) {
	c := program(t, "exit 1\n")
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if err := (rail.Command{Args: []string{"/nowhere/there"}}).Check(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("not there: %v", err)
	}
	if os.Geteuid() == 0 {
		var unknown user.UnknownUserError
		if err := (rail.Command{Args: c.Args, User: "gpufair-nobody-is-called-so"}).Check(); !errors.As(err, &unknown) {
			t.Errorf("a user who is not there: %v", err)
		}
		if err := (rail.Command{Args: c.Args, User: "root"}).Check(); err == nil {
			t.Error("root passes")
		}
		if err := os.Chmod(filepath.Dir(c.Args[0]), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), `user "nobody" may not run it`) {
			t.Errorf("in a folder that its user may not enter: %v", err)
		}
	}
	if err := os.Chmod(c.Args[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "no program") {
		t.Errorf("not executable: %v", err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []rail.Command{{}, {Args: []string{"pay.sh"}}, {Args: []string{"/bin/pay"}, Timeout: time.Hour}, {Args: []string{"/bin/pay"}, Timeout: 1}} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
	if err := (rail.Command{Args: []string{"/bin/pay", "x"}}).Validate(); err != nil {
		t.Error(err)
	}
}
