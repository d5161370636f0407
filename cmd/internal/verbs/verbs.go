// Package verbs is the commands that both programs have in the same words: ledger, credit, settle, identity, invite, join, peers,
// doctor. They talk to the program's local API and print what it answers; they decide nothing, and know neither offers nor jobs.
package verbs

import (
	"context"
	"errors"
	"net/http"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/p2p/local"
)

// Daemon is the program whose verbs they are, and how to reach what runs behind it.
type Daemon struct {
	*cli.Program
	Title string // what runs: "gpufaird", "the agent"
	Start string // the command that starts it
	Lends bool   // others come to owe this account: the verbs of an owner are there, too
	// Place is the folder of the daemon's state and the socket of its local API, by the settings.
	Place func() (state, socket string, err error)
	// Client gives a client of the running daemon, starting it first where that is the program's way. Nil: the socket of Place.
	Client func(ctx context.Context) (*local.Client, error)
	// Static are the findings of doctor without a running daemon.
	Static func(ctx context.Context) []local.Check
}

// Dial gives a client of the daemon.
func (d *Daemon) Dial(ctx context.Context) (*local.Client, error) {
	if d.Client != nil {
		return d.Client(ctx)
	}
	_, socket, err := d.Place()
	if err != nil {
		return nil, err
	}
	return local.NewClient(socket), nil
}

// Explain makes an error of the local API one for a person, with the exit code of docs/cli.md. what is the operation and its subject.
func (d *Daemon) Explain(what string, err error) error {
	var refused *local.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, local.ErrNotRunning):
		return cli.Fail(cli.ExitNoDaemon, what, err, "start it: "+d.Start)
	case !errors.As(err, &refused):
		return cli.Fail(cli.CodeOf(err), what, err, "")
	}
	code := cli.ExitFailure
	switch {
	case refused.Code != "":
		code = cli.ExitRefused
	case refused.Status == http.StatusNotFound:
		code = cli.ExitNotFound
	case refused.Status == http.StatusUnprocessableEntity, refused.Status == http.StatusBadRequest:
		code = cli.ExitUsage
	case refused.Status == http.StatusConflict:
		code = cli.ExitRefused
	}
	return cli.Fail(code, what, refused, refused.Next)
}

// get asks the daemon for one value.
func get[T any](ctx context.Context, d *Daemon, what, path string) (out T, err error) {
	c, err := d.Dial(ctx)
	if err != nil {
		return out, err
	}
	return out, d.Explain(what, c.Get(ctx, path, &out))
}

// send asks the daemon to do something.
func send[T any](ctx context.Context, d *Daemon, what, method, path string, in any) (out T, err error) {
	c, err := d.Dial(ctx)
	if err != nil {
		return out, err
	}
	return out, d.Explain(what, c.Do(ctx, method, path, in, &out))
}

// short is the start of an account, peer or hash: enough for people.
func short(id string) string {
	if len(id) <= 12 {
		return id
	}
	return id[:12]
}
