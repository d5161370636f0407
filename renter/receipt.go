package renter

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// takeReceipt books a receipt of the provider. One under a delegation that the provider got since the purchase is taken once it has shown
// that delegation.
func (j *job) takeReceipt(ctx context.Context, raw []byte) error {
	record := func(tx *books.Tx) error {
		_, err := tx.RecordReceipt(raw)
		return err
	}
	err := j.a.Books.Update(ctx, record)
	if errors.Is(err, books.ErrDelegation) {
		err = j.learnSigner(ctx, raw, record)
	}
	if err != nil {
		return fmt.Errorf("receipt: %w", err)
	}
	return nil
}

// learnSigner asks the provider for the delegation that a receipt names, keeps it, and records the receipt.
func (j *job) learnSigner(ctx context.Context, raw []byte, record func(*books.Tx) error) error {
	r, err := voucher.OpenReceipt(raw)
	if err != nil {
		return err
	}
	if _, err := j.a.Delegations.Lookup(ctx, j.offer.Device, r.Delegation); err != nil {
		return err
	}
	envelope, ok := j.a.Delegations.Envelope(r.Delegation)
	if !ok {
		return books.ErrDelegation
	}
	return j.a.Books.Update(ctx, func(tx *books.Tx) error {
		if _, _, err := tx.KeepDelegation(envelope); err != nil {
			return err
		}
		return record(tx)
	})
}
