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
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// Identity is the verb `identity`: it works on the files, with or without a running daemon.
func (d *Daemon) Identity() *cobra.Command {
	c := &cobra.Command{
		Use: "identity", Short: "show, share, back up and restore who you are",
		Long: "Your account is a key that stays in one file; this machine has a device key that the account lets act for it. Both are made\n" +
			"once, at the first start or the first `identity show`, and are never overwritten. `identity link` lets another PC of yours\n" +
			"act for the same account, with a device key of its own. `identity rotate` changes either.",
		Example: fmt.Sprintf("  %[1]s identity show\n  %[1]s identity export\n  %[1]s identity link\n  %[1]s identity revoke 12D3KooW…", d.Name),
	}
	c.AddCommand(d.identityShow(), d.identityLink(), d.identityRevoke(), d.identityRotate(), d.identityExport(), d.identityImport())
	return c
}

func (d *Daemon) identityDir() (string, error) {
	state, _, err := d.Place()
	return wire.IdentityDir(state), err
}

func (d *Daemon) identityShow() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "print account and device; makes them if there are none yet",
		Example: fmt.Sprintf("  %s identity show\n  %s identity show --json", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := d.identityDir()
			if err != nil {
				return err
			}
			dev, created, err := identity.LoadOrCreate(dir, time.Now())
			if err != nil {
				return cli.Fail(cli.ExitSystem, "read the identity", err, "run as the user of the daemon, or give --home DIR")
			}
			if created {
				d.Note("made a new identity in %s", dir)
			}
			v, err := wire.Describe(dev, dir)
			if err != nil {
				return err
			}
			if live, ok := d.live(cmd.Context()); ok {
				v.Network, v.Addrs = live.Network, live.Addrs
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			return d.printIdentity(v)
		},
	}
}

// printIdentity prints who this PC is, and the account's other devices.
func (d *Daemon) printIdentity(v local.Identity) error {
	key := "on this PC"
	if !v.AccountKey {
		key = "on the PC that linked this one"
	}
	pairs := [][2]string{
		{"account", v.Account}, {"peer", v.Peer}, {"powers", v.Powers}, {"cap of a lease", v.Cap}, {"account key", key}, {"keys", v.Dir},
	}
	if v.Network != "" {
		pairs = append(pairs, [2]string{"network", v.Network}, [2]string{"addresses", strings.Join(v.Addrs, "\n")})
	}
	if err := d.Pairs(pairs...); err != nil || len(v.Devices) < 2 {
		return err
	}
	fmt.Fprintln(d.Out)
	t := d.Table("DEVICE", "POWERS", ">CAP", ">SERIAL", "STATE")
	for _, one := range v.Devices {
		t.Row(one.Peer, orDash(one.Powers), orDash(one.Cap), one.Serial, deviceState(one))
	}
	return t.Print()
}

func deviceState(one local.AccountDevice) string {
	switch {
	case one.Revoked && one.Since != nil:
		return "revoked " + one.Since.Local().Format(time.DateTime)
	case one.This:
		return "this PC"
	}
	return "linked"
}

// live asks a running daemon who it is, without starting one.
func (d *Daemon) live(ctx context.Context) (v local.Identity, ok bool) {
	_, socket, err := d.Place()
	if err != nil {
		return v, false
	}
	err = local.NewClient(socket).Get(ctx, "/identity", &v)
	return v, err == nil
}

func (d *Daemon) identityExport() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "export", Short: "print the recovery phrase of the account",
		Long: "The 24 words are the account: whoever reads them can take it over, and with them you can restore it on another machine.\n" +
			"Write them on paper; do not keep them in a file or a picture. Of an account whose key was changed a line gfkeys… stands below them: it is\n" +
			"no secret, and the words alone do not bring such an account back.",
		Example: fmt.Sprintf("  %s identity export", d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := d.identityDir()
			if err != nil {
				return err
			}
			if has, err := identity.HasAccountKey(dir); err == nil && !has {
				return cli.Fail(cli.ExitRefused, "export the identity", identity.ErrNoAccountKey, onFirst)
			}
			if !yes {
				ok, err := d.Confirm(cmd.Context(), "The phrase gives whoever sees it your whole account. Show it now?", "--yes")
				if err != nil {
					return err
				}
				if !ok {
					return cli.Status(cli.ExitInterrupted)
				}
			}
			phrase, err := identity.Phrase(dir)
			if errors.Is(err, identity.ErrNoIdentity) {
				return cli.Fail(cli.ExitNotFound, "export the identity", err, d.Name+" identity show makes one")
			}
			if err != nil {
				return cli.Fail(cli.ExitSystem, "export the identity", err, "run as the user of the daemon")
			}
			keys, err := identity.KeysText(dir)
			if err != nil {
				return cli.Fail(cli.ExitSystem, "export the identity", err, "run as the user of the daemon")
			}
			if d.JSON {
				v := map[string]string{"phrase": phrase}
				if keys != "" {
					v["keys"] = keys
				}
				return d.PrintJSON(v)
			}
			if _, err := fmt.Fprintln(d.Out, phrase); err != nil || keys == "" {
				return err
			}
			d.Note("the account's key was changed, so an import needs the line %s…, too; it is no secret: %s identity import --keys TEXT", keysStart, d.Name)
			_, err = fmt.Fprintln(d.Out, keys)
			return err
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (d *Daemon) identityImport() *cobra.Command {
	var keys string
	c := &cobra.Command{
		Use: "import [WORD...]", Short: "restore the account of a recovery phrase on this machine", Args: cobra.ArbitraryArgs,
		Long: "The account is the old one; the device key is new, since a key is never in two places. Refused while the daemon runs, or if there\n" +
			"are keys already. Without words on the command line, where others could read them, the phrase is asked for; a dash reads it from a\n" +
			"pipe, with the line gfkeys… below it if there is one.",
		Example: fmt.Sprintf("  %s identity import\n  %s identity import - < phrase", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := d.identityDir()
			if err != nil {
				return err
			}
			if _, ok := d.live(cmd.Context()); ok {
				return cli.Fail(cli.ExitRefused, "import an identity", errors.New(d.Title+" is running with the one that is here"), "stop it first")
			}
			if _, err := identity.Load(dir); !errors.Is(err, identity.ErrNoIdentity) {
				return exists(dir)
			}
			if cmd.Flags().Changed("keys") && keys == "" {
				return cli.Usagef("give --keys the text gfkeys… that `identity export` printed below the words, or leave it out", "--keys is empty")
			}
			phrase, err := d.phrase(cmd.Context(), args)
			if err != nil {
				return err
			}
			if words, line, ok := strings.Cut(phrase, keysStart); ok && keys == "" {
				phrase, keys = words, keysStart+line
			}
			dev, err := identity.ImportChanged(dir, phrase, keys, time.Now())
			switch {
			case errors.Is(err, identity.ErrIdentityExists):
				return exists(dir)
			case errors.Is(err, identity.ErrLink):
				return cli.Fail(cli.ExitUsage, "import an identity", err, "give --keys as `identity export` printed it with these very words")
			case errors.Is(err, identity.ErrPhrase):
				return cli.Fail(cli.ExitUsage, "import an identity", err, "look for a mistyped word: the 24 words carry a check")
			case err != nil:
				return cli.Fail(cli.ExitSystem, "import an identity", err, "run as the user of the daemon, or give --home DIR")
			}
			return d.printImported(dev, dir, keys)
		},
	}
	c.Flags().StringVar(&keys, "keys", "", "of an account whose key was changed: the `text` that `identity export` printed below the words")
	return c
}

// keysStart begins the line that stands below the words of an account whose key was changed.
const keysStart = "gfkeys"

// printImported prints which account words brought back. Whether its key was changed since they were written down, they can't say.
func (d *Daemon) printImported(dev *identity.Device, dir, keys string) error {
	v, err := wire.Describe(dev, dir)
	if err != nil {
		return err
	}
	if keys == "" {
		d.Note("the words are those of account %s. If yours is another, or its key was ever changed, move %s away, and import the newest words with --keys",
			v.Account, dir)
	}
	if d.JSON {
		return d.PrintJSON(v)
	}
	return d.printIdentity(v)
}

func exists(dir string) error {
	return cli.Fail(cli.ExitRefused, "import an identity", fmt.Errorf("keys are in %s already, and are never overwritten", dir),
		"move the folder away first, or give another --home")
}

// phrase reads a recovery phrase: from the arguments, a pipe or a question.
func (d *Daemon) phrase(ctx context.Context, args []string) (string, error) {
	switch {
	case len(args) == 1 && args[0] == "-":
		return readLine(d.In)
	case len(args) > 0:
		return strings.Join(args, " "), nil
	}
	return d.Secret(ctx, "recovery phrase (24 words, not shown)", "the words as arguments, or - to read them from a pipe")
}
