package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/export"
)

func (d *Daemon) ledgerExport() *cobra.Command {
	var format, output string
	c := &cobra.Command{
		Use: "export", Short: "all postings as a file for a spreadsheet or a bookkeeping program",
		Long: "csv and json have a line for each posting; hledger and beancount are what `hledger check --strict` and `bean-check` accept.\n" +
			"Amounts are exact in all of them, to the millionth.",
		Example: fmt.Sprintf("  %s ledger export --format csv > ledger.csv\n  %s ledger export --format hledger -o gpufair.journal", d.Name, d.Name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(export.Formats(), export.Format(format)) {
				return cli.Usagef("give one of csv, json, hledger, beancount", "--format %q: no such format", cli.Clean(format))
			}
			return d.download(cmd.Context(), "export the ledger", "/ledger/export?format="+format, output)
		},
	}
	c.Flags().StringVar(&format, "format", string(export.FormatCSV), "csv, json, hledger or beancount")
	c.Flags().StringVarP(&output, "output", "o", "", "write to this new `file` instead of stdout")
	return c
}

// download writes what the daemon answers to stdout, or to a new file.
func (d *Daemon) download(ctx context.Context, what, path, output string) error {
	c, err := d.Dial(ctx)
	if err != nil {
		return err
	}
	body, err := c.Raw(ctx, http.MethodGet, path, nil)
	if err != nil {
		return d.Explain(what, err)
	}
	defer body.Close()
	if output == "" {
		_, err = io.Copy(d.Out, body)
		return d.Explain(what, err)
	}
	f, err := create(output)
	if err != nil {
		return cli.Fail(cli.ExitSystem, what, err, "give the name of a file that is not there yet")
	}
	return d.Explain(what, fill(f, body))
}

// create makes a file that only its owner reads, and never over another.
func create(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// fill writes a new file, or removes it: half a file is worse than none.
func fill(f *os.File, from io.Reader) error {
	_, err := io.Copy(f, from)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func writeNew(path string, content []byte) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	return fill(f, bytes.NewReader(content))
}
