package ledger

import "strings"

// Cut is at most the first n bytes of a text that is kept or sent: a letter that the cut goes through is left out, and so is what is no
// UTF-8, since a record with it could not be read again.
func Cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }
