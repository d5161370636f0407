package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/p2p/identity"
)

func (a *app) auctionCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "auction", Short: "sealed auctions: check that one was fair",
		Long: "A provider may sell by sealed bids. Everything that happened is in one file, the transcript, from which anybody works the result\n" +
			"out again. docs/auctions.md has the rules in plain words.",
		Example: "  gpufair auction verify auction.transcript",
	}
	c.AddCommand(a.auctionVerify())
	return c
}

// auctionReport is what `auction verify --json` prints: docs/cli-json.md has the fields.
type auctionReport struct {
	Result   string         `json:"result"`
	Auction  string         `json:"auction,omitempty"`
	Seller   string         `json:"seller,omitempty"`
	Unit     string         `json:"unit,omitempty"`
	Reserve  string         `json:"reserve,omitempty"`
	Rule     string         `json:"rule,omitempty"`
	GPUs     uint32         `json:"gpus,omitempty"`
	MinTerm  uint32         `json:"min_term_s,omitempty"`
	Commits  int            `json:"commits"`
	Opened   int            `json:"opened"`
	Unopened int            `json:"unopened"`
	Aborted  bool           `json:"aborted"`
	Winners  []auctionWin   `json:"winners"`
	Lost     []auctionLoss  `json:"lost"`
	Faults   []auctionFault `json:"faults"`
	Missing  []string       `json:"missing"`
	Notes    []string       `json:"notes"`
	Error    string         `json:"why,omitempty"`
	Text     string         `json:"text,omitempty"`
}

type auctionWin struct {
	Account string `json:"account"`
	Leaf    uint32 `json:"leaf"`
	GPUs    uint32 `json:"gpus"`
	Bid     string `json:"bid"`
	Pays    string `json:"pays"`
	Why     string `json:"why"`
	Lease   string `json:"lease"`
}

type auctionLoss struct {
	Account string `json:"account,omitempty"`
	Leaf    uint32 `json:"leaf"`
	Code    string `json:"code"`
	Detail  string `json:"detail,omitempty"`
}

type auctionFault struct {
	Kind  string `json:"kind"`
	Why   string `json:"why"`
	Proof []byte `json:"proof,omitempty"`
}

// The results of a check, as scripts read them.
const (
	auctionKept       = "kept"
	auctionIncomplete = "incomplete"
	auctionBroken     = "broken"
	auctionCorrupt    = "corrupt"
)

func (a *app) auctionVerify() *cobra.Command {
	var own string
	c := &cobra.Command{
		Use: "verify FILE", Short: "work an auction out again from its transcript", Args: cobra.ExactArgs(1),
		Long: "Says in words who won, at what price and why, why the others lost, and whether the seller kept the rules. It needs nothing but the\n" +
			"file: no agent, no network. FILE may be -, the standard input.\n" +
			"Exit codes: 0 the rules were kept, 10 the file lacks something without which nobody can tell, 11 it is damaged or no transcript,\n" +
			"12 the seller broke a rule; with --json the proof of each fault is in the output.",
		Example: "  gpufair auction verify auction.transcript\n" +
			"  gpufair auction verify auction.transcript --as gf…\n" +
			"  gpufair auction verify auction.transcript --json | jq '.winners[].pays'",
		RunE: func(_ *cobra.Command, args []string) error {
			var reader identity.AccountID
			if own != "" {
				var err error
				if reader, err = identity.ParseAccount(own); err != nil {
					return cli.Fail(cli.ExitUsage, "verify an auction", err, "give --as an account as `gpufair identity show` prints it")
				}
			}
			raw, err := a.readTranscript(args[0])
			if err != nil {
				return err
			}
			return a.checkTranscript(raw, reader)
		},
	}
	c.Flags().StringVar(&own, "as", "", "say \"you\" of this `account`")
	return c
}

func (a *app) readTranscript(path string) ([]byte, error) {
	const what = "verify an auction"
	in := a.In
	if path != "-" {
		f, err := disk.OpenFile(path)
		if err != nil {
			return nil, cli.Fail(cli.ExitNotFound, what, err, "give the name of a transcript's file, or - for the standard input")
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, auction.MaxTranscript+1))
	if err != nil {
		return nil, cli.Fail(cli.ExitSystem, what, err, "")
	}
	return raw, nil
}

// checkTranscript prints what a transcript shows; reader is who reads.
func (a *app) checkTranscript(raw []byte, reader identity.AccountID) error {
	t, err := auction.DecodeTranscript(raw)
	var r auction.Report
	if err == nil {
		r, err = auction.Verify(t)
	}
	if err != nil {
		if !a.JSON {
			return cli.Fail(cli.ExitCorrupt, "verify an auction", err, "ask whoever gave you the file for it again")
		}
		out := reportOf(auction.Report{}, reader)
		out.Result, out.Error, out.Text = auctionCorrupt, err.Error(), ""
		if err := a.PrintJSON(out); err != nil {
			return err
		}
		return cli.Status(cli.ExitCorrupt)
	}
	if a.JSON {
		err = a.PrintJSON(reportOf(r, reader))
	} else {
		for line := range strings.Lines(r.Text(reader)) {
			if _, err = fmt.Fprintln(a.Out, cli.Clean(strings.TrimSuffix(line, "\n"))); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	switch r.Verdict() {
	case auction.Kept:
		return nil
	case auction.Incomplete:
		return cli.Status(cli.ExitBehind)
	}
	return cli.Status(cli.ExitForged)
}

// reportOf is a report as --json prints it.
func reportOf(r auction.Report, reader identity.AccountID) auctionReport {
	out := auctionReport{
		Result:  [...]string{auction.Kept: auctionKept, auction.Incomplete: auctionIncomplete, auction.Broken: auctionBroken}[r.Verdict()],
		Commits: r.Counts.Leaves, Opened: r.Counts.Opened, Unopened: r.Counts.Unopened, Aborted: r.Aborted,
		Winners: []auctionWin{}, Lost: []auctionLoss{}, Faults: []auctionFault{}, Missing: append([]string{}, r.Missing...),
		Notes: append([]string{}, r.Notes...), Text: r.Text(reader),
	}
	if !r.Auction.IsZero() {
		o := r.Open
		out.Auction, out.Seller, out.Unit, out.Reserve = r.Auction.String(), o.Account.String(), string(o.Unit), o.Reserve.String()
		out.Rule, out.GPUs, out.MinTerm = string(o.Mode), o.K, o.MinTerm
	}
	for _, w := range r.Price {
		out.Winners = append(out.Winners, auctionWin{
			Account: w.Account.String(), Leaf: w.Leaf, GPUs: w.Quantity, Bid: w.Rate.String(), Pays: w.Pay.String(), Why: w.Why,
			Lease: fmt.Sprintf("%x", w.Lease[:]),
		})
	}
	for _, s := range r.Bids {
		if s.Won {
			continue
		}
		l := auctionLoss{Leaf: s.Leaf, Code: string(s.Reason.Code), Detail: s.Reason.Detail}
		if !s.Account.IsZero() {
			l.Account = s.Account.String()
		}
		out.Lost = append(out.Lost, l)
	}
	for _, f := range r.Faults {
		fault := auctionFault{Kind: f.Kind.String(), Why: f.Words}
		if raw, err := f.Proof.Encode(); err == nil {
			fault.Proof = raw
		}
		out.Faults = append(out.Faults, fault)
	}
	return out
}
