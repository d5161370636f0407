package verbs

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

const rotateAccountWhat = "rotate the account's key"

// rotateAccount changes the account's key.
func (d *Daemon) rotateAccount(ctx context.Context, f rotating) error {
	state, _, err := d.Place()
	if err != nil {
		return err
	}
	dir := wire.IdentityDir(state)
	if _, ok := d.live(ctx); ok {
		return cli.Fail(cli.ExitRefused, rotateAccountWhat, errors.New(d.Title+" is running with the one that is here"), "stop it first, and start it again after")
	}
	return wire.WhileStopped(ctx, state, rotateAccountWhat, func(books.Hanging) error {
		if ok, err := identity.AccountUnfinished(dir); err != nil {
			return d.keyless(rotateAccountWhat, err)
		} else if ok { // a run before this one was cut short
			return d.finishAccountRotation(dir, f)
		}
		if has, err := identity.HasAccountKey(dir); err != nil {
			return d.keyless(rotateAccountWhat, err)
		} else if !has {
			return d.keyless(rotateAccountWhat, identity.ErrNoAccountKey)
		}
		if ok, err := d.mayRotateAccount(ctx, dir, f); err != nil || !ok {
			return err
		}
		if _, err := identity.RotateAccount(dir, time.Now()); err != nil {
			return d.explainAccount(err)
		}
		return d.finishAccountRotation(dir, f)
	})
}

// finishAccountRotation removes the old key and prints what is next; with --dry-run it says that this is what is left to do.
func (d *Daemon) finishAccountRotation(dir string, f rotating) error {
	if f.dry {
		d.Note("a change of the account's key was cut short: without --dry-run it is finished, and no other one begun")
		if !d.JSON {
			return nil
		}
		v, err := d.accountRotation(dir)
		if err != nil {
			return err
		}
		v.Now = nil
		return d.PrintJSON(v)
	}
	if _, err := identity.FinishAccountRotation(dir, time.Now()); err != nil {
		return d.keyless(rotateAccountWhat, err)
	}
	return d.accountRotated(dir)
}

// mayRotateAccount explains what comes and asks; it is false where nothing more is to be done.
func (d *Daemon) mayRotateAccount(ctx context.Context, dir string, f rotating) (bool, error) {
	v, err := d.accountRotation(dir)
	if err != nil {
		return false, err
	}
	if f.dry && d.JSON {
		v.Now = nil
		return false, d.PrintJSON(v)
	}
	if f.yes && !f.dry {
		return true, nil
	}
	d.Note("account %s keeps its name, its debts, limits and history; another key signs for it, with both keys' signatures", v.Account)
	d.Note("the old key is deleted, and the words that `identity export` printed before are void; this can't be undone")
	d.Note("it was changed %d times before, and may be %d times more", v.Changes, v.Left)
	if len(v.Regrant) > 0 {
		d.Note("linked devices that must be granted again, with `identity link`, before they trade with whoever has heard: %s", strings.Join(v.Regrant, ", "))
	}
	if f.dry {
		return false, nil
	}
	ok, err := d.Confirm(ctx, "Change the account's key now?", "--yes")
	if err == nil && !ok {
		err = cli.Status(cli.ExitInterrupted)
	}
	return ok, err
}

// accountRotation is what is to be said of an account's key.
func (d *Daemon) accountRotation(dir string) (local.AccountRotation, error) {
	dev, err := identity.Load(dir)
	if err != nil {
		return local.AccountRotation{}, d.keyless(rotateAccountWhat, err)
	}
	changes, err := identity.KeyChanges(dir)
	if err != nil {
		return local.AccountRotation{}, d.keyless(rotateAccountWhat, err)
	}
	now, err := wire.Describe(dev, dir)
	v := local.AccountRotation{Account: now.Account, Changes: changes, Left: identity.MaxSuccessions - changes, Regrant: []string{}, Now: &now}
	for _, one := range now.Devices {
		if !one.This && !one.Revoked {
			v.Regrant = append(v.Regrant, one.Peer)
		}
	}
	return v, err
}

// accountRotated prints who this PC is after the change.
func (d *Daemon) accountRotated(dir string) error {
	v, err := d.accountRotation(dir)
	if err != nil {
		return err
	}
	if d.JSON {
		return d.PrintJSON(v)
	}
	d.Note("write down the new words, and the line below them that `identity import --keys` needs from now on: %s identity export", d.Name)
	for _, peer := range v.Regrant {
		d.Note("grant device %s again: its `identity link` prints a request, `%s identity link REQUEST` here answers it", peer, d.Name)
	}
	d.Note("peers hear of the new key when %s runs", d.Title)
	return d.printIdentity(*v.Now)
}

func (d *Daemon) explainAccount(err error) error {
	if errors.Is(err, identity.ErrSuccession) {
		return cli.Fail(cli.ExitRefused, rotateAccountWhat, err, "settle what this account owes and is owed, and make another one under a --home of its own")
	}
	return d.keyless(rotateAccountWhat, err)
}
