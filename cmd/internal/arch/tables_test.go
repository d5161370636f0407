package arch

import (
	"bytes"
	"strings"
	"testing"
)

// TestTables plants entries in the tables of exceptions: one that is needed silences its rule, one that is not is found.
func TestTables(t *testing.T) {
	long := "package ledger\n\nfunc long() {\n" + strings.Repeat("\tprintln()\n", 80) + "}\n"
	tr, err := parse(map[string][]byte{
		"ledger/a.go": []byte(long),
		"ledger/b.go": []byte("package ledger\n\nimport \"context\"\n\nfunc Close() { _ = context.Background() }\n"),
		"docs/a.md":   []byte("mount it at /" + "root/x\n"),
		"big":         bytes.Repeat([]byte("x"), maxTracked+1),
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, sizes(tr, map[string]string{"ledger.long": "a table", "ledger.gone": "was long"}), []string{"ledger.gone: stands in exceptions_test.go"})
	compare(t, endings(tr, map[string]string{"ledger.Close": "io.Closer has no context"}), nil)
	compare(t, endings(tr, map[string]string{"ledger.Close": "x", "ledger.gone": "x"}), []string{"ledger.gone: stands in exceptions_test.go"})
	compare(t, endings(tr, map[string]string{"ledger.Close": ""}), []string{"ledger/b.go:5: uses context.Background in ledger.Close"})
	compare(t, portable(tr, map[string]string{"docs/a.md": "an example"}), nil)
	compare(t, outputs(tr), []string{"big: has 1048577 bytes"})
}

// TestReplaceTable writes the table of packages from their comments and leaves the rest of the page alone.
func TestReplaceTable(t *testing.T) {
	tr, err := parse(map[string][]byte{
		"ledger/a.go":   []byte("// Package ledger keeps who owes whom. It knows no GPU.\npackage ledger\n"),
		"cmd/tool/a.go": []byte("// Command tool does a | b. It knows nothing.\npackage main\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	page := "before\n" + tableBegin + "\nold\n" + tableEnd + "\nafter\n"
	got, err := replaceTable(page, tr)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + tableBegin + "\n\n| package | what it is |\n|---|---|\n" +
		"| `cmd/tool` | does a \\| b. |\n| `ledger` | keeps who owes whom. |\n\n" + tableEnd + "\nafter\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if _, err := replaceTable("no markers", tr); err == nil {
		t.Error("a page without the markers was written")
	}
}

func TestSplit(t *testing.T) {
	for name, want := range map[string]string{
		"HTTPForTest": "http for test", "demoMode": "demo mode", "Fastest": "fastest", "in_test2": "in test", "ID": "id", "DevnetURL": "devnet url",
	} {
		if got := strings.Join(split(name), " "); got != want {
			t.Errorf("split(%q) = %q, want %q", name, got, want)
		}
	}
}
