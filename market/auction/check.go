package auction

import (
	"fmt"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// CheckFraud reads a proof and sees for itself that it holds. It needs nothing else, and no honest seller's records ever satisfy it. The
// error wraps ErrFraud. A proof with a transcript costs as much as [Verify]: limit how many a peer may send.
func CheckFraud(raw []byte) (Finding, error) {
	f, err := DecodeFraud(raw)
	if err != nil {
		return Finding{}, err
	}
	var found Finding
	switch {
	case f.Kind.heavy():
		found, err = f.checkTranscript()
	case f.Kind == DoubleLease:
		found, err = f.checkLeases()
	default:
		found, err = f.checkRecords()
	}
	if err != nil {
		return Finding{}, fmt.Errorf("check %s: %w: %w", f.Kind, ErrFraud, err)
	}
	found.Kind, found.Hash = f.Kind, identity.Hash(raw)
	return found, nil
}

func (f Fraud) checkTranscript() (Finding, error) {
	t, err := DecodeTranscript(f.Transcript)
	if err != nil {
		return Finding{}, err
	}
	r, err := Verify(t)
	if err != nil {
		return Finding{}, err
	}
	for _, fault := range r.Faults {
		if fault.Kind == f.Kind {
			return Finding{Seller: r.Open.Account, Auction: r.Auction, Words: fault.Words}, nil
		}
	}
	return Finding{}, fmt.Errorf("the transcript of auction %s does not show it", r.Auction.Short())
}

func (f Fraud) checkLeases() (Finding, error) {
	slot, double, err := market.DoubleLease(f.Records[0], f.Records[1])
	if err != nil {
		return Finding{}, err
	}
	if !double {
		return Finding{}, fmt.Errorf("the two leases can both be good")
	}
	who, s := identity.AccountID{}, readSigners(f.Delegations)
	for _, raw := range f.Records {
		l, err := market.OpenLease(raw)
		if err != nil {
			return Finding{}, err
		}
		if err := s.allow(l.Delegation, l.Header, identity.PowerProvide); err != nil {
			return Finding{}, err
		}
		who = l.Account
	}
	return Finding{
		Seller: who,
		Words:  fmt.Sprintf("the seller leased device %s twice in its generation %d", slot.Device.Short(), slot.Generation),
	}, nil
}

// bySeller is the Open of a proof and the delegations beside it.
type bySeller struct {
	id      ID
	open    Open
	signers signers
}

// check wants a record of the same auction, by the same account, within its device's power.
func (b bySeller) check(id ID, h identity.Header, named wire.Hash) error {
	switch {
	case id != b.id:
		return fmt.Errorf("a record is of auction %s, the open is %s", id.Short(), b.id.Short())
	case h.Account != b.open.Account:
		return fmt.Errorf("a record is by account %s, the seller is %s", h.Account.Short(), b.open.Account.Short())
	}
	return b.signers.allow(named, h, identity.PowerProvide)
}

func (f Fraud) checkRecords() (Finding, error) {
	open, err := ReadOpen(f.Open)
	if err != nil {
		return Finding{}, err
	}
	b := bySeller{id: IDOf(f.Open), open: open, signers: readSigners(f.Delegations)}
	if err := b.signers.allow(open.Delegation, open.Header, identity.PowerProvide); err != nil {
		return Finding{}, err
	}
	check := map[Kind]func(bySeller) (string, error){
		TwoSeals: f.twoSeals, MissingLeaf: f.missingLeaf, TwoReceipts: f.twoReceipts, IgnoredOpening: f.ignoredOpening,
		TwoAwards: f.twoAwards, Aborted: f.aborted,
	}[f.Kind]
	words, err := check(b)
	if err != nil {
		return Finding{}, err
	}
	return Finding{Seller: open.Account, Auction: b.id, Words: words}, nil
}

// pair opens the two records of a proof and checks that they are the seller's.
func pair[A, B identity.Body](
	f Fraud, s bySeller, openA func([]byte) (A, error), aboutA func(A) (ID, wire.Hash), openB func([]byte) (B, error), aboutB func(B) (ID, wire.Hash),
) (a A, b B, err error) {
	if a, err = openA(f.Records[0]); err != nil {
		return a, b, err
	}
	if b, err = openB(f.Records[1]); err != nil {
		return a, b, err
	}
	idA, namedA := aboutA(a)
	idB, namedB := aboutB(b)
	if err = s.check(idA, a.Head(), namedA); err == nil {
		err = s.check(idB, b.Head(), namedB)
	}
	if err == nil && string(f.Records[0]) == string(f.Records[1]) {
		err = fmt.Errorf("the two records are one")
	}
	return a, b, err
}

func (f Fraud) twoSeals(s bySeller) (string, error) {
	a, b, err := pair(f, s, ReadSeal, aboutSeal, ReadSeal, aboutSeal)
	return fmt.Sprintf("the seller signed two Seals, of %d and of %d commits", a.Size, b.Size), err
}

func (f Fraud) missingLeaf(s bySeller) (string, error) {
	r, seal, err := pair(f, s, ReadReceipt, aboutReceipt, ReadSeal, aboutSeal)
	if err != nil {
		return "", err
	}
	words := fmt.Sprintf("the seller acknowledged commit %s as leaf %d, and sealed a log of %d without it", r.Commit.Short(), r.Index, seal.Size)
	switch {
	case r.Of != OfCommit:
		return "", fmt.Errorf("the receipt is for an opening")
	case r.Index >= seal.Size:
		if len(f.Leaf)+len(f.Path) > 0 {
			return "", fmt.Errorf("there is no leaf %d", r.Index)
		}
		return words, nil
	case identity.Hash(f.Leaf) == r.Commit:
		return "", fmt.Errorf("leaf %d is the commit that was acknowledged", r.Index)
	}
	return words, Included(f.Path, seal.Size, seal.Root, r.Index, f.Leaf)
}

func (f Fraud) twoReceipts(s bySeller) (string, error) {
	a, b, err := pair(f, s, ReadReceipt, aboutReceipt, ReadReceipt, aboutReceipt)
	if err != nil {
		return "", err
	}
	words := contradict(a, b)
	if words == "" {
		return "", fmt.Errorf("the two receipts can be of one log")
	}
	return words, nil
}

func (f Fraud) ignoredOpening(s bySeller) (string, error) {
	r, a, err := pair(f, s, ReadReceipt, aboutReceipt, ReadAward, aboutAward)
	switch {
	case err != nil:
		return "", err
	case r.Of != OfOpening:
		return "", fmt.Errorf("the receipt is for a commit")
	case a.Counts(r.Index):
		return "", fmt.Errorf("the Award counts leaf %d", r.Index)
	}
	return fmt.Sprintf("the seller acknowledged the opening of leaf %d in time, and its Award does not count it", r.Index), nil
}

func (f Fraud) twoAwards(s bySeller) (string, error) {
	a, b, err := pair(f, s, ReadAward, aboutAward, ReadAward, aboutAward)
	if err == nil && a.Before != b.Before {
		err = fmt.Errorf("one Award replaces the other after winners declined")
	}
	return "the seller signed two Awards for one result", err
}

func (f Fraud) aborted(s bySeller) (string, error) {
	_, a, err := pair(f, s, ReadSeal, aboutSeal, ReadAbort, aboutAbort)
	return "the seller ended the auction after the Seal: " + a.Reason.String(), err
}
