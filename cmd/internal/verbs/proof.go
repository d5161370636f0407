package verbs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/terms"
	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
)

func (d *Daemon) ledgerProof() *cobra.Command {
	var output, account string
	c := &cobra.Command{
		Use: "proof LEASE", Short: "one file that shows anybody what a lease came to", Args: leaseOr(&account),
		Long: "The file holds the signed vouchers, the receipt, both sides' payments and this ledger's entries of the lease with the proofs that they\n" +
			"stand in its signed log. Whoever gets it runs `ledger verify FILE`, without a daemon. It shows both accounts, the lease's amounts and\n" +
			"the references of its payments; give it to nobody who should not see them.\n" +
			"With --account it writes a folder: a file for each lease with that account that is not paid, also if it was written off.",
		Example: fmt.Sprintf("  %s ledger proof 3fa9\n  %s ledger proof 3fa9 -o for-the-judge.proof\n  %s ledger proof --account gf… -o debt",
			d.Name, d.Name, d.Name),
		RunE: func(cmd *cobra.Command, args []string) error {
			if account != "" {
				return d.proveDebt(cmd.Context(), account, output)
			}
			raw, err := d.fetchProof(cmd.Context(), "prove lease "+args[0], leaseProof(args[0]))
			if err != nil {
				return err
			}
			v := terms.Check(raw)
			if output == "" {
				output = "lease-" + short(v.Lease) + ".proof"
			}
			if err := d.writeProof("lease "+args[0], output, raw); err != nil {
				return err
			}
			if err := d.printProof(v); err != nil {
				return err
			}
			return verdict(v.Result)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "write to this new `file` (default lease-<start of its id>.proof), or folder")
	c.Flags().StringVar(&account, "account", "", "of all unpaid leases with this `account`")
	return c
}

// fetchProof asks the daemon for a proof file.
func (d *Daemon) fetchProof(ctx context.Context, what, path string) ([]byte, error) {
	c, err := d.Dial(ctx)
	if err != nil {
		return nil, err
	}
	body, err := c.Raw(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, d.Explain(what, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, proof.MaxFile+1))
	return raw, d.Explain(what, err)
}

// leaseProof is where a lease's proof file is to be had.
func leaseProof(lease string) string { return "/ledger/leases/" + url.PathEscape(lease) + "/proof" }

// writeProof writes a proof file, and says what to do with it. What names the thing it is the proof of.
func (d *Daemon) writeProof(what, output string, raw []byte) error {
	if err := writeNew(output, raw); err != nil {
		return cli.Fail(cli.ExitSystem, "write the proof of "+what, err, "give with -o the name of a file that is not there yet")
	}
	d.Note("wrote %s, %d bytes; who gets it runs: %s ledger verify %s", cli.Clean(output), len(raw), d.Name, cli.Clean(output))
	return nil
}

// verifyFile checks a proof file, with nothing else.
func (d *Daemon) verifyFile(path string) error {
	f, err := disk.OpenFile(path)
	if err != nil {
		return cli.Fail(cli.ExitNotFound, "verify a proof file", err, "give the name of a file that `ledger proof` made")
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, proof.MaxFile+1))
	if err != nil {
		return cli.Fail(cli.ExitSystem, "verify a proof file", err, "")
	}
	if proof.IsFork(raw) {
		return d.verifyFork(raw)
	}
	if proof.IsPayment(raw) {
		return d.verifyPayment(raw)
	}
	v := terms.Check(raw)
	if err := d.printProof(v); err != nil {
		return err
	}
	return verdict(v.Result)
}

func (d *Daemon) printProof(v statement.Proof) error {
	if d.JSON {
		return d.PrintJSON(v)
	}
	colour := cli.Bad
	if v.Result == proof.OK {
		colour = cli.Good
	}
	pairs := [][2]string{{"result", d.Paint(colour, v.Result)}}
	if v.Record != "" {
		pairs = append(pairs, [2]string{"wrong", cli.Clean(v.Record)}, [2]string{"why", cli.Clean(v.Detail)})
	}
	if v.Lease == "" {
		return d.Pairs(append(pairs, [2]string{"figures", "none: they do not follow from good signatures"})...)
	}
	pairs = append(pairs,
		[2]string{"lease", v.Lease}, [2]string{"owes", v.Renter}, [2]string{"is owed", v.Provider},
		[2]string{"promised", fmt.Sprintf("%s %s in all, by voucher %d", v.Promised, v.Unit, v.Sequence)},
		[2]string{"received", orDash(v.Received)},
		[2]string{"paid", span(v.PaidAtLeast, v.PaidAtMost) + " " + v.Unit}, [2]string{"left", span(v.LeftAtLeast, v.LeftAtMost) + " " + v.Unit},
		[2]string{"made by", v.MadeBy})
	if v.AllowedUntil != nil {
		pairs = append(pairs, [2]string{"allowed", fmt.Sprintf("up to %s %s in all, until %s", v.Allowed, v.Unit, v.AllowedUntil.Format(time.RFC3339))})
	}
	if v.Evidence != "" {
		pairs = append(pairs, [2]string{"used", cli.Clean(v.Evidence)})
	}
	for _, r := range v.Rates {
		pairs = append(pairs, [2]string{"rate", fmt.Sprintf("%s an hour x %d for %s: %s", r.Rate, r.Devices, time.Duration(min(r.Millis, maxMillis))*time.Millisecond, r.Charge)})
	}
	for _, s := range v.Settlements {
		pairs = append(pairs, [2]string{"payment", cli.Clean(fmt.Sprintf("%s by %s, reference %q, %s, %d of 2 signatures",
			s.Amount, s.Method, s.Reference, s.Time.Format(time.RFC3339), len(s.Signed)))})
	}
	for _, c := range v.Clearings {
		pairs = append(pairs, [2]string{"cleared", fmt.Sprintf("%s %s in a circle of %d, of it for this lease up to %s in all", c.Amount, v.Unit, c.Members, c.Part)})
	}
	for _, a := range v.Attachments {
		pairs = append(pairs, [2]string{"signed", cli.Clean(short(a.Signed) + ", " + a.Name + ": " + orDash(a.Says))})
	}
	if err := d.Pairs(pairs...); err != nil {
		return err
	}
	return d.printShown(v.Proven, v.NotProven)
}

// printShown prints what a proof shows and what not.
func (d *Daemon) printShown(proven, not []string) error {
	var out bytes.Buffer
	for _, list := range []struct {
		title string
		lines []string
	}{{"proven", proven}, {"not proven", not}} {
		fmt.Fprintf(&out, "\n%s:\n", list.title)
		for _, l := range list.lines {
			fmt.Fprintf(&out, "  - %s\n", cli.Clean(l))
		}
	}
	_, err := d.Out.Write(out.Bytes())
	return err
}

// maxMillis is the longest time that a Duration holds.
const maxMillis = uint64(1<<63-1) / uint64(time.Millisecond)

// span is one amount, or two if they differ.
func span(least, most string) string {
	if least == most {
		return least
	}
	return "at least " + least + ", at most " + most
}
