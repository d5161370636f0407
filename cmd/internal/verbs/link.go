package verbs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

// onFirst says where the account's key is.
const onFirst = "run it on the PC that has the account's key: `identity show` there says so"

// linkedCap is what one lease of a linked device may reach if nothing else is said: 100 units.
const linkedCap = "100"

// linking is the flags of `identity link`.
type linking struct{ powers, limit string }

func (d *Daemon) identityLink() *cobra.Command {
	var f linking
	c := &cobra.Command{
		Use: "link [REQUEST | GRANT]", Short: "let another PC of yours act for your account", Args: cobra.ArbitraryArgs,
		Long: "Three steps, with two texts that you carry over in any way; no network is needed and the account's key never moves.\n" +
			"On the new PC, `identity link` prints a request. On the PC that has the account's key, `identity link REQUEST` prints a grant.\n" +
			"On the new PC, `identity link GRANT` installs it. An account that the new PC made at its first start gives way if it was never\n" +
			"used. A new grant for a linked PC replaces its powers.",
		Example: fmt.Sprintf("  %[1]s identity link\n  %[1]s identity link gflink… --powers trade,pay --cap 50\n  %[1]s identity link gfgrant…", d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := d.identityDir()
			if err != nil {
				return err
			}
			flags := cmd.Flags().Changed("powers") || cmd.Flags().Changed("cap")
			text := strings.Join(args, "") // a terminal may break a long line into words
			if text == "-" {
				if text, err = readLine(d.In); err != nil {
					return err
				}
			}
			switch {
			case identity.IsRequest(text):
				return d.grant(dir, text, f)
			case flags:
				return cli.Usagef(d.Name+" identity link --help", "--powers and --cap go with a REQUEST, on the PC that has the account's key")
			case text == "":
				return d.request(dir)
			case identity.IsGrant(text):
				return d.install(cmd.Context(), dir, text)
			}
			return cli.Usagef("`identity link` on the new PC prints a request, which starts with gflink; the answer to it starts with gfgrant",
				"%.20q is neither a link request nor a grant", text)
		},
	}
	c.Flags().StringVar(&f.powers, "powers", "trade,pay,provide", "what the new PC may do: trade and pay to rent, provide to let")
	c.Flags().StringVar(&f.limit, "cap", linkedCap, "the most that one lease signed by the new PC may reach, in the offer's unit")
	return c
}

// request is the new PC's first step.
func (d *Daemon) request(dir string) error {
	text, device, err := identity.Ask(dir)
	if err != nil {
		return cli.Fail(cli.ExitSystem, "ask to be linked", err, "run as the user of the daemon, or give --home DIR")
	}
	if d.JSON {
		return d.PrintJSON(local.Link{Request: text, Peer: device.String()})
	}
	if _, err := fmt.Fprintln(d.Out, text); err != nil {
		return err
	}
	d.Note("give this line to `identity link` on the PC that has your account, and what that prints to `%s identity link` here", d.Name)
	return nil
}

// grant is the step of the PC that has the account's key.
func (d *Daemon) grant(dir, text string, f linking) error {
	const what = "link a device"
	device, err := identity.ParseRequest(text)
	if err != nil {
		return cli.Fail(cli.ExitUsage, what, err, "copy the line again that `identity link` prints on the new PC")
	}
	powers, err := identity.ParsePowers(f.powers)
	if err != nil {
		return cli.Usagef("give some of them with commas: --powers trade,pay", "%v", err)
	}
	limit, err := money.Parse(f.limit)
	if err != nil || limit == 0 {
		return cli.Usagef("give an amount above 0: --cap 50", "cap %q: want an amount above 0", f.limit)
	}
	raw, delegation, err := identity.Grant(dir, device, powers, uint64(limit), time.Now())
	if err != nil {
		return d.keyless(what, err)
	}
	grant, err := identity.GrantText(raw)
	if err != nil {
		return err
	}
	if d.JSON {
		v := wire.DescribeDevice(identity.Known{Device: device, Delegation: &delegation})
		return d.PrintJSON(local.Link{Grant: grant, Device: &v})
	}
	if _, err := fmt.Fprintln(d.Out, grant); err != nil {
		return err
	}
	d.Note("device %s may %s, up to %v a lease; give the line to `identity link` on the new PC", device, powers, limit)
	return nil
}

// keyless explains an error of what takes the account's key.
func (d *Daemon) keyless(what string, err error) error {
	switch {
	case errors.Is(err, identity.ErrNoAccountKey):
		return cli.Fail(cli.ExitRefused, what, err, onFirst)
	case errors.Is(err, identity.ErrNoIdentity):
		return cli.Fail(cli.ExitNotFound, what, err, d.Name+" identity show makes one")
	case errors.Is(err, identity.ErrTooManyDevices):
		return cli.Fail(cli.ExitRefused, what, err, "link a device that the account knows already, or make another account")
	}
	return cli.Fail(cli.ExitSystem, what, err, "run as the user of the daemon, or give --home DIR")
}

// install is the new PC's last step.
func (d *Daemon) install(ctx context.Context, dir, text string) error {
	const what = "install a grant"
	if _, ok := d.live(ctx); ok {
		return cli.Fail(cli.ExitRefused, what, errors.New(d.Title+" is running with the identity that is here"), "stop it first, and start it again after")
	}
	state, _, err := d.Place()
	if err != nil {
		return err
	}
	dev, err := identity.Install(dir, text, func() error { return books.Untouched(filepath.Join(wire.StoreDir(state), "ledger")) })
	switch {
	case errors.Is(err, identity.ErrNoIdentity):
		return cli.Fail(cli.ExitNotFound, what, errors.New("this PC has not asked for one"), "run `"+d.Name+" identity link` here first, and give its\nrequest to the PC that has the account's key")
	case errors.Is(err, identity.ErrLink):
		return cli.Fail(cli.ExitUsage, what, err, "copy the line again; it must be the answer to the request of this PC, in this --home")
	case errors.Is(err, identity.ErrOldGrant):
		return cli.Fail(cli.ExitRefused, what, err, "ask for a new grant: a newer one is never replaced by an older")
	case errors.Is(err, identity.ErrAccountUsed):
		return cli.Fail(cli.ExitRefused, what, err, "settle what that account owes and is owed, then move "+state+" away and start again\n"+
			"with a new request; or link under a --home of its own, and keep both accounts")
	case err != nil:
		return cli.Fail(cli.ExitSystem, what, err, "run as the user of the daemon, or give --home DIR")
	}
	v, err := wire.Describe(dev, dir)
	if err != nil {
		return err
	}
	if d.JSON {
		return d.PrintJSON(local.Link{Linked: &v})
	}
	return d.printIdentity(v)
}

func (d *Daemon) identityRevoke() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "revoke PEER", Short: "let a device of your account act for it no longer",
		Args: exactly("the peer id of a device", 1),
		Long: "For a PC that was lost, stolen or given away. Peers that hear of it take no new orders, vouchers or settlements of that device;\n" +
			"what it signed before stays owed. A running daemon tells its peers at once, and everybody who connects later. It is never\n" +
			"undone: `identity link` with a new grant lets the device in again.",
		Example: fmt.Sprintf("  %[1]s identity show\n  %[1]s identity revoke 12D3KooW…", d.Name),
		RunE:    func(cmd *cobra.Command, args []string) error { return d.revoke(cmd.Context(), args[0], yes) },
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask, though it is this PC")
	return c
}

func (d *Daemon) revoke(ctx context.Context, peer string, yes bool) error {
	const what = "revoke a device"
	device, err := identity.ParsePeer(peer)
	if err != nil {
		return cli.Fail(cli.ExitUsage, what, err, d.Name+" identity show lists the devices of the account")
	}
	dir, err := d.identityDir()
	if err != nil {
		return err
	}
	dev, err := identity.Load(dir)
	if err != nil {
		return d.keyless(what, err)
	}
	if has, err := identity.HasAccountKey(dir); err == nil && has && dev.Peer() == device && !yes {
		ok, err := d.Confirm(ctx, "That is this PC itself: it will trade no more until it is linked again. Revoke it?", "--yes")
		if err != nil {
			return err
		}
		if !ok {
			return cli.Status(cli.ExitInterrupted)
		}
	}
	raw, r, err := identity.RevokeDevice(dir, device, time.Now())
	if err != nil {
		return d.keyless(what, err)
	}
	told, err := d.refresh(ctx)
	if err != nil {
		return err
	}
	return d.printRevoked(identity.Known{Device: device, Revocation: &r, Sealed: raw, This: dev.Peer() == device}, told)
}

// refresh lets a running daemon tell its peers; told is false where none runs.
func (d *Daemon) refresh(ctx context.Context) (told bool, err error) {
	_, socket, err := d.Place()
	if err != nil {
		return false, err
	}
	err = local.NewClient(socket).Post(ctx, "/identity/refresh", struct{}{}, &local.Identity{})
	if errors.Is(err, local.ErrNotRunning) {
		return false, nil
	}
	return err == nil, d.Explain("tell the peers", err)
}

func (d *Daemon) printRevoked(k identity.Known, told bool) error {
	v := wire.DescribeDevice(k)
	if d.JSON {
		return d.PrintJSON(v)
	}
	if !told {
		d.Note("%s does not run here: peers hear of it once it does", d.Title)
	}
	return d.Pairs([2]string{"device", v.Peer}, [2]string{"state", deviceState(v)})
}
