package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/verbs"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/provider/control/api"
)

func auctionsCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	c := &cobra.Command{
		Use: "auctions", Short: "sealed auctions of your devices, with the bids in them", Args: cobra.NoArgs,
		Long: "A device with a reserve is sold by sealed bids, too, when a renter asks to bid: docs/auctions.md. A bid is shown with its price once it is\n" +
			"opened; before, only what it holds of its bidder's credit is known.",
		Example: "  gpufaird auctions\n  gpufaird auctions --json | jq '.bids[].price'\n  gpufaird auctions file 3fa9",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := client(d)
			if err != nil {
				return err
			}
			list, err := c.Auctions(cmd.Context())
			if err != nil {
				return d.Explain("list auctions", err)
			}
			return printAuctions(p, list.Auctions)
		},
	}
	c.AddCommand(auctionFileCommand(p, d))
	return c
}

func printAuctions(p *cli.Program, list []api.Auction) error {
	if p.JSON {
		for _, a := range list {
			if err := p.PrintJSON(a); err != nil {
				return err
			}
		}
		return nil
	}
	if len(list) == 0 {
		p.Note("no auctions yet: a device is sold by sealed bids if it has a reserve in the settings, and a renter asks to bid")
		return nil
	}
	tab := p.Table("AUCTION", "STATE", ">LOT", ">RESERVE", "OPENED", "BIDDER", "BID", ">HELD", ">PAYS")
	for _, a := range list {
		head := []any{shortID(a.ID), a.State, a.Lot, a.Reserve + " " + a.Unit + "/h", cli.Ago(a.OpenedAt, time.Now())}
		if len(a.Bids) == 0 {
			tab.Row(append(head, "-", "", "", "")...)
		}
		for _, b := range a.Bids {
			bid := b.State
			if b.Price != "" {
				bid = fmt.Sprintf("%d at %s, %s", b.Devices, b.Price, b.State)
			}
			tab.Row(append(head, shortID(b.Account), bid, b.Held, b.Pays)...)
			head = []any{"", "", "", "", ""}
		}
	}
	return tab.Print()
}

func auctionFileCommand(p *cli.Program, d *verbs.Daemon) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "file AUCTION", Short: "write an auction's transcript, from which anybody works it out again", Args: cobra.ExactArgs(1),
		Long: "Whoever gets the file runs `gpufair auction verify FILE`, with nothing else. It has every bid that was shown: give it to who took part, or\n" +
			"to somebody who is to judge the auction.",
		Example: "  gpufaird auctions file 3fa9\n  gpufaird auctions file 3fa9 -o for-the-judge.transcript",
		RunE: func(cmd *cobra.Command, args []string) error {
			what := "write the transcript of auction " + args[0]
			raw, err := fetchTranscript(cmd.Context(), d, what, args[0])
			if err != nil {
				return err
			}
			if output == "" {
				output = "auction-" + args[0] + ".transcript"
			}
			f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err == nil {
				_, err = f.Write(raw)
				if closed := f.Close(); err == nil {
					err = closed
				}
			}
			if err != nil {
				return cli.Fail(cli.ExitSystem, what, err, "give with -o the name of a file that is not there yet")
			}
			p.Note("wrote %s, %d bytes; who gets it runs: gpufair auction verify %s", cli.Clean(output), len(raw), cli.Clean(output))
			if p.JSON {
				return p.PrintJSON(map[string]any{"file": output, "bytes": len(raw)})
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this new `file` (default auction-<AUCTION>.transcript)")
	return c
}

func fetchTranscript(ctx context.Context, d *verbs.Daemon, what, id string) ([]byte, error) {
	c, err := d.Dial(ctx)
	if err != nil {
		return nil, err
	}
	body, err := c.Raw(ctx, http.MethodGet, "/auctions/"+url.PathEscape(id)+"/transcript", nil)
	if err != nil {
		return nil, d.Explain(what, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, auction.MaxTranscript+1))
	return raw, d.Explain(what, err)
}
