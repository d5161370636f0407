package e2e

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/ledger/statement"
	provided "github.com/gpufair/gpufair/provider/control/api"
	rented "github.com/gpufair/gpufair/renter/control/api"
)

// interrupts sends Ctrl-C at each step of `run`.
func interrupts(t *testing.T, s *site) {
	p := s.newPair(t, s.daemon, "interrupt")
	p.interruptedQuestions()
	p.interruptedPush()
	p.interruptedJob()
	p.interruptedTwice()
}

// Before the order nothing is held: at the question for the budget, and at the one whether to buy.
func (p *pair) interruptedQuestions() {
	p.sees(p.renter)
	run := p.renter.terminal("run", p.image, "-q", "kind=cpu", "--output", p.out("asked"), "--", "job", "exit", "0")
	run.says("The most that the job may cost")
	run.types("\x03")
	if code := run.ends(patience); code != 130 {
		p.t.Errorf("Ctrl-C at the budget ended run with %d:\n%s", code, run.out.String())
	}
	run = p.renter.terminal("run", p.image, "-q", "kind=cpu", "--output", p.out("asked"), "--", "job", "exit", "0")
	run.says("The most that the job may cost")
	run.types("0.5\r")
	run.says("Buy it?")
	run.types("\x03")
	if code := run.ends(patience); code != 130 || !strings.Contains(run.out.String(), "nothing is held") {
		p.t.Errorf("Ctrl-C at the plan ended run with %d:\n%s", code, run.out.String())
	}
	if jobs := all[rented.Job](p.renter.ok("ps", "--all", "--json")); len(jobs) > 0 {
		p.t.Errorf("jobs: %+v", jobs)
	}
	p.nothingHeld()
}

// nothingHeld checks that neither ledger has a hold.
func (p *pair) nothingHeld() {
	p.t.Helper()
	for _, h := range []*home{p.renter, p.owner} {
		for _, b := range one[statement.Ledger](h.ok("ledger", "show", "--json")).Balances {
			if b.Held != "0" {
				p.t.Errorf("held: %+v", b)
			}
		}
	}
}

// While image and inputs are pushed, Ctrl-C lets the lease go: nothing is charged, and the device is free again.
func (p *pair) interruptedPush() {
	big := filepath.Join(p.work, "big")
	f, err := os.Create(big)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.CopyN(f, rand.Reader, 256<<20); err != nil { // seconds on loopback, so that the signal arrives in the middle
		p.t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.sees(p.renter)
	run := p.renter.start("run", p.image, "-q", "kind=cpu", "--budget", "1", "--name", "push", "--input", big, "--output", p.out("push"), "--", "job", "exit", "0")
	run.says("pushing")
	run.signal(os.Interrupt)
	if code := run.ends(patience); code == 0 || !strings.Contains(run.err.String(), "releasing the lease") {
		p.t.Errorf("Ctrl-C at the push ended run with %d:\n%s", code, run.err.String())
	}
	if err := os.Remove(big); err != nil {
		p.t.Error(err)
	}
	job := p.job("push")
	if job.State != "ended" || job.Cost != "0" || job.Started != nil {
		p.t.Errorf("ps after Ctrl-C at the push: %+v", job)
	}
	p.released(job.ID, "0")
}

// released waits until the owner has let a lease go at a charge and has its device back.
func (p *pair) released(id, charge string) {
	p.t.Helper()
	eventually(p.t, "the owner to end the lease", patience, func() bool { return p.lease(id).State == "ended" })
	if l := p.lease(id); charge != "" && l.Charge != charge {
		p.t.Errorf("the owner charges %s, want %s: %+v", l.Charge, charge, l)
	}
	eventually(p.t, "the device to be free", patience, func() bool { return p.owner.status().Devices[0].State == provided.DeviceFree })
	p.sameMoney(id)
	p.nothingHeld()
}

// While the job runs the first Ctrl-C is its own, and so is the exit code.
func (p *pair) interruptedJob() {
	p.sees(p.renter)
	run := p.renter.start("run", p.image, "-q", "kind=cpu", "--budget", "1", "--name", "polite", "--output", p.out("polite"), "--", "job", "ctrl-c", "1")
	run.says("ready\n")
	run.signal(os.Interrupt)
	if code := run.ends(patience); code != 130 || !strings.Contains(run.out.String(), "interrupt 1\n") {
		p.t.Errorf("a job that ends at Ctrl-C: %d\n%s%s", code, run.out.String(), run.err.String())
	}
	if job := p.job("polite"); job.Reason != "completed" || job.Exit == nil || job.Exit.Code != 130 {
		p.t.Errorf("ps: %+v", job)
	}
	p.sameMoney(p.job("polite").ID)
}

// A job that goes on after Ctrl-C loses its lease at the second.
func (p *pair) interruptedTwice() {
	p.sees(p.renter)
	run := p.renter.start("run", p.image, "-q", "kind=cpu", "--budget", "1", "--name", "stubborn", "--output", p.out("stubborn"), "--", "job", "ctrl-c", "99")
	run.says("ready\n")
	run.signal(os.Interrupt)
	run.says("interrupt 1\n")
	run.signal(os.Interrupt)
	run.says("releasing the lease")
	if code := run.ends(patience); code == 0 || code == 130 {
		p.t.Errorf("a job whose lease was released: %d\n%s", code, run.err.String())
	}
	job := p.job("stubborn")
	if job.State != "ended" || job.Reason != "stopped_renter" {
		p.t.Errorf("ps: %+v", job)
	}
	p.released(job.ID, "")
}

// terminal starts a command on a terminal of its own, as a person's shell does.
func (h *home) terminal(args ...string) *typist {
	h.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	p := &typist{process: process{h: h, cmd: h.command(h.t.Context(), args...)}, keys: master}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p.read = make(chan struct{})
	h.t.Cleanup(func() { // after that of launch
		master.Close()
		<-p.read
	})
	p.launch()
	if err := slave.Close(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		defer close(p.read)
		if _, err := io.Copy(&p.out, master); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) { // EIO: the last one hung up
			h.t.Errorf("read the terminal: %v", err)
		}
	}()
	return p
}

// typist is a process on a terminal.
type typist struct {
	process
	keys *os.File
	read chan struct{} // closed once all that it wrote is in out
}

// ends waits for the process's end and the last of what it wrote.
func (p *typist) ends(limit time.Duration) int {
	p.h.t.Helper()
	code := p.process.ends(limit)
	<-p.read
	return code
}

func (p *typist) types(text string) {
	p.h.t.Helper()
	if _, err := p.keys.WriteString(text); err != nil {
		p.h.t.Fatal(err)
	}
}
