package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/renter/control/api"
)

const (
	startWithin = 60 * time.Second // lifeWithin for an agent that is stopping, then keys and a store on a slow disk
	startPoll   = 50 * time.Millisecond
	maxAgentLog = 8 << 20 // of agent.log, before it is put aside as agent.log.1
	tailOfLog   = 4 << 10 // bytes of it that explain a start that failed
)

// agentLog is where an agent that was started on demand logs.
func agentLog(d cli.Dirs) string { return filepath.Join(d.State, "agent.log") }

// client is a client of the agent's socket, which may or may not answer.
func (a *app) client() (api.Client, cli.Dirs, error) {
	dirs, err := a.Dirs()
	if err != nil {
		return api.Client{}, dirs, err
	}
	socket, err := dirs.Socket(wire.SocketName)
	if err != nil {
		return api.Client{}, dirs, err
	}
	return api.New(socket), dirs, nil
}

// connect is a client of a running agent; if none runs, one is started.
func (a *app) connect(ctx context.Context) (api.Client, error) {
	c, dirs, err := a.client()
	if err != nil {
		return c, err
	}
	status, err := c.Status(ctx)
	if errors.Is(err, local.ErrNotRunning) {
		if err := a.start(ctx, c, dirs); err != nil {
			return c, err
		}
		status, err = c.Status(ctx)
	}
	if err != nil {
		return c, cli.Fail(cli.ExitNoDaemon, "reach the agent", err, "its log "+agentLog(dirs)+" may say more")
	}
	if mine := cli.ThisBuild().Version; status.Version != mine {
		a.Note("gpufair: the agent is of release %s, this command of %s: `gpufair agent stop`, then it starts anew", cli.Clean(status.Version), mine)
	}
	return c, nil
}

// start starts an agent in the background, one for all commands that find none at the same time, and waits until it answers.
func (a *app) start(ctx context.Context, c api.Client, dirs cli.Dirs) error {
	s := defaults()
	if err := cli.CheckConfig(a.Program, &s); err != nil { // here, where the person sees it
		return err
	}
	if err := dirs.Make(); err != nil {
		return err
	}
	unlock, err := lock(ctx, startLock(dirs))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "start the agent", err, "the folder "+dirs.Run+" must belong to this user")
	}
	defer unlock()
	if _, err := c.Status(ctx); !errors.Is(err, local.ErrNotRunning) {
		return nil // another command was first; the caller asks again
	}
	cmd, err := a.agentProcess(dirs)
	if err != nil {
		return cli.Fail(cli.ExitSystem, "start the agent", err, "start it in another terminal: gpufair agent run")
	}
	log, from, err := openAgentLog(agentLog(dirs))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "start the agent", err, "the folder "+dirs.State+" must belong to this user")
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return cli.Fail(cli.ExitSystem, "start the agent", err, "start it in another terminal: gpufair agent run")
	}
	died := make(chan error, 1)
	go func() { died <- cmd.Wait() }() // ends with the agent, at the latest with this process
	return a.await(ctx, c, died, func() string { return tail(log, from) })
}

// agentProcess is the process of a background agent: this program with the same settings, in a session and a folder of its own.
func (a *app) agentProcess(dirs cli.Dirs) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"agent", "run"}
	if a.Home != "" {
		args = append(args, "--home", dirs.Config)
	}
	if a.ConfigPath != "" {
		path, err := filepath.Abs(a.ConfigPath)
		if err != nil {
			return nil, err
		}
		args = append(args, "--config", path)
	}
	for _, kv := range a.Set {
		args = append(args, "--set", kv)
	}
	cmd := exec.Command(self, args...) // not CommandContext: it outlives this command
	cmd.Dir = dirs.State
	cmd.Env = os.Environ()
	if home := os.Getenv(cli.HomeVariable); home != "" {
		abs, err := filepath.Abs(home) // the agent stands in another folder
		if err != nil {
			return nil, err
		}
		cmd.Env = append(cmd.Env, cli.HomeVariable+"="+abs)
	}
	detach(cmd)
	return cmd, nil
}

// await waits until the agent answers, dies or takes too long.
func (a *app) await(ctx context.Context, c api.Client, died <-chan error, said func() string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, errSlowStart)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		if _, err := c.Status(ctx); err == nil {
			return nil
		}
		select {
		case err := <-died:
			if err == nil {
				err = errors.New("it ended at once")
			}
			return cli.Fail(cli.ExitNoDaemon, "start the agent", fmt.Errorf("%w; it said:\n%s", err, said()),
				"mend what it says; `gpufair agent run` starts it where you see it")
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errSlowStart) {
				return cause
			}
			return cli.Fail(cli.ExitNoDaemon, "start the agent", fmt.Errorf("%w; so far it said:\n%s", errSlowStart, said()),
				"try again in a moment: it may still come up")
		case <-poll.C:
		}
	}
}

var errSlowStart = fmt.Errorf("no answer within %v", startWithin)

// openAgentLog opens the log for appending and says where it ends now. A large one is put aside first.
func openAgentLog(path string) (*os.File, int64, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxAgentLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, end, nil
}

// tail is the end of what was written to a log from an offset on.
func tail(f *os.File, from int64) string {
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	from = max(from, info.Size()-tailOfLog)
	b := make([]byte, info.Size()-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b[:n])), "\n")
	for i, l := range lines {
		lines[i] = cli.Clean(l)
	}
	return strings.Join(lines, "\n")
}

// explained gives an error of the agent's API its exit code and next step; an empty what leaves the agent's own words.
func explained(what string, err error) error {
	var refused *local.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, local.ErrNotRunning):
		return cli.Fail(cli.ExitNoDaemon, what, err, "the agent has just stopped: try again")
	case !errors.As(err, &refused):
		return fmt.Errorf("%s: %w", what, err)
	}
	if what == "" {
		what, err = refused.Error(), nil
	}
	return cli.Fail(exitOf(refused.Status, refused.Code), what, err, refused.Next)
}

// exitOf is the exit code of a refusal.
func exitOf(status int, code string) cli.ExitCode {
	switch reason.Code(code) {
	case "":
	case reason.CreditLimit, reason.StrangersTotal, reason.CreditOver:
		return cli.ExitMoney
	default:
		return cli.ExitRefused
	}
	switch status {
	case http.StatusNotFound:
		return cli.ExitNotFound
	case http.StatusUnprocessableEntity, http.StatusBadRequest:
		return cli.ExitUsage
	case http.StatusConflict:
		return cli.ExitRefused
	case http.StatusInsufficientStorage:
		return cli.ExitSystem
	}
	return cli.ExitFailure
}
