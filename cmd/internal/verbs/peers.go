package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/p2p/local"
)

// Peers is the verb `peers`.
func (d *Daemon) Peers() *cobra.Command {
	return &cobra.Command{
		Use: "peers", Short: "list the connected peers",
		Long: "REACH is direct if one side dialled the other, punched if both dialled at once through their routers, relayed if a third peer carries\n" +
			"the bytes. TRAFFIC is what was sent and received since the peer connected, and what most of it was for.\n\n" +
			"With --json one object: peers with their traffic by purpose, and skew if the peers' clocks differ from this machine's.",
		Example: fmt.Sprintf("  %s peers\n  %s peers --json", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := get[local.Peers](cmd.Context(), d, "list peers", "/peers")
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			now := time.Now()
			tab := d.Table("PEER", "ACCOUNT", "ADDRESS", "VIA", "REACH", ">RTT", "SINCE", "TRAFFIC", "PROGRAM")
			for _, p := range v.Peers {
				rtt := "-"
				if p.RTTMillis > 0 {
					rtt = cli.Span(time.Duration(p.RTTMillis * float64(time.Millisecond)))
				}
				account := "-"
				if p.Account != "" {
					account = short(p.Account)
				}
				tab.Row(p.Peer, account, p.Addr, p.Transport, p.Reach, rtt, cli.Ago(p.Since, now), trafficOf(p.Traffic), p.Agent)
			}
			if v.Skew != "" {
				d.Note("%s", cli.Clean(v.Skew))
			}
			if len(v.Peers) == 0 {
				d.Note("connected to nobody: `%s join STRING` meets whoever printed the string with `invite`", d.Name)
			}
			return tab.Print()
		},
	}
}

// trafficOf is the sum of what a peer's streams carried, and what most of it was for.
func trafficOf(all []local.Traffic) string {
	var sum uint64
	for _, c := range all {
		sum += c.Sent + c.Received
	}
	if sum == 0 {
		return "-"
	}
	return fmt.Sprintf("%s, most %s", cli.Bytes(sum), cli.Clean(all[0].Purpose))
}

// Invite is the verb `invite`.
func (d *Daemon) Invite() *cobra.Command {
	var credit string
	c := &cobra.Command{
		Use: "invite", Short: "print the string that another machine joins with",
		Long: "The string holds this machine's addresses, the network's name and this account, signed. Whoever has it can connect; it grants\n" +
			"nothing. --credit writes into it what you are ready to lend; grant it with `credit set` once you know the guest's account.",
		Example: fmt.Sprintf("  %s invite\n  %s invite --credit 2.5", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := send[local.Invite](cmd.Context(), d, "make an invite", http.MethodPost, "/invite", local.InviteRequest{Credit: credit})
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			_, err = fmt.Fprintln(d.Out, v.Invite)
			return err
		},
	}
	c.Flags().StringVar(&credit, "credit", "", "an `amount` that you are ready to lend the guest")
	return c
}

// maxInvite is the longest text that join reads from a pipe.
const maxInvite = 64 << 10

// Join is the verb `join`.
func (d *Daemon) Join() *cobra.Command {
	return &cobra.Command{
		Use: "join STRING", Short: "meet whoever made an invite", Args: exactly("the string that `invite` printed on the other machine, or - to read it from a pipe", 1),
		Long: "Connects to the inviter, checks that the account in the string is whom its key acts for, and learns the offers that it knows.\n" +
			"The connection is kept from then on, over restarts too.",
		Example: fmt.Sprintf("  %s join gpufair-invite:…\n  gpufaird invite | %s join -", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			text := args[0]
			if text == "-" {
				b, err := io.ReadAll(io.LimitReader(d.In, maxInvite))
				if err != nil {
					return cli.Fail(cli.ExitFailure, "read the invite", err, "")
				}
				text = string(b)
			}
			v, err := send[local.Joined](cmd.Context(), d, "join", http.MethodPost, "/join", local.Invite{Invite: strings.TrimSpace(text)})
			if err != nil {
				return err
			}
			if d.JSON {
				return d.PrintJSON(v)
			}
			return d.Pairs([2]string{"peer", v.Peer}, [2]string{"account", v.Account}, [2]string{"network", v.Network},
				[2]string{"offers", fmt.Sprintf("%d known", v.Offers)})
		},
	}
}

// Doctor is the verb `doctor`.
func (d *Daemon) Doctor() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "check what is needed, and say what to do about what is missing",
		Long:    "Works without " + d.Title + " running, too, and then checks what can be seen from here.\n\nExit codes: 0 all is well, 13 something needs attention.",
		Example: fmt.Sprintf("  %s doctor\n  %s doctor --json", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks, err := d.findings(cmd.Context())
			if err != nil {
				return err
			}
			return d.PrintChecks(checks)
		},
	}
}

// findings asks the running daemon, or looks alone.
func (d *Daemon) findings(ctx context.Context) (local.Checks, error) {
	_, socket, err := d.Place()
	if err == nil {
		var v local.Checks
		err = local.NewClient(socket).Get(ctx, "/doctor", &v)
		if err == nil {
			return v, nil
		}
		if !errors.Is(err, local.ErrNotRunning) {
			return v, d.Explain("ask "+d.Title, err)
		}
	}
	running := local.Check{Name: "daemon", Level: "note", Detail: "not running; this is what can be seen without it", Next: d.Start}
	return local.Checks{Checks: append([]local.Check{running}, d.Static(ctx)...)}, nil
}

// PrintChecks prints doctor's findings. A warning or failure among them gives exit code 13.
func (d *Daemon) PrintChecks(v local.Checks) error {
	attention := false
	if d.JSON {
		if err := d.PrintJSON(v); err != nil {
			return err
		}
	}
	for _, c := range v.Checks {
		attention = attention || c.Level == "warn" || c.Level == "fail"
		if d.JSON {
			continue
		}
		mark := map[string]string{"ok": d.Paint(cli.Good, "ok  "), "note": d.Paint(cli.Faint, "note"), "warn": d.Paint(cli.Warn, "warn"), "fail": d.Paint(cli.Bad, "FAIL")}[c.Level]
		lines := strings.Split(strings.TrimSpace(c.Detail), "\n")
		for i := range lines {
			lines[i] = cli.Clean(lines[i])
		}
		if _, err := fmt.Fprintf(d.Out, "%s  %s: %s\n", mark, cli.Clean(c.Name), strings.Join(lines, "\n      ")); err != nil {
			return err
		}
		if c.Next != "" {
			if _, err := fmt.Fprintf(d.Out, "      next: %s\n", cli.Clean(c.Next)); err != nil {
				return err
			}
		}
	}
	if attention {
		return cli.Status(cli.ExitUnhealthy)
	}
	return nil
}

// exactly is an argument rule that says what is wanted.
func exactly(what string, n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return cli.Usagef(c.CommandPath()+" --help", "%s wants %s, but got %s", c.CommandPath(), what, cli.Count(len(args), "argument"))
	}
}
