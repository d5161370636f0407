// Package announce publishes, finds and checks offers: gossip on the shard's topic, a snapshot from each peer that connects, and
// probes of single offers. It owns the messages, the order of checks and the rate limits of adverts, and keeps what it finds in a
// book. It refuses to know prices, credit and devices: the provider hands it a finished offer.
package announce

import (
	"fmt"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of the conversations (spec: p2p, section 5).
const (
	MaxMessage = 4 << 10   // bytes of a gossip message: an offer, its delegation, and room
	pageSize   = 64        // offers of one answer
	maxWant    = 64        // offers asked for by name
	maxHave    = 8192      // lines of one digest, under 240 kB
	maxAsk     = 256 << 10 // bytes of a question
	maxAnswer  = 256 << 10 // bytes of a page: 64 offers with delegation and heartbeat
	maxPages   = 2048      // of one exchange: more than the largest default book
	maxProbe   = 4 << 10   // bytes of either side of a probe
)

// Kind is what a gossip message holds.
type Kind uint8

// The kinds. They are never renumbered.
const (
	KindOffer     Kind = 1
	KindHeartbeat Kind = 2
	KindTombstone Kind = 3
)

// Message is what travels on the offers topic.
type Message struct {
	Kind       Kind   `cbor:"1,keyasint"`
	Envelope   []byte `cbor:"2,keyasint"`
	Delegation []byte `cbor:"3,keyasint,omitempty"` // of an offer's device
}

// Encode gives the message's bytes.
func (m Message) Encode() ([]byte, error) {
	b, err := wire.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxMessage {
		return nil, fmt.Errorf("encode advert of %d bytes: %w (limit %d)", len(b), wire.ErrTooLarge, MaxMessage)
	}
	return b, nil
}

// DecodeMessage reads a message's bytes: sizes and shape only. Keys of a later version are ignored, as in every advert.
func DecodeMessage(b []byte) (Message, error) {
	var m Message
	if len(b) > MaxMessage {
		return m, fmt.Errorf("decode advert of %d bytes: %w (limit %d)", len(b), wire.ErrTooLarge, MaxMessage)
	}
	if err := wire.Unmarshal(b, &m); err != nil {
		return Message{}, err
	}
	limit := map[Kind]int{KindOffer: market.MaxOffer, KindHeartbeat: market.MaxHeartbeat, KindTombstone: market.MaxTombstone}[m.Kind]
	switch {
	case limit == 0:
		return Message{}, fmt.Errorf("decode advert of kind %d: %w", m.Kind, wire.ErrFormat)
	case len(m.Envelope) == 0 || len(m.Envelope) > limit:
		return Message{}, fmt.Errorf("decode advert: envelope of %d bytes: %w (limit %d)", len(m.Envelope), wire.ErrTooLarge, limit)
	case len(m.Delegation) > market.MaxDelegation || (m.Kind != KindOffer && len(m.Delegation) > 0):
		return Message{}, fmt.Errorf("decode advert: delegation of %d bytes: %w", len(m.Delegation), wire.ErrFormat)
	}
	return m, nil
}

// OffersAsk is the question of work.ProtoOffers: offers by name, or those that the asker lacks.
type OffersAsk struct {
	Now   int64       `cbor:"1,keyasint"`           // the asker's clock, Unix milliseconds: only to tell people of a wrong clock
	Want  [][16]byte  `cbor:"2,keyasint,omitempty"` // starts of offer hashes; the rest of the question is then ignored
	Have  []book.Have `cbor:"3,keyasint,omitempty"` // what the asker has, of devices after After and up to Until
	After [16]byte    `cbor:"4,keyasint"`
	Until [16]byte    `cbor:"5,keyasint"` // zero: no end
}

// OffersAnswer is a page of live offers.
type OffersAnswer struct {
	Now   int64    `cbor:"1,keyasint"` // the answerer's clock, Unix milliseconds
	Items []Item   `cbor:"2,keyasint,omitempty"`
	Next  [16]byte `cbor:"3,keyasint"` // After of the next question, if More
	More  bool     `cbor:"4,keyasint"`
}

// Item is a live offer with its delegation and, as the proof of life, its newest heartbeat.
type Item struct {
	Offer      []byte `cbor:"1,keyasint"`
	Delegation []byte `cbor:"2,keyasint"`
	Heartbeat  []byte `cbor:"3,keyasint,omitempty"`
}

// ProbeAsk is the question of work.ProtoProbe: does this offer of yours still stand?
type ProbeAsk struct {
	Offer [16]byte `cbor:"1,keyasint"` // start of its hash
}

// ProbeAnswer holds a fresh heartbeat of the answerer's offer, and that offer if it is another one than was asked for. Both are
// empty if it offers nothing now.
type ProbeAnswer struct {
	Heartbeat  []byte `cbor:"1,keyasint,omitempty"`
	Offer      []byte `cbor:"2,keyasint,omitempty"`
	Delegation []byte `cbor:"3,keyasint,omitempty"`
}

// Interval is the time between heartbeats in a shard of n live offers: at most about 4 messages a second reach each member.
func Interval(n int) time.Duration {
	return min(max(15*time.Second, time.Duration(n)*time.Second/4), market.MaxBeatPeriod*time.Second)
}
