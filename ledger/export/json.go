package export

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strings"
)

// line is a [Row] as JSON. Names are a documented contract, and those of the CSV's columns; new ones are added at the end.
type line struct {
	Time         string `json:"time"`
	Entry        string `json:"entry"`
	Kind         string `json:"kind"`
	Account      string `json:"account"`
	Counterparty string `json:"counterparty"`
	Lease        string `json:"lease"`
	Unit         string `json:"unit"`
	Amount       string `json:"amount"`
	Balance      string `json:"balance"`
	Note         string `json:"note"`
}

// JSON writes rows as one JSON object a line (UTF-8, LF), with the names of the CSV's columns. Every value is a string: amounts are
// decimals of the unit with a point and at most six places, never JSON numbers, which many readers take for floats. Texts are as they
// are; only bytes that are not UTF-8 become U+FFFD. The first error of rows or of w ends it.
func JSON(w io.Writer, rows iter.Seq2[Row, error]) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for r, err := range rows {
		if err != nil {
			return fmt.Errorf("export as JSON: %w", err)
		}
		if err := out.Encode(line{
			Time: r.Time.UTC().Format(timeLayout), Entry: r.EntryID, Kind: r.Kind, Account: strings.ToValidUTF8(r.Account, "\uFFFD"), Counterparty: r.Counterparty,
			Lease: r.Lease, Unit: string(r.Unit), Amount: decimal(r.Amount), Balance: decimal(r.Balance),
			Note: strings.ToValidUTF8(r.Note, "\uFFFD"),
		}); err != nil {
			return fmt.Errorf("export as JSON: %w", err)
		}
	}
	return nil
}
