// Package containerd runs jobs with containerd: it fulfils provider.Runtime and is the sole importer of containerd's client. It decides
// nothing about leases and makes no spec of its own beyond what only the host can know: seccomp profile, cgroup path, numeric user.
// It touches only its own containerd namespace, and keeps nothing in memory: a new process finds every container of the old one.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/gpufair/gpufair/provider"
)

// Config is how to reach containerd.
type Config struct {
	Address   string // absolute path of containerd's socket, e.g. /run/containerd/containerd.sock
	Namespace string // containerd namespace, e.g. "gpufair"; two daemons on one machine use two
	// RuntimeRoot is where runc keeps its state; empty: /run/containerd/runc, which all containerd daemons of a machine share. A private
	// containerd that could meet its own namespace's name there needs another.
	RuntimeRoot string
	// Logger is the absolute path of the program that writes a job's log: with [LoggerVerb] as its first argument it gives its second to
	// provider/access.RunLogger.
	Logger string
}

// Validate says what is wrong with the configuration, and what to do.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.Address):
		return fmt.Errorf("containerd address %q: not an absolute path: give the path of its socket, usually /run/containerd/containerd.sock", c.Address)
	case len(c.Address) > 107:
		return fmt.Errorf("containerd address %q: longer than the 107 bytes that a unix socket may have", c.Address)
	case !regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`).MatchString(c.Namespace):
		return fmt.Errorf("containerd namespace %q: use 1 to 63 of a-z, 0-9, - and _", c.Namespace)
	case c.RuntimeRoot != "" && !filepath.IsAbs(c.RuntimeRoot):
		return fmt.Errorf("containerd runtime root %q: not an absolute path", c.RuntimeRoot)
	case !filepath.IsAbs(c.Logger):
		return fmt.Errorf("job logger %q: not an absolute path", c.Logger)
	}
	return nil
}

// maxReconnect is the longest pause between attempts to reach a containerd that is down: how late its return may be seen.
const maxReconnect = time.Second

// Client is a connection to containerd. It may be used by several goroutines at once.
type Client struct {
	config  Config
	client  *containerd.Client
	cgroups cgroups
	making  locks // so that a repeated Create or a Delete does not meet the first one half-way

	shifts *bool // guarded by the lock of no id; whether jobs can have user namespaces, once it was tried: it does not change while the host runs
}

var _ provider.Runtime = (*Client)(nil)

// New checks the configuration and prepares a connection that is made, and made again, when needed: it does not fail because containerd
// is down; [Client.Info] does.
func New(c Config) (*Client, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	client, err := containerd.New(c.Address, containerd.WithTimeout(maxReconnect))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", c.Address, err)
	}
	return &Client{config: c, client: client, cgroups: hostCgroups("/sys/fs/cgroup")}, nil
}

// Close ends the connection. Containers go on.
func (c *Client) Close() error {
	c.cgroups.tidy("/" + c.config.Namespace)
	return c.client.Close()
}

// Info implements provider.Runtime.
func (c *Client) Info(ctx context.Context) (provider.RuntimeInfo, error) {
	v, err := c.client.Version(c.with(ctx))
	if err != nil {
		return provider.RuntimeInfo{}, c.fail(err, "ask its version")
	}
	info := provider.RuntimeInfo{Name: "containerd", Version: strings.TrimSpace(v.Version), Sandbox: "runc", Cgroup: c.cgroups.version()}
	unlock, err := c.making.lock(ctx, "") // no container has this id
	if err != nil {
		return provider.RuntimeInfo{}, err
	}
	defer unlock()
	if c.shifts == nil {
		can, err := c.userNamespaces(c.with(ctx))
		if err != nil {
			return provider.RuntimeInfo{}, c.fail(err, "look what it can do")
		}
		c.shifts = &can
	}
	info.UserNamespace = *c.shifts
	return info, nil
}

// with puts our namespace into ctx.
func (c *Client) with(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, c.config.Namespace)
}

// fail wraps an error of containerd with what was done, so that it keeps its kind; nil stays nil.
func (c *Client) fail(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	op := fmt.Sprintf(format, args...)
	for _, kind := range []error{
		provider.ErrNotFound, provider.ErrImage, provider.ErrCommand, provider.ErrUnavailable, provider.ErrNoSpace, provider.ErrRequest, provider.ErrState,
	} {
		if errors.Is(err, kind) {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	native := errgrpc.ToNative(err) // some of the client's errors are native already, others are gRPC's
	is := func(kind func(error) bool) bool { return kind(err) || kind(native) }
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", op, err)
	case errors.Is(native, context.Canceled), errors.Is(native, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", op, native)
	case is(errdefs.IsUnavailable):
		return fmt.Errorf("%s: %w: %s", op, provider.ErrUnavailable, c.why(native))
	case is(errdefs.IsNotFound):
		return fmt.Errorf("%s: %w: %w", op, provider.ErrNotFound, native)
	case strings.Contains(native.Error(), "no space left on device"):
		return fmt.Errorf("%s: %w: %w", op, provider.ErrNoSpace, native)
	}
	return fmt.Errorf("%s: %w", op, native)
}

// why says why containerd does not answer, which its own error does not. What to do about it depends on the machine: the caller knows.
func (c *Client) why(err error) string {
	_, serr := os.Stat(c.config.Address)
	switch {
	case errors.Is(serr, fs.ErrNotExist):
		return "its socket is not there: containerd is not installed, does not run, or has another address"
	case errors.Is(serr, fs.ErrPermission), strings.Contains(err.Error(), "permission denied"):
		return "no permission for its socket: run as root"
	case strings.Contains(err.Error(), "connection refused"):
		return "nothing listens on its socket: containerd has stopped"
	}
	return fmt.Sprintf("%v: containerd has stopped or is starting", err)
}
