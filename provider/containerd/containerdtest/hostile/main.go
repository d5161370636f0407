// Command hostile is the program in the hostile image of the tests: it tries what code that means harm tries in a sandbox, one thing after
// another, and says of each whether it came off. Nothing that it tries would do damage if it did: it opens for writing and does not write,
// asks for a module that is not there, sets the clock to what it is. It is built static; nothing of it is in any program of gpufair.
package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// oneIn is how long one attempt may take on a busy machine.
const oneIn = 20 * time.Second

// exitAbsent is how an attempt ends at what this host's kernel does not have.
const exitAbsent = 3

var errAbsent = errors.New("this kernel does not have it")

// attempts give nil if they came off. They run each in a process of its own.
func attempts() map[string]func() error {
	all := map[string]func() error{}
	for _, some := range []map[string]func() error{kernel(), privileges(), files(), others(), resources()} {
		maps.Copy(all, some)
	}
	return all
}

func main() {
	all := attempts()
	switch {
	case len(os.Args) == 2 && os.Args[1] == "sleep":
		time.Sleep(time.Hour)
		return
	case len(os.Args) == 2 && os.Args[1] == "root": // is it, in effect?
		os.Exit(min(os.Geteuid(), 1))
	case len(os.Args) == 3 && os.Args[1] == "one":
		if err := all[os.Args[2]](); err != nil {
			fmt.Print(err)
			if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, errAbsent) {
				os.Exit(exitAbsent)
			}
			os.Exit(1)
		}
		return
	}
	names := os.Args[1:]
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(all))
	}
	for _, name := range names {
		if all[name] == nil {
			fmt.Printf("%s\tunknown\t\n", name)
			continue
		}
		came, why := try(name)
		fmt.Printf("%s\t%s\t%s\n", name, came, why)
	}
}

// try makes one attempt: "done", "denied" and by what, or "absent".
func try(name string) (came, why string) {
	cmd := exec.Command("/bin/hostile", "one", name)
	var out strings.Builder
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return "broken", err.Error()
	}
	stop := time.AfterFunc(oneIn, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !stop.Stop() {
		return "broken", "it hung"
	}
	said := strings.ReplaceAll(out.String(), "\n", " ")
	switch {
	case err == nil:
		return "done", said
	case cmd.ProcessState.ExitCode() == exitAbsent:
		return "absent", said
	case cmd.ProcessState.ExitCode() == 1:
		return "denied", said
	}
	return "denied", err.Error() // killed: by its limits, or by seccomp
}
