package reason

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// declared reads the codes out of the source, so that one without advice cannot be forgotten.
func declared(t *testing.T) map[string]Code {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	codes := map[string]Code{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "Code" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes[v.Names[0].Name] = Code(s)
		}
		return true
	})
	return codes
}

func TestEveryCodeHasAdvice(t *testing.T) {
	codes := declared(t)
	if len(codes) < 30 || len(codes) != len(Codes()) {
		t.Fatalf("%d codes are declared, %d have advice", len(codes), len(Codes()))
	}
	seen := map[Code]string{}
	for name, c := range codes {
		a, ok := c.Advice()
		if !ok || a.Means == "" || a.Renter == "" || a.Owner == "" {
			t.Errorf("%s (%s): no full advice: %+v", name, c, a)
		}
		if other := seen[c]; other != "" {
			t.Errorf("%s and %s are both %q", name, other, c)
		}
		seen[c] = name
		for _, line := range []string{a.Means, a.Renter, a.Owner} {
			if strings.ContainsAny(line, "\n") || strings.HasSuffix(line, ".") || len(line) > 140 {
				t.Errorf("%s: not one short line: %q", name, line)
			}
		}
		if !c.Known() {
			t.Errorf("%s is not known", c)
		}
	}
}

func TestReasonAsText(t *testing.T) {
	for _, tt := range []struct {
		r           Reason
		text, error string
	}{
		{
			New(PriceBelow, "%v asked, %v offered", "0.21", "0.2"), "the order's rate is below the lot's price: 0.21 asked, 0.2 offered",
			"the order's rate is below the lot's price: 0.21 asked, 0.2 offered (accept the offer's price, or search for a cheaper one)",
		},
		{Reason{Code: Duplicate}, "this was already received", "this was already received"},
		{Reason{Code: "from_the_future", Detail: "x"}, "from_the_future: x", "from_the_future: x"},
		{Reason{Detail: "x"}, "x", "x"},
		{Reason{}, "", ""},
	} {
		if got := tt.r.String(); got != tt.text {
			t.Errorf("String() = %q, want %q", got, tt.text)
		}
		if got := tt.r.Error(); got != tt.error {
			t.Errorf("Error() = %q, want %q", got, tt.error)
		}
	}
}

func TestErrorsCarryReasons(t *testing.T) {
	err := fmt.Errorf("sell lease x: %w", Errorf(CreditLimit, "owes %d", 7))
	if r, ok := Of(err); !ok || r != New(CreditLimit, "owes 7") {
		t.Fatal(r, ok)
	}
	var e *Error
	if !errors.As(err, &e) || !Is(err, CreditLimit) || Is(err, DiskFull) || Is(errors.New("x"), CreditLimit) {
		t.Fatal("errors.As and Is do not agree")
	}
	if _, ok := Of(nil); ok {
		t.Fatal("nil carries a reason")
	}
}

func TestCleanBoundsAStrangersText(t *testing.T) {
	r := Reason{Code: Code(strings.Repeat("c", 99)), Detail: "a\x1b[31m\u202eb\n" + strings.Repeat("é", 300)}.Clean()
	if len(r.Code) != 64 || len(r.Detail) > MaxDetail || strings.ContainsAny(r.Detail, "\x1b\u202e\n") || !strings.HasPrefix(r.Detail, "a[31mbé") {
		t.Fatalf("%q", r)
	}
}
