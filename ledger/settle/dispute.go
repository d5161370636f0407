package settle

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// DisputeView is what one side has of a dispute, for the other: its record, the newest voucher with its receipt, its credit notes.
type DisputeView struct {
	Lane    ledger.Lane `cbor:"1,keyasint"`
	Dispute []byte      `cbor:"2,keyasint,omitempty"` // the sender's; in an answer, if it has one
	Voucher []byte      `cbor:"3,keyasint,omitempty"` // the newest, of a renter
	Receipt []byte      `cbor:"4,keyasint,omitempty"` // of the newest voucher, of a provider
	Offer   []byte      `cbor:"5,keyasint,omitempty"` // the sender's proposed credit note
	Counter []byte      `cbor:"6,keyasint,omitempty"` // the sender's signature under the other's
}

// view gathers what this side has.
func view(r *books.Reader, lane ledger.Lane, self identity.AccountID) (DisputeView, ledger.Channel, error) {
	v := DisputeView{Lane: lane}
	l, err := r.Lane(lane)
	if err != nil {
		return v, l.Channel, err
	}
	d, err := r.Dispute(lane)
	if err != nil {
		return v, l.Channel, err
	}
	v.Dispute, v.Offer = d.Mine, d.Offer
	if d.Agreed != nil && d.Offered != nil && string(d.Note) == string(d.Offered) {
		v.Counter = d.Counter // this side's own
	}
	if l.Channel.RoleOf(self) == ledger.AsRenter {
		v.Voucher, err = r.Voucher(lane, l.Seq)
	} else {
		v.Receipt, err = r.Receipt(l.Voucher)
	}
	return v, l.Channel, err
}

// takeView takes what the other side has. What was here already changes nothing. The other side's delegation must be kept.
func takeView(t *books.Tx, v DisputeView, self identity.AccountID) error {
	if v.Dispute != nil {
		if err := t.RecordDispute(v.Dispute); err != nil {
			return err
		}
	}
	l, err := t.Lane(v.Lane)
	if err != nil {
		return err
	}
	if l.Frozen() && v.Voucher != nil && l.Channel.RoleOf(self) == ledger.AsProvider {
		// One that is not taken, for want of credit or by its order, is no debt; the dispute is about what is.
		if _, err := t.AcceptDisputed(v.Voucher); err != nil && errors.Is(err, books.ErrReadOnly) {
			return err
		}
	}
	if v.Receipt != nil && l.Channel.RoleOf(self) == ledger.AsRenter {
		if _, err := t.RecordReceipt(v.Receipt); err != nil && !errors.Is(err, books.ErrNoLane) {
			return err
		}
	}
	for _, raw := range [][]byte{v.Offer, v.Counter} {
		if raw == nil {
			continue
		}
		if err := t.RecordNote(raw); err != nil {
			return err
		}
	}
	return nil
}

// takeDispute is the answer to a claim about a dispute: both views.
func (c *Claims) takeDispute(t *books.Tx, m Claim, out *Reply) error {
	self := c.c.Books.Self()
	l, err := t.Lane(m.Dispute.Lane)
	if err != nil {
		return err
	}
	if l.Channel.AllEpochs() != m.Channel.AllEpochs() {
		return p2p.Errorf(p2p.KindForbidden, "the lease is of another channel")
	}
	if err := takeView(t, *m.Dispute, self); err != nil {
		return err
	}
	mine, _, err := view(t.Reader, m.Dispute.Lane, self)
	if err == nil {
		out.Dispute = &mine
	}
	return err
}

// maxRounds of one exchange: the dispute and the vouchers, their receipt, a signature under a credit note.
const maxRounds = 3

// Dispute brings this side's records of a dispute to the other side and takes the other's: both then have the same newest voucher with
// its receipt, and each other's records and credit notes. It may be repeated at any time.
func (c *Claims) Dispute(ctx context.Context, peer identity.PeerID, lane ledger.Lane) error {
	self, last := c.c.Books.Self(), ""
	for range maxRounds {
		var mine DisputeView
		var channel ledger.Channel
		err := c.c.Books.View(ctx, func(r *books.Reader) (err error) {
			mine, channel, err = view(r, lane, self)
			return err
		})
		if err != nil {
			return err
		}
		if now := fmt.Sprintf("%x", mine); now == last {
			break
		} else {
			last = now
		}
		got, err := c.ask(ctx, peer, Claim{Channel: channel.AllEpochs(), Dispute: &mine})
		if err != nil {
			return err
		}
		if got.Dispute == nil || got.Dispute.Lane != lane {
			return p2p.Errorf(p2p.KindBadRequest, "no answer about lane %s", lane.Short())
		}
		err = c.c.Books.Update(ctx, func(t *books.Tx) error {
			if _, _, err := t.KeepDelegation(got.Delegation); err != nil {
				return err
			}
			return takeView(t, *got.Dispute, self)
		})
		if err != nil {
			return err
		}
	}
	return c.c.Books.Update(ctx, func(t *books.Tx) error { return t.Told(lane) })
}
