package local

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// owed puts what is owed, and since when, on the API.
func (d Desk) owed(a huma.API) {
	serve.Get(a, "/ledger/owed", "What is owed, by counterparty and age", func(ctx context.Context) (out statement.Owed, err error) {
		err = d.Books.View(ctx, func(r *books.Reader) (err error) { out, err = r.ShowOwed(); return err })
		return out, fail(err)
	})
}
