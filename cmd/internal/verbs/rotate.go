package verbs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// rotating is the flags of `identity rotate`.
type rotating struct{ device, account, dry, force, yes bool }

func (d *Daemon) identityRotate() *cobra.Command {
	var f rotating
	c := &cobra.Command{
		Use: "rotate --device [GRANT] | --account", Short: "change this PC's device key, or the account's; " + d.Title + " must be stopped", Args: cobra.ArbitraryArgs,
		Long: "--device: for a key that others may have seen, or by habit once a year. The account, its ledger, its debts and its credit stay; the old device is\n" +
			"revoked and its key deleted. A lease belongs to the device that signed for it, so leases end first: what still hangs on the old device\n" +
			"is listed, and then nothing is changed but with --force. --dry-run says all of this and changes nothing.\n\n" +
			"On a PC that was linked it takes three steps, as linking did: here it prints a request; `identity link REQUEST` on the PC that has the\n" +
			"account's key answers with a grant; `identity rotate --device GRANT` here installs it. Then revoke the old device on that PC.\n\n" +
			"An account may have 64 devices in all, those that were replaced among them.\n\n" +
			"--account: the account keeps its name, and with it its debts, limits and history; another key signs for it from now on, with both keys'\n" +
			"signatures, at most 4 times. Leases go on. Whoever hears of it takes nothing new under the old key. Grant linked PCs again with\n" +
			"`identity link`, and write down what `identity export` prints then: new words, the old ones are void, and a line gfkeys…, no secret,\n" +
			"without which the words would make another account. It helps before a key is stolen, not after: a thief who has the key can change it,\n" +
			"too, and then nobody can tell who is the owner: peers agree on nothing new with either.",
		Example: fmt.Sprintf("  %[1]s identity rotate --device --dry-run\n  %[1]s identity rotate --account\n  %[1]s identity rotate --device\n  %[1]s identity rotate --device gfgrant…", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.device == f.account:
				return cli.Usagef(d.Name+" identity rotate --help", "say what to rotate: --device or --account")
			case f.account && (len(args) > 0 || f.force):
				return cli.Usagef(d.Name+" identity rotate --help", "a GRANT and --force go with --device")
			case f.account:
				return d.rotateAccount(cmd.Context(), f)
			}
			text := strings.Join(args, "") // a terminal may break a long line into words
			if text == "-" {
				var err error
				if text, err = readLine(d.In); err != nil {
					return err
				}
			}
			return d.rotate(cmd.Context(), text, f)
		},
	}
	c.Flags().BoolVar(&f.device, "device", false, "this PC's device key")
	c.Flags().BoolVar(&f.account, "account", false, "the account's key; on the PC that has it")
	c.Flags().BoolVar(&f.dry, "dry-run", false, "say what would be done and what is in the way, and change nothing")
	c.Flags().BoolVar(&f.force, "force", false, "break off what hangs on the old device")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	return c
}

const rotateWhat = "rotate the device's key"

func (d *Daemon) rotate(ctx context.Context, grant string, f rotating) error {
	state, _, err := d.Place()
	if err != nil {
		return err
	}
	dir := wire.IdentityDir(state)
	if _, ok := d.live(ctx); ok {
		return cli.Fail(cli.ExitRefused, rotateWhat, errors.New(d.Title+" is running with the one that is here"), "stop it first, and start it again after")
	}
	return wire.WhileStopped(ctx, state, rotateWhat, func(h books.Hanging) error {
		if left, ok, err := identity.Unfinished(dir); err != nil {
			return d.keyless(rotateWhat, err)
		} else if ok { // a run before this one was cut short
			return d.finishRotation(dir, local.Rotation{Old: left.Old.String(), New: left.New.String(), Hanging: []string{}}, f)
		}
		return d.startRotation(ctx, dir, h, grant, f)
	})
}

// startRotation changes the device's key of a stopped daemon, or makes the first step on a linked PC.
func (d *Daemon) startRotation(ctx context.Context, dir string, h books.Hanging, grant string, f rotating) error {
	dev, err := identity.Load(dir)
	if err != nil {
		return d.keyless(rotateWhat, err)
	}
	has, err := identity.HasAccountKey(dir)
	if err != nil {
		return d.keyless(rotateWhat, err)
	}
	v := local.Rotation{Old: dev.Peer().String(), Hanging: showHanging(h)}
	if ok, err := d.mayRotate(ctx, v, h, has, grant, f); err != nil || !ok {
		return err
	}
	if !has && grant == "" {
		return d.askRotation(dir, v)
	}
	r, err := identity.Rotate(dir, grant, time.Now())
	if err != nil {
		return d.explainRotate(err)
	}
	v.New = r.New.String()
	return d.finishRotation(dir, v, f)
}

// finishRotation lets the old device go and prints who this PC is then; with --dry-run it says that this is what is left to do.
func (d *Daemon) finishRotation(dir string, v local.Rotation, f rotating) error {
	if f.dry {
		d.Note("a change from device %s to %s was cut short: without --dry-run it is finished, and no other one begun", v.Old, v.New)
		if d.JSON {
			return d.PrintJSON(v)
		}
		return nil
	}
	done, ok, err := identity.FinishRotation(dir, time.Now())
	switch {
	case err != nil:
		return d.keyless(rotateWhat, err)
	case !ok:
		return cli.Fail(cli.ExitRefused, rotateWhat, errors.New("another program changed the identity meanwhile"), "look at it with `"+d.Name+" identity show` before you try again")
	}
	v.Revoked = done.Revoked
	return d.rotated(dir, v)
}

// mayRotate explains what comes and asks; it is false where nothing more is to be done.
func (d *Daemon) mayRotate(ctx context.Context, v local.Rotation, h books.Hanging, has bool, grant string, f rotating) (bool, error) {
	if f.dry {
		if d.JSON {
			return false, d.PrintJSON(v)
		}
		return false, d.explainRotation(v, has, grant)
	}
	if !h.None() && !f.force {
		return false, cli.Fail(cli.ExitRefused, rotateWhat, fmt.Errorf("on device %s still hangs: %s", v.Old, strings.Join(v.Hanging, "; ")),
			"end it first (`--dry-run` lists it, too); or --force: then its leases stop being paid, and what is on its way counts only\nwhere it arrives before the news of the revocation")
	}
	if f.yes || !has && grant == "" { // asking for a grant changes nothing
		return true, nil
	}
	if err := d.explainRotation(v, has, grant); err != nil {
		return false, err
	}
	ok, err := d.Confirm(ctx, "Change the device's key now?", "--yes")
	if err == nil && !ok {
		err = cli.Status(cli.ExitInterrupted)
	}
	return ok, err
}

// explainRotation says what a rotation does, on the error output but for --dry-run's own.
func (d *Daemon) explainRotation(v local.Rotation, has bool, grant string) error {
	d.Note("device %s gets a new key under a new delegation of the same account; the ledger, its debts and its credit stay", v.Old)
	d.Note("others know this PC by a new peer id from then on: invites of before and addresses that name the old one must be made again,")
	d.Note("and backups of before need `ledger restore --other-device`")
	switch {
	case has:
		d.Note("the old device is revoked and its key deleted; this can't be undone")
	case grant == "":
		d.Note("this PC was linked: it prints a request, and the PC that has the account's key answers it with `identity link REQUEST`")
	default:
		d.Note("the old key is deleted; revoke the old device on the PC that has the account's key")
	}
	if len(v.Hanging) == 0 {
		d.Note("nothing hangs on the old device")
		return nil
	}
	for _, h := range v.Hanging {
		d.Note("in the way: %s", h)
	}
	return nil
}

// askRotation is a linked PC's first step.
func (d *Daemon) askRotation(dir string, v local.Rotation) error {
	r, err := identity.NextDevice(dir)
	if err != nil {
		return d.keyless(rotateWhat, err)
	}
	v.New, v.Request = r.New.String(), r.Request
	if d.JSON {
		return d.PrintJSON(v)
	}
	if _, err := fmt.Fprintln(d.Out, r.Request); err != nil {
		return err
	}
	d.Note("on the PC that has the account's key: identity link %s… --powers %s --cap %v", r.Request[:12], strings.ReplaceAll(r.Under.Powers.String(), "|", ","),
		min(money.Micro(r.Under.Cap), money.Max))
	d.Note("then here: %s identity rotate --device GRANT", d.Name)
	return nil
}

// rotated prints who this PC is now.
func (d *Daemon) rotated(dir string, v local.Rotation) error {
	dev, err := identity.Load(dir)
	if err != nil {
		return d.keyless(rotateWhat, err)
	}
	now, err := wire.Describe(dev, dir)
	if err != nil {
		return err
	}
	v.Now = &now
	if d.JSON {
		return d.PrintJSON(v)
	}
	if v.Revoked {
		d.Note("device %s is revoked; peers hear of it when %s runs", v.Old, d.Title)
	} else {
		d.Note("revoke the old device on the PC that has the account's key: identity revoke %s", v.Old)
	}
	return d.printIdentity(now)
}

func (d *Daemon) explainRotate(err error) error {
	switch {
	case errors.Is(err, identity.ErrLink):
		return cli.Fail(cli.ExitUsage, rotateWhat, err, "give the grant that answers the request of `"+d.Name+" identity rotate --device` here")
	case errors.Is(err, identity.ErrOldGrant):
		return cli.Fail(cli.ExitRefused, rotateWhat, err, "ask for a new grant: a newer one is never replaced by an older")
	}
	return d.keyless(rotateWhat, err)
}

// showHanging lists what hangs on a device, in words.
func showHanging(h books.Hanging) (out []string) {
	out = []string{}
	for _, one := range []struct {
		n    int
		what string
	}{
		{h.Running, "leases that have not ended"},
		{h.Unconfirmed, "ended leases whose last voucher is not signed, or not received: start and let it meet the provider"},
		{h.Holds, "bids with a hold"},
		{h.Proposals, "payments that the other side has not answered (`settle`)"},
		{h.Clearings, "clearings under way (`ledger net`)"},
		{h.Disputes, "open disputes (`ledger dispute`)"},
		{h.Unsure, "accounts that have not answered since a restore (`ledger recover`)"},
	} {
		if one.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", one.n, one.what))
		}
	}
	return out
}
