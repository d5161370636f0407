package books

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/wire"
)

// A payment's reference is indexed once this account, as provider, has signed for it. [voucher.Settlement.Payment] is of one channel and
// method, and the payer chooses the method: so a program's word that money came under a reference would else be taken for several payments.
const (
	keyReferences  = "refs" // how far the index reaches over the settlements that are older than it: a key, or all of them
	allReferences  = "all"
	referenceBatch = 1000 // settlements of one transaction
)

// fold is what a program that is lenient about a reference may still tell apart: its letters and digits.
func fold(reference string) (out []byte) {
	for _, c := range []byte(strings.ToLower(reference)) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			out = append(out, c)
		}
	}
	return out
}

// referencesOf is the prefix of the keys that name the settlements whose references fold to the same: none is the beginning of another.
func referencesOf(reference string) []byte {
	f := fold(reference)
	return key("ref/", []byte{byte(len(f))}, f, []byte("/"))
}

// indexReference keeps the index right about one settlement.
func (t *Tx) indexReference(s voucher.Settlement, state SettlementState) error {
	if s.Channel.Provider != t.b.self || s.Reference == "" {
		return nil
	}
	id := s.ID()
	k := append(referencesOf(s.Reference), id[:]...)
	switch state {
	case Proposed, Signed:
		return t.own.Set(k, nil)
	case Refused:
		return t.own.Delete(k)
	}
	return nil // Waiting: the renter's word alone
}

// IndexReferences puts the settlements that are older than the index of references into it. It goes on where it was stopped, and does nothing
// once all are there.
func (b *Books) IndexReferences(ctx context.Context) error {
	for {
		var whole bool
		err := b.View(ctx, func(r *Reader) (err error) { whole, err = r.indexed(); return err })
		if err != nil || whole {
			return err
		}
		if err := b.Update(ctx, func(t *Tx) error { return t.indexMore(referenceBatch) }); err != nil {
			return fmt.Errorf("index references: %w", err)
		}
	}
}

// indexed reports whether every settlement is in the index of references.
func (r *Reader) indexed() (bool, error) {
	place, err := raw(r.own, []byte(keyReferences))
	return string(place) == allReferences, err
}

// indexMore indexes up to n further settlements.
func (t *Tx) indexMore(n int) error {
	from, err := raw(t.own, []byte(keyReferences))
	if err != nil {
		return err
	}
	var batch []Settled
	next := []byte(allReferences)
	for p, err := range t.own.Iterate([]byte("set/"), from) {
		if err != nil {
			return err
		}
		if len(batch) == n {
			next = bytes.Clone(p.Key)
			break
		}
		v, _, err := decodeSettled(p)
		if err != nil {
			return err
		}
		batch = append(batch, v)
	}
	for _, v := range batch {
		s, err := voucher.OpenSettlement(v.Proposal)
		if err == nil {
			err = t.indexReference(s, v.State)
		}
		if err != nil {
			return err
		}
	}
	return t.own.Set([]byte(keyReferences), next)
}

// CountersignFound is [Tx.Countersign] without a person, for a renter's proposal of a payment that a program has found. One whose reference
// stands under another settlement that this provider signed, or on another of its invoices, is ErrPaid, whatever its renter, unit and
// method are: a program that goes by the reference would find the same money for each. After a restore it is ErrUnsure until everybody has
// given back what was signed. [Books.IndexReferences] comes before.
func (t *Tx) CountersignFound(id wire.Hash) error {
	v, err := t.Settlement(id)
	if err != nil {
		return err
	}
	s, err := voucher.OpenSettlement(v.Proposal)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForged, err)
	}
	if err := t.mayFind(id, s); err != nil {
		return fmt.Errorf("settlement %s waits for you, `settle accept` or `settle refuse`: %w", id.Short(), err)
	}
	_, err = t.Countersign(id)
	return err
}

// mayFind checks that a program's word is enough for a settlement.
func (r *Reader) mayFind(id wire.Hash, s voucher.Settlement) error {
	whole, err := r.indexed()
	if err != nil {
		return err
	}
	if !whole {
		return errors.New("the references of older settlements are not indexed yet")
	}
	for _, err := range r.own.Iterate([]byte("rec/"), nil) {
		return errors.Join(err, fmt.Errorf("it may have been signed under this reference before: %w", ErrUnsure))
	}
	if strings.ContainsFunc(s.Reference, func(c rune) bool { return c < ' ' || c > '~' }) || len(fold(s.Reference)) == 0 {
		return fmt.Errorf("reference %q: a program may take it for another: %w", s.Reference, wire.ErrFormat)
	}
	return r.soleReference(Payment{Channel: s.Channel, Amount: s.Amount, Method: s.Method, Reference: s.Reference}, id, true)
}

// soleReference checks that no settlement but the one of id, and no invoice but the payment's own, has the reference of a payment. With loose
// one that differs in letter case, blanks and signs alone is the same: a program may look for it so.
func (r *Reader) soleReference(p Payment, id wire.Hash, loose bool) error {
	same := func(reference string) bool {
		return reference == p.Reference || loose && bytes.Equal(fold(reference), fold(p.Reference))
	}
	err := r.eachReference(p.Reference, func(kept wire.Hash, s voucher.Settlement, v Settled) error {
		if kept == id || !same(s.Reference) {
			return nil
		}
		return fmt.Errorf("reference %q: %w: %v by %q of account %s, %s", s.Reference, ErrPaid, s.Amount, s.Method, s.Channel.Renter.Short(), v.State)
	})
	if err != nil {
		return err
	}
	own := billKey(ledger.AsProvider, p.Channel.Unit, p.Channel.Renter)
	for kept, err := range r.own.Iterate(key("bill/", []byte{'0' + byte(ledger.AsProvider)}), nil) {
		if err != nil {
			return err
		}
		var b Bill
		if err := wire.UnmarshalStrict(kept.Value, &b); err != nil {
			return fmt.Errorf("invoice %q: %w: %w", kept.Key, ErrCorrupt, err)
		}
		if !same(b.Reference) || bytes.Equal(kept.Key, own) && b.Method == p.Method && b.Reference == p.Reference {
			continue
		}
		renter, _ := lastAccount(kept.Key)
		return fmt.Errorf("reference %q: %w: an invoice of %v by %q to account %s has it, %s", b.Reference, ErrPaid, b.Amount, b.Method, renter.Short(), b.State)
	}
	return nil
}

// eachReference calls f with the settlements whose reference folds to that of reference.
func (r *Reader) eachReference(reference string, f func(id wire.Hash, s voucher.Settlement, v Settled) error) error {
	prefix := referencesOf(reference)
	for kept, err := range r.own.Iterate(prefix, nil) {
		if err != nil {
			return err
		}
		var id wire.Hash
		copy(id[:], kept.Key[len(prefix):])
		v, err := r.Settlement(id)
		if err != nil {
			return err
		}
		s, err := voucher.OpenSettlement(v.Proposal)
		if err != nil {
			return fmt.Errorf("settlement %s: %w: %w", id.Short(), ErrForged, err)
		}
		if err := f(id, s, v); err != nil {
			return err
		}
	}
	return nil
}

// signedUnder finds a settlement of a channel that both have signed under a reference, whatever its method is.
func (r *Reader) signedUnder(c ledger.Channel, reference string) (id wire.Hash, v Settled, ok bool, err error) {
	err = r.eachReference(reference, func(kept wire.Hash, s voucher.Settlement, have Settled) error {
		if s.Channel == c && s.Reference == reference && have.State == Signed {
			id, v, ok = kept, have, true
		}
		return nil
	})
	return id, v, ok, err
}
