package cli

import (
	"fmt"
	"strings"
)

// Count is a number of things for people: "1 offer", "2 cores", "3 entries", "4 addresses".
func Count[N int | uint32 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.ContainsAny(stem[max(len(stem)-1, 0):], "aeiou") { // relays, but entries
		return fmt.Sprintf("%d %sies", n, stem)
	}
	if strings.HasSuffix(noun, "s") {
		return fmt.Sprintf("%d %ses", n, noun)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
