// Package proof is one file that shows a third person what a lease came to: the signed records of a lane, the entries that one side
// booked for it, and the proofs that they stand in that side's signed log; and other files that show that two accounts signed for a
// payment, or that a device signed two histories of its log. It owns the files' formats and their checks, which need neither daemon nor store. It refuses to know where records come from and what a lease is: the market's records are named attachments, of which
// it checks only signatures and that they are about the lane.
package proof

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/netting"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of a file.
const (
	MaxFile        = 8 << 20 // bytes: 1,024 entries have about 1 MiB, 64 settlements of both sides at most 3 MiB
	MaxEntries     = 1024    // the newest of the lane; the vouchers are cumulative, so older ones are not needed to show an amount
	MaxSettlements = 64      // the newest
	MaxClearings   = 16      // the newest
	MaxAttachments = 16      // offer, accept, lease, ready, release, end
	MaxDelegations = 256     // of every device that signed
	maxVouchers    = 8       // opening, acknowledged, newest, and two with one sequence
	maxExtensions  = 256     // a checkpoint in every record
	maxName        = 64      // bytes of an attachment's name
)

// version is of the file format.
const version = 1

// File is what a proof file holds. Nothing in it is believed for its own sake: every figure that a check gives follows from signed bytes.
type File struct {
	Version     uint16             `cbor:"1,keyasint"`
	Account     identity.AccountID `cbor:"2,keyasint"` // whose ledger made the file
	Channel     ledger.Channel     `cbor:"3,keyasint"`
	Lane        ledger.Lane        `cbor:"4,keyasint"`
	Delegations [][]byte           `cbor:"5,keyasint"`            // of the devices that signed
	Vouchers    [][]byte           `cbor:"6,keyasint"`            // in the order of their sequence: opening, newest with a receipt, newest; fraud beside its twin
	Receipt     []byte             `cbor:"7,keyasint,omitempty"`  // for the newest voucher that has one
	Segments    []meter.Segment    `cbor:"8,keyasint,omitempty"`  // from which the newest voucher was computed
	Settlements []Settlement       `cbor:"9,keyasint,omitempty"`  // that list the lane
	Checkpoint  []byte             `cbor:"10,keyasint"`           // head of Account's log, a signed note
	Entries     []Entry            `cbor:"11,keyasint,omitempty"` // of the lane and its settlements, in the log's order
	Extensions  []Extension        `cbor:"12,keyasint,omitempty"` // from the checkpoints in the records to Checkpoint
	Older       Older              `cbor:"13,keyasint"`           // what was left out
	Attachments []Attachment       `cbor:"14,keyasint,omitempty"`
	Allowance   []byte             `cbor:"16,keyasint,omitempty"` // newest
	Evidence    []byte             `cbor:"17,keyasint,omitempty"` // of the interval of Receipt
	Cosigned    *Cosigned          `cbor:"15,keyasint,omitempty"` // newest head of Account's log that the other side cosigned
	Clearings   []Clearing         `cbor:"18,keyasint,omitempty"` // of circles that cleared a part of the lane, as Account counts it
	OlderClear  uint64             `cbor:"19,keyasint,omitempty"` // how many of those were left out
}

// Clearing is a circle of debts with the words of all its members. Part is what Account counts it for the lane, cumulative with what counted
// before: that is its own booking, and nobody else signed it.
type Clearing struct {
	Terms netting.Terms  `cbor:"1,keyasint"`
	Words []netting.Word `cbor:"2,keyasint"`
	Part  money.Micro    `cbor:"3,keyasint"`
}

// Cosigned is a head of the log with the cosignature of a device of the channel's other side.
type Cosigned struct {
	By   identity.PeerID `cbor:"1,keyasint"`
	Note []byte          `cbor:"2,keyasint"`
}

// Settlement is a settlement with the signatures that it has.
type Settlement struct {
	Proposal []byte `cbor:"1,keyasint"`
	Counter  []byte `cbor:"2,keyasint,omitempty"`
}

// Entry is an entry of the log with its inclusion proof.
type Entry struct {
	Index uint64      `cbor:"1,keyasint"`
	Leaf  []byte      `cbor:"2,keyasint"` // salt and exact bytes
	Proof []wire.Hash `cbor:"3,keyasint"`
}

// Extension is the proof that the log of Checkpoint begins with its first Size entries as they were.
type Extension struct {
	Size  uint64      `cbor:"1,keyasint"`
	Proof []wire.Hash `cbor:"2,keyasint"`
}

// Older counts what was left out for the limits' sake.
type Older struct {
	Entries     uint64 `cbor:"1,keyasint"`
	Settlements uint64 `cbor:"2,keyasint"`
}

// Attachment is a signed record of another wing. Its name is the record's domain.
type Attachment struct {
	Name string `cbor:"1,keyasint"`
	Data []byte `cbor:"2,keyasint"`
}

// ErrFile says that bytes are not a proof file, or a damaged one.
var ErrFile = errors.New("not a whole proof file")

// A format's magic begins its files, with the version's number; its domain is of the sum over the body, which tells a damaged file from one
// that somebody changed.
type format struct{ magic, domain string }

var (
	ofLease   = format{"gpufair-proof/1 ", "gpufair/proof/1"}
	ofPayment = format{"gpufair-payment/1 ", "gpufair/payment-proof/1"}
)

// Encode gives the file's bytes: a line of text with the format's name and the sum over the rest, then deterministic CBOR.
func (f File) Encode() ([]byte, error) {
	f.Version = version
	out, err := ofLease.join(f)
	if err != nil {
		return nil, fmt.Errorf("proof of lane %s: %w", f.Lane.Short(), err)
	}
	return out, nil
}

// join gives the bytes of a file of a format.
func (f format) join(v any) ([]byte, error) {
	body, err := wire.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := append([]byte(f.magic+wire.Sum(f.domain, body).String()+"\n"), body...)
	if len(out) > MaxFile {
		return nil, fmt.Errorf("%d bytes: %w (limit %d)", len(out), wire.ErrTooLarge, MaxFile)
	}
	return out, nil
}

// Decode reads what [File.Encode] gave, and nothing else. It checks the form only: see [Check]. Errors wrap ErrFile.
func Decode(raw []byte) (File, error) {
	body, err := ofLease.split(raw)
	if err != nil {
		return File{}, err
	}
	return decode(body)
}

// errSum says that a file's bytes are not those that it was made of.
var errSum = fmt.Errorf("compare the sum: %w: bytes were changed or are missing; ask for the file again", ErrFile)

// split takes the first line off. With errSum the body is given, too.
func (f format) split(raw []byte) (body []byte, err error) {
	if len(raw) > MaxFile {
		return nil, fmt.Errorf("read %d bytes: %w: the limit is %d", len(raw), ErrFile, MaxFile)
	}
	head, body, whole := bytes.Cut(raw, []byte("\n"))
	sum, ours := strings.CutPrefix(string(head), f.magic)
	switch {
	case !whole || !ours:
		return nil, fmt.Errorf("read the first line: %w: it does not begin with %q; another release may have made it", ErrFile, f.magic)
	case sum != wire.Sum(f.domain, body).String():
		return body, errSum
	}
	return body, nil
}

func decode(body []byte) (File, error) {
	var f File
	if err := wire.UnmarshalStrict(body, &f); err != nil {
		return File{}, fmt.Errorf("%w: %w", ErrFile, err)
	}
	again, err := wire.Marshal(f)
	if err != nil || !bytes.Equal(again, body) {
		return File{}, fmt.Errorf("%w: it is not in its one form", ErrFile)
	}
	return f, f.validate()
}

// validate checks version and counts.
func (f File) validate() error {
	if f.Version != version {
		return fmt.Errorf("%w: version %d; another release made it", ErrFile, f.Version)
	}
	for what, c := range map[string][2]int{
		"delegations": {len(f.Delegations), MaxDelegations}, "vouchers": {len(f.Vouchers), maxVouchers}, "entries": {len(f.Entries), MaxEntries + MaxSettlements + MaxClearings},
		"settlements": {len(f.Settlements), MaxSettlements}, "extensions": {len(f.Extensions), maxExtensions},
		"attachments": {len(f.Attachments), MaxAttachments}, "clearings": {len(f.Clearings), MaxClearings}, "segments": {len(f.Segments), meter.MaxSegments},
	} {
		if c[0] > c[1] {
			return fmt.Errorf("%w: %d %s, want at most %d", ErrFile, c[0], what, c[1])
		}
	}
	if len(f.Evidence) > maxEvidence {
		return fmt.Errorf("%w: evidence of %d bytes", ErrFile, len(f.Evidence))
	}
	for _, a := range f.Attachments {
		if a.Name == "" || len(a.Name) > maxName || len(a.Data) > identity.MaxEnvelope {
			return fmt.Errorf("%w: attachment %q of %d bytes", ErrFile, a.Name, len(a.Data))
		}
	}
	return nil
}

// Hashes makes the hashes of a proof of [history] ones of a file.
func Hashes(from []history.Hash) []wire.Hash {
	out := make([]wire.Hash, len(from))
	for i, h := range from {
		out[i] = wire.Hash(h)
	}
	return out
}

func hashes(from []wire.Hash) []history.Hash {
	out := make([]history.Hash, len(from))
	for i, h := range from {
		out[i] = history.Hash(h)
	}
	return out
}

// Attach gives those of the attachments that are there.
func Attach(all []Attachment) []Attachment {
	return slices.DeleteFunc(all, func(a Attachment) bool { return len(a.Data) == 0 })
}

// signed is what is read of an attachment first: header and delegation as in every record.
type signed struct {
	identity.Header
	Delegation wire.Hash `cbor:"4,keyasint"`
}

// about is what an attachment may say besides under key 5: what it is about.
type about struct {
	identity.Header
	About wire.Hash `cbor:"5,keyasint"`
}

func (a Attachment) open() (signed, error) {
	return identity.OpenAdvert[signed](identity.Domain(a.Name), 1, a.Data)
}

// about gives the hash under key 5; zero if something else is there, as in an offer.
func (a Attachment) about() wire.Hash {
	r, err := identity.OpenAdvert[about](identity.Domain(a.Name), 1, a.Data)
	if err != nil {
		return wire.Hash{}
	}
	return r.About
}

// Delegation gives the delegation that an attachment names, after a check of its signature.
func (a Attachment) Delegation() (wire.Hash, error) {
	r, err := a.open()
	return r.Delegation, err
}
