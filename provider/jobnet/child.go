package jobnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider/reach"
)

// What the child is born with, by descriptor. Standard input brings its settings, standard output takes the word that it is ready.
const (
	fdTUN      = 3 + iota // the outside of the job's interface
	fdJob                 // a pidfd of the job's first process
	fdCounters            // counters, read and written
	fdLogOld              // the flow log's two files
	fdLogNew
)

// settings are what a child must know.
type settings struct {
	Rate uint64         `json:"rate"` // bytes a second, each way
	Cap  uint64         `json:"cap"`  // bytes, both ways together
	Deny []netip.Prefix `json:"deny"` // what the owner denies besides
}

// Bounds of one child, whatever its job does.
const (
	maxTCP      = 512                  // connections at once
	maxUDP      = 512                  // UDP flows at once
	maxDialing  = 128                  // TCP connections being made at once; more wait for their next SYN
	newFlows    = 200                  // a second
	flowBurst   = 400                  // new flows at once
	maxLookups  = 32                   // names being looked up at once
	chunk       = 64 << 10             // bytes that a flow moves at a time
	windowBytes = 512 << 10            // that a TCP connection may hold unread, each way: the job's end is microseconds away
	maxFiles    = maxTCP + maxUDP + 64 // descriptors
	softMemory  = 512 << 20            // bytes at which the child collects garbage harder
	maxMemory   = 1 << 30              // bytes of data, besides what it starts with, at which the kernel ends it, and with it the job's way out
)

// ready is the child's word that the job's packets are answered.
const ready = "ready\n"

// RunChild is the main function of the child process that holds one job's network: the program given to [New] calls it with the policy and
// exits with its error. It ends with the job, with
// SIGTERM or with ctx, and the job's way out ends with it. It has no privileges.
func RunChild(ctx context.Context, policy func(owner []netip.Prefix) *reach.Policy) error {
	if err := shut(); err != nil {
		return err
	}
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return fmt.Errorf("settings of the job's network: %w", err)
	}
	if s.Rate == 0 || s.Cap == 0 {
		return errors.New("settings of the job's network: rate and byte cap must both be there")
	}
	// The lock is how the child is found again, by whoever may read the counters: it goes with the process.
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(fdCounters, unix.F_SETLK, &lock); err != nil {
		return fmt.Errorf("the lease's network has another child: %w", err)
	}
	file := os.NewFile(fdCounters, "counters")
	c, err := mapCounters(file)
	if err != nil {
		return err
	}
	log, err := openFlowLog(os.NewFile(fdLogOld, "flows"), os.NewFile(fdLogNew, "flows"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	n := newRouter(ctx, s, policy(s.Deny), c, log)
	closed, err := n.serve(fdTUN)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return fmt.Errorf("say that the network is ready: %w", err)
	}
	gone := make(chan error, 1)
	go func() { gone <- awaitJob(fdJob) }()
	select {
	case err = <-gone:
	case err = <-closed:
	case <-ctx.Done():
	}
	runtime.KeepAlive(file) // its lock goes when it is closed
	return errors.Join(err, log.close())
}

// shut gives up what a child needs no more: it can gain no privilege by executing, dumps no core, and its files and memory are bounded.
func shut() error {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if set == 0 {
		// The flag is a thread's. Executing itself, the process has it in every thread.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no new privileges: %w", err)
		}
		return fmt.Errorf("no new privileges: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var size, resident, shared, text, lib, data uint64 // pages (proc_pid_statm(5))
	if _, err := fmt.Sscan(string(statm), &size, &resident, &shared, &text, &lib, &data); err != nil {
		return fmt.Errorf("memory of the job's network: %w", err)
	}
	most := data*uint64(os.Getpagesize()) + maxMemory // on top of what the program has mapped by itself
	for which, limit := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: maxFiles, unix.RLIMIT_DATA: most} {
		if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit %d of the job's network: %w", which, err)
		}
	}
	debug.SetMemoryLimit(softMemory)
	return nil
}

// awaitJob returns when the job's first process has ended.
func awaitJob(pidfd int) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
