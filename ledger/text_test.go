package ledger

import (
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, x := range []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"abä", 4, "abä"}, {"abä", 3, "ab"}, {"ab€", 4, "ab"}, {"a\xffb", 3, "ab"}, {"", 3, ""}, {strings.Repeat("ä", 100), 129, strings.Repeat("ä", 64)}} {
		if got := Cut(x.text, x.n); got != x.want {
			t.Errorf("%q to %d bytes: %q, want %q", x.text, x.n, got, x.want)
		}
	}
}
