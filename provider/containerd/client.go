// Package containerd runs jobs with containerd: it fulfils provider.Runtime and is the sole importer of containerd's client. It decides
// nothing about leases and makes no spec of its own beyond what only the host can know (seccomp profile, cgroup path, numeric user).
package containerd

import (
	"context"
)

// Config is how to reach containerd.
type Config struct {
	Address   string // absolute path of containerd's socket, e.g. /run/containerd/containerd.sock
	Namespace string // containerd namespace, e.g. "gpufair"; two daemons on one machine use two
	// RuntimeRoot is where runc keeps its state; empty: runc's shim's own. A private containerd needs its own, since by default it is shared by
	// all daemons on a machine.
	RuntimeRoot string
	// Logger is the absolute path of the program that writes a job's log: it must call [LoggerMain] when its first argument is [LoggerVerb].
	Logger string
}

// LoggerVerb is the hidden verb that the logger program is started with, followed by one argument for [LoggerMain].
const LoggerVerb = "job-log"

// LoggerMain is the logger beside each job: started by containerd's shim, it copies the job's output into its log until the job closes it,
// outliving containerd and the provider's daemon. It does not return: it exits the process.
func LoggerMain(arg string) {}

// Client is a connection to containerd. It may be used by several goroutines at once.
type Client struct{}

// New checks the configuration and connects lazily: it does not fail because containerd is down; [Client.Info] does.
func New(c Config) (*Client, error) { return nil, nil }

// Close ends the connection. Containers go on.
func (c *Client) Close() error { return nil }

var _ = context.Background
