//go:build unix

package rail_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/ledger/rail"
)

// example is the program of docs/examples, where the user that runs it can read it, with a folder that it may write.
func example(t *testing.T) (c rail.Command, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "examples", "settlement-folder.sh"))
	if err != nil {
		t.Fatal(err)
	}
	c = program(t, "")
	dir = filepath.Join(filepath.Dir(c.Args[0]), "folder")
	if err := errors.Join(os.WriteFile(c.Args[0], text, 0o755), os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	c.Args = []string{c.Args[0], dir, "IBAN XX00"}
	return c, dir
}

// TestExample walks the example of docs/settlement.md through a payment, each question twice: the answers are the same, and there is one
// invoice and one order.
func TestExample(t *testing.T) {
	c, dir := example(t)
	twice := func(r rail.Request) rail.Answer {
		t.Helper()
		first, err1 := c.Do(t.Context(), r)
		again, err2 := c.Do(t.Context(), r)
		if err := errors.Join(err1, err2); err != nil || first != again {
			t.Fatalf("%s: %+v, then %+v: %v", r.Action, first, again, err)
		}
		return first
	}
	move := func(from, to, name string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from, name), filepath.Join(dir, to, name)); err != nil {
			t.Fatal(err)
		}
	}
	bill := twice(invoice)
	if bill.Reference != "gf-abababababababab" || bill.Method != "bank" || bill.Pay != "IBAN XX00" {
		t.Fatalf("%+v", bill)
	}
	changed := invoice
	changed.Methods = []string{"wire"} // of the settings: the invoice stays as it was made
	if got := twice(changed); got != bill {
		t.Fatalf("with other settings: %+v", got)
	}
	ask := rail.Request{Action: rail.Check, Key: invoice.Key, Peer: invoice.Peer, Unit: "CREDIT", Amount: "3.5", Method: "bank", Reference: bill.Reference}
	if got := twice(ask); got.State != rail.Open {
		t.Fatalf("before it was paid: %+v", got)
	}
	order := pay
	order.Key, order.Reference, order.Pay = strings.Repeat("cd", 32), bill.Reference, `"; rm -rf / $(id)`
	if got := twice(order); got.State != rail.Open {
		t.Fatalf("before it was sent: %+v", got)
	}
	move("topay", "sent", "cdcdcdcdcdcdcdcd")
	if got := twice(order); got.State != rail.Paid {
		t.Fatalf("after it was sent: %+v", got)
	}
	move("open", "paid", bill.Reference)
	if got := twice(ask); got.State != rail.Paid || got.Amount != "3.5" {
		t.Fatalf("after it has come: %+v", got)
	}
	for what, change := range map[string]func(*rail.Request){
		"another amount": func(r *rail.Request) { r.Amount = "35" },
		"another unit":   func(r *rail.Request) { r.Unit = "EUR" },
		"another renter": func(r *rail.Request) { r.Peer, r.Claimed = "gfother", true },
		"another method": func(r *rail.Request) { r.Method, r.Claimed = "wire", true },
		"no method":      func(r *rail.Request) { r.Method = "" },
		"a pattern":      func(r *rail.Request) { r.Method = "b.nk" },
		"a path":         func(r *rail.Request) { r.Reference = "../paid/" + bill.Reference },
		"the folder":     func(r *rail.Request) { r.Reference = "." },
		"a quote":        func(r *rail.Request) { r.Reference = `x","reference":"` + bill.Reference },
	} {
		bad := ask
		change(&bad)
		if got := twice(bad); got.State != rail.Open {
			t.Errorf("%s: %+v", what, got)
		}
	}
	for _, folder := range []string{"open", "paid", "topay", "sent"} {
		if list, err := os.ReadDir(filepath.Join(dir, folder)); err != nil || len(list) != map[string]int{"paid": 1, "sent": 1}[folder] {
			t.Errorf("%s has %d files: %v", folder, len(list), err)
		}
	}
	if _, err := c.Do(t.Context(), rail.Request{Action: "dance"}); err == nil || !strings.Contains(err.Error(), "no such action") {
		t.Errorf("an unknown action: %v", err)
	}
}
