// Package arch holds the walls of the house as tests and nothing that a program links: who may import whom, who alone touches an
// outside system, what is pure, what each binary may link, how large things may grow, and that every package says what it is. It
// looks at source text and knows nothing of what the packages do.
//
// Every failure prints the reason of its rule. Every rule has a fixture in testdata with a planted violation, so that a rule that has
// gone blind fails too. Exceptions stand in exceptions_test.go, each with its reason.
//
// After adding a package or a dependency on purpose, `go test ./cmd/internal/arch -update` writes the table of
// docs/architecture.md and the counts of testdata/links.golden again.
package arch
