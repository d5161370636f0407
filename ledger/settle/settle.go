// Package settle is the conversation in which two peers bring a channel to one state: the newest vouchers and receipts, and settlements
// of payments made outside, which count when both have signed. It owns the messages and their order; ledger/books owns what they do.
// It refuses to know leases, and how anybody pays.
//
// Every call may be repeated after a lost answer: what is here already is answered again and booked once.
package settle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversation.
const (
	maxVouchers = 32                                                                  // of one message; more lanes take more messages
	maxMessage  = maxVouchers*(voucher.MaxVoucher+8) + 2*voucher.MaxSettlement + 4096 // bytes
)

// Limits is what the protocol may cost.
func Limits() p2p.Limits { return p2p.Limits{Streams: 32, PeerStreams: 2, Idle: 30 * time.Second} }

// Ask is the request: whatever of its parts is there is done in the order of the fields.
type Ask struct {
	Channel    ledger.Channel `cbor:"1,keyasint"`
	Delegation []byte         `cbor:"2,keyasint"`           // of the device that asks
	Vouchers   [][]byte       `cbor:"3,keyasint,omitempty"` // renter to provider: the newest of each lane
	Skip       uint32         `cbor:"4,keyasint,omitempty"` // provider to renter: how many of the newest vouchers it has read
	Proposal   []byte         `cbor:"5,keyasint,omitempty"` // a settlement to be signed
	Counter    []byte         `cbor:"6,keyasint,omitempty"` // the asker's signature under the answerer's proposal
	Refused    *Refusal       `cbor:"7,keyasint,omitempty"` // the asker's no to the answerer's proposal
}

// Refusal is a no to a settlement.
type Refusal struct {
	ID  wire.Hash `cbor:"1,keyasint"`
	Why string    `cbor:"2,keyasint,omitempty"`
}

// Answer is the answer to an [Ask].
type Answer struct {
	Delegation []byte                `cbor:"1,keyasint"`           // of the device that answers
	Receipts   [][]byte              `cbor:"2,keyasint,omitempty"` // for the vouchers that were taken
	Vouchers   [][]byte              `cbor:"3,keyasint,omitempty"` // renter to provider: the newest of each lane
	More       bool                  `cbor:"4,keyasint,omitempty"` // there are more vouchers: ask again with Skip
	State      books.SettlementState `cbor:"5,keyasint,omitempty"` // of the settlement that was asked about
	Counter    []byte                `cbor:"6,keyasint,omitempty"` // the answerer's signature under the proposal
	Why        string                `cbor:"7,keyasint,omitempty"` // of a refusal
}

// Decision is what an account says to the other side's proposal.
type Decision uint8

// The decisions.
const (
	Wait   Decision = 0 // for a person: Service.Accept or Service.Refuse
	Accept Decision = 1
	Refuse Decision = 2
)

// Config is what the conversation needs.
type Config struct {
	Network  p2p.Network
	Protocol p2p.Protocol
	Books    *books.Books
	// Decide judges the other side's proposals by the books as they stand; it must not wait. Nil is [Careful].
	Decide func(r *books.Reader, self identity.AccountID, s voucher.Settlement) (Decision, error)
	// Revoked is an error if the account of a delegation let its device go: it changes nothing here any more. Nil: only the books judge.
	Revoked func(d identity.Delegation) error
	// After is told of each peer with which something was exchanged; it must not wait. Nil: nobody is.
	After func(peer identity.PeerID)
}

// ErrNotTaken says that the provider did not take a voucher: at its credit limit, say.
var ErrNotTaken = errors.New("a voucher was not taken")

// Careful accepts what takes off this account a debt that it has, and leaves to a person whether money has come in, and what more was paid
// than is owed: else a peer could have a payment signed that nobody made, of any amount. What the provider says of its own open invoice
// must be of the whole invoice: a part under its reference would end it, while all of it is being paid.
func Careful(r *books.Reader, self identity.AccountID, s voucher.Settlement) (Decision, error) {
	if s.Channel.Renter != self {
		return Wait, nil
	}
	a, err := r.Account(ledger.AsRenter, s.Channel.Unit, s.Channel.Provider)
	if err != nil {
		return Wait, err
	}
	b, ok, err := r.Bill(ledger.AsRenter, s.Channel.Unit, s.Channel.Provider)
	if err != nil || ok && b.Method == s.Method && b.Reference == s.Reference && b.Amount != s.Amount {
		return Wait, err
	}
	if owed, err := ledger.Signed(s.Amount); err == nil && owed <= a.Owed {
		return Accept, nil
	}
	return Wait, nil
}

// How many payments of one account are signed by themselves: a record has some KiB, and a debt can be paid by the micro-unit.
const (
	signBurst    = 32
	signEvery    = 15 * time.Minute // one more
	signAccounts = 1024             // whose rate is known
)

// Service holds the conversation. Safe for concurrent use.
type Service struct {
	c Config

	mu     sync.Mutex
	signed *lru.Cache[identity.AccountID, *rate.Limiter] // guarded by mu
}

// New makes a service; the caller serves its Handler.
func New(c Config) (*Service, error) {
	if c.Network == nil || c.Books == nil || c.Protocol == "" {
		return nil, errors.New("settle config: network, protocol and books are needed")
	}
	if c.Decide == nil {
		c.Decide = Careful
	}
	signed, err := lru.New[identity.AccountID, *rate.Limiter](signAccounts)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return &Service{c: c, signed: signed}, nil
}

// maySign takes one of the payments that an account may have signed by themselves.
func (s *Service) maySign(account identity.AccountID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.signed.Get(account)
	if !ok {
		l = rate.NewLimiter(rate.Every(signEvery), signBurst)
		s.signed.Add(account, l)
	}
	return l.Allow()
}

// ask sends one request to peer and takes the delegation out of its answer.
func (s *Service) ask(ctx context.Context, peer identity.PeerID, a Ask) (Answer, error) {
	a.Delegation = s.c.Books.Device().Delegation()
	var got Answer
	if err := p2p.Call(ctx, s.c.Network, peer, s.c.Protocol, a, &got, maxMessage); err != nil {
		return got, fmt.Errorf("settle with %s: %w", peer.Short(), err)
	}
	if err := answersFor(peer, a.Channel.Peer(s.c.Books.Self()), got.Delegation); err != nil {
		return got, fmt.Errorf("settle with %s: %w", peer.Short(), err)
	}
	if s.c.After != nil {
		s.c.After(peer)
	}
	return got, nil
}

// Exchange brings the channel's newest vouchers to its provider and their receipts to its renter, whichever side calls. A voucher that
// was not taken is [ErrNotTaken], after all others were. It is over all epochs of the channel.
func (s *Service) Exchange(ctx context.Context, peer identity.PeerID, c ledger.Channel) error {
	c = c.AllEpochs()
	if c.RoleOf(s.c.Books.Self()) == ledger.AsRenter {
		return s.give(ctx, peer, c)
	}
	return s.fetch(ctx, peer, c)
}

// give is the renter's half of Exchange.
func (s *Service) give(ctx context.Context, peer identity.PeerID, c ledger.Channel) error {
	var newest [][]byte
	err := s.c.Books.View(ctx, func(r *books.Reader) (err error) {
		newest, err = r.Newest(c)
		return err
	})
	if err != nil {
		return err
	}
	var refused error
	for len(newest) > 0 {
		n := min(len(newest), maxVouchers)
		got, err := s.ask(ctx, peer, Ask{Channel: c, Vouchers: newest[:n]})
		if err != nil {
			return err
		}
		if err := s.keepReceipts(ctx, got); err != nil {
			return err
		}
		if got.Why != "" {
			refused = fmt.Errorf("settle with %s: %w: %s", peer.Short(), ErrNotTaken, got.Why)
		}
		newest = newest[n:]
	}
	return refused
}

func (s *Service) keepReceipts(ctx context.Context, got Answer) error {
	if len(got.Receipts) == 0 {
		return nil
	}
	return s.c.Books.Update(ctx, func(t *books.Tx) error {
		if _, _, err := t.KeepDelegation(got.Delegation); err != nil {
			return err
		}
		for _, r := range got.Receipts {
			if _, err := t.RecordReceipt(r); err != nil {
				return err
			}
		}
		return nil
	})
}

// fetch is the provider's half of Exchange: it reads the renter's newest vouchers. The renter gets the receipts when it calls.
func (s *Service) fetch(ctx context.Context, peer identity.PeerID, c ledger.Channel) error {
	var refused error
	for skip := uint32(0); ; {
		got, err := s.ask(ctx, peer, Ask{Channel: c, Skip: skip})
		if err != nil {
			return err
		}
		if len(got.Vouchers) > 0 {
			err = s.c.Books.Update(ctx, func(t *books.Tx) error {
				if _, err := takeVouchers(t, c, got.Vouchers); err != nil {
					refused = fmt.Errorf("settle with %s: %w: %w", peer.Short(), ErrNotTaken, err)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if !got.More || len(got.Vouchers) == 0 {
			return refused
		}
		skip += uint32(len(got.Vouchers))
	}
}

// takeVouchers takes each voucher that can be taken, and gives their receipts and why the others were not.
func takeVouchers(t *books.Tx, c ledger.Channel, vouchers [][]byte) (receipts [][]byte, refused error) {
	for _, raw := range vouchers {
		v, err := voucher.Open(raw)
		if err == nil && !c.Covers(v.Channel) {
			err = voucher.ErrLane
		}
		var got books.Accepted
		if err == nil {
			got, err = t.AcceptVoucher(raw, wire.Hash{})
		}
		if err != nil {
			refused = errors.Join(refused, err)
			continue
		}
		if got.Receipt != nil {
			receipts = append(receipts, got.Receipt)
		}
	}
	return receipts, refused
}

// Settle records a payment that was made outside on a channel: it exchanges the newest vouchers, signs a proposal, and books the
// settlement if peer signs it at once. Otherwise the state is Proposed, and peer's signature comes later; calling again with the same
// payment and reference asks again. Nothing is signed for an account that was never dealt with: [books.ErrNoDealings]. If peer is [Away], the proposal is signed and kept for [Service.Send] all the same, and that error comes
// with its id. A zero peer is away.
func (s *Service) Settle(ctx context.Context, peer identity.PeerID, p books.Payment) (wire.Hash, books.SettlementState, error) {
	if err := s.c.Books.View(ctx, func(r *books.Reader) error { return r.Dealt(p.Channel) }); err != nil {
		return wire.Hash{}, 0, fmt.Errorf("settle: %w", err) // the other side would never take it
	}
	away := s.meet(ctx, peer, p.Channel)
	if away != nil && !Away(away) {
		return wire.Hash{}, 0, away
	}
	p.Held = away != nil
	var id wire.Hash
	err := s.c.Books.Update(ctx, func(t *books.Tx) (err error) {
		id, _, err = t.Propose(p)
		return err
	})
	if err != nil {
		return id, 0, err
	}
	if away != nil {
		return id, books.Proposed, away
	}
	state, err := s.Send(ctx, peer, id)
	return id, state, err
}

// meet is Exchange before a payment. A voucher that is refused for want of credit must not keep anybody from settling: that gives the credit.
func (s *Service) meet(ctx context.Context, peer identity.PeerID, c ledger.Channel) error {
	if peer.IsZero() {
		return fmt.Errorf("settle: %w: no device of account %s is known", p2p.ErrUnreachable, c.Peer(s.c.Books.Self()).Short())
	}
	if err := s.Exchange(ctx, peer, c); !errors.Is(err, ErrNotTaken) {
		return err
	}
	return nil
}

// Away says that err is of a peer that could not be asked now, which costs nothing but time.
func Away(err error) bool {
	var said *p2p.Error
	if errors.As(err, &said) {
		return said.Kind == p2p.KindBusy || said.Kind == p2p.KindUnavailable || said.Kind == p2p.KindTimeout
	}
	return errors.Is(err, p2p.ErrUnreachable) || errors.Is(err, p2p.ErrUnsupported) || errors.Is(err, context.DeadlineExceeded)
}

// Send brings a settlement that this side proposed or decided on to the other side, and gives its state after that. It may be repeated
// until the state is Signed or Refused.
func (s *Service) Send(ctx context.Context, peer identity.PeerID, id wire.Hash) (books.SettlementState, error) {
	var kept books.Settled
	err := s.c.Books.View(ctx, func(r *books.Reader) (err error) {
		kept, err = r.Settlement(id)
		return err
	})
	if err != nil {
		return 0, err
	}
	terms, err := voucher.OpenSettlement(kept.Proposal)
	if err != nil {
		return 0, err
	}
	a := Ask{Channel: terms.Channel}
	switch mine := terms.Account == s.c.Books.Self(); {
	case mine && kept.State == books.Proposed:
		a.Proposal = kept.Proposal
	case !mine && kept.State == books.Signed:
		a.Counter = kept.Counter
	case !mine && kept.State == books.Refused:
		a.Refused = &Refusal{ID: id, Why: kept.Why}
	default:
		return kept.State, nil
	}
	if kept.Held != 0 {
		if err := s.first(ctx, peer, id, terms.Channel); err != nil {
			return kept.State, err
		}
	}
	got, err := s.ask(ctx, peer, a)
	if err != nil || a.Proposal == nil {
		return kept.State, err
	}
	return s.recordAnswer(ctx, id, got)
}

// first does what comes before a proposal that was kept is sent.
func (s *Service) first(ctx context.Context, peer identity.PeerID, id wire.Hash, c ledger.Channel) error {
	if err := s.meet(ctx, peer, c); err != nil {
		return err
	}
	return s.c.Books.Update(ctx, func(t *books.Tx) error { return t.Sending(id) })
}

// recordAnswer books what the other side said to this side's proposal.
func (s *Service) recordAnswer(ctx context.Context, id wire.Hash, got Answer) (books.SettlementState, error) {
	switch {
	case len(got.Counter) > 0:
		err := s.c.Books.Update(ctx, func(t *books.Tx) error {
			if _, _, err := t.KeepDelegation(got.Delegation); err != nil {
				return err
			}
			signed, err := t.RecordCounter(got.Counter)
			if err == nil && signed != id {
				err = fmt.Errorf("settlement %s: %w", id.Short(), voucher.ErrTerms)
			}
			return err
		})
		if err != nil {
			return books.Proposed, err
		}
		return books.Signed, nil
	case got.State == books.Refused:
		err := s.c.Books.Update(ctx, func(t *books.Tx) error { return t.Refused(id, got.Why) })
		return books.Refused, err
	}
	return books.Proposed, nil
}

// Accept signs the other side's proposal and books it; [Service.Send] brings the signature over, now or when the peer is back.
func (s *Service) Accept(ctx context.Context, id wire.Hash) error {
	return s.c.Books.Update(ctx, func(t *books.Tx) error {
		_, err := t.Countersign(id)
		return err
	})
}

// Refuse says no to the other side's proposal, and [Service.Send] brings the word over; or drops one of this side that was never sent.
func (s *Service) Refuse(ctx context.Context, id wire.Hash, why string) error {
	return s.c.Books.Update(ctx, func(t *books.Tx) error { return t.Refuse(id, why) })
}
