// Package rail runs the program by which an account's owner connects gpufair to a way of paying: it makes an invoice, checks whether a
// payment has come in, and pays one. It owns the contract of docs/settlement.md: what the program is told, what it may say, how long it
// may take and with which rights it runs. It refuses to know ledgers, peers and what a payment is.
package rail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"
)

// Version is of the contract. Fields may be added to a version; none is renamed or changes its meaning.
const Version = 1

// Action is what the program is asked to do.
type Action string

// The actions.
const (
	Invoice Action = "invoice" // make an invoice for the counterparty, or give the one that was made under this key
	Check   Action = "check"   // say whether the payment has come in
	Pay     Action = "pay"     // pay an invoice, unless that was done under this key
)

// Request is what the program reads from its standard input: one line of JSON.
type Request struct {
	Version   int        `json:"version"`
	Action    Action     `json:"action"`
	Key       string     `json:"key"`                 // hex, 64 letters: the same payment has the same key for ever, over crashes and restores
	Account   string     `json:"account"`             // mine
	Peer      string     `json:"peer"`                // the counterparty's account
	Unit      string     `json:"unit"`                // of account
	Amount    string     `json:"amount"`              // decimal
	Due       *time.Time `json:"due,omitempty"`       // of an invoice
	Methods   []string   `json:"methods,omitempty"`   // invoice: how the owner may be paid
	Method    string     `json:"method,omitempty"`    // check, pay
	Reference string     `json:"reference,omitempty"` // check, pay
	Pay       string     `json:"pay,omitempty"`       // pay: what the other side's program said about how to
	Claimed   bool       `json:"claimed,omitempty"`   // check: the payer has signed that it paid
}

// States that a program may answer.
const (
	Open    = "open"    // invoice: it stands; check: nothing has come in yet; pay: under way
	Paid    = "paid"    // check: the whole amount has come in; pay: it has gone out
	Expired = "expired" // check: nothing came, and nothing can come any more
	Refused = "refused" // pay: it was not paid, and will not be
)

// Answer is what the program writes to its standard output: one object of JSON. Other fields are left unread.
type Answer struct {
	State     string `json:"state"`
	Reference string `json:"reference"` // invoice
	Method    string `json:"method"`    // invoice; empty: the first of the request's
	Pay       string `json:"pay"`       // invoice: what the payer needs, such as a Lightning invoice or a bank account
	Amount    string `json:"amount"`    // check: that came in; empty: all of it
	Why       string `json:"why"`       // refused
}

// Limits of an answer, in bytes. Reference and method are those of a settlement.
const (
	MaxReference = 128
	MaxMethod    = 32
	MaxPay       = 4096
	maxWhy       = 200
	maxAmount    = 64
)

var (
	// ErrAnswer says that the program said something else than the contract lets it say.
	ErrAnswer = errors.New("the program's answer is not one of docs/settlement.md")
	// ErrLater says that the program could not say yet, and asks to be asked again.
	ErrLater = errors.New("the program asks for time")
)

// read reads the answer to a request.
func read(r Request, out []byte) (a Answer, err error) {
	d := json.NewDecoder(bytes.NewReader(out))
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("%w: %q: %w", ErrAnswer, start(out), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, fmt.Errorf("%w: more than one object", ErrAnswer)
	}
	if a.Method == "" && r.Action == Invoice && len(r.Methods) > 0 {
		a.Method = r.Methods[0]
	}
	if a.State == "" && r.Action == Invoice {
		a.State = Open
	}
	return a, a.check(r)
}

// check checks that a fits the request.
func (a Answer) check(r Request) error {
	for _, f := range []struct {
		name, text string
		most       int
	}{{"reference", a.Reference, MaxReference}, {"method", a.Method, MaxMethod}, {"pay", a.Pay, MaxPay}, {"why", a.Why, maxWhy}, {"amount", a.Amount, maxAmount}} {
		if !plain(f.text) || len(f.text) > f.most {
			return fmt.Errorf("%w: %q has over %d bytes, or some that are no text", ErrAnswer, f.name, f.most)
		}
	}
	states := map[Action][]string{Invoice: {Open}, Check: {Open, Paid, Expired}, Pay: {Open, Paid, Refused}}[r.Action]
	ok := false
	for _, s := range states {
		ok = ok || s == a.State
	}
	switch {
	case !ok:
		return fmt.Errorf("%w: the state of %q is %q, want one of %q", ErrAnswer, r.Action, a.State, states)
	case r.Action == Invoice && (a.Reference == "" || a.Method == ""):
		return fmt.Errorf("%w: an invoice without a reference or a method", ErrAnswer)
	}
	return nil
}

// plain reports whether s is text on one line.
func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}

// start is the beginning of what a program said, for people.
func start(out []byte) string {
	return string(bytes.ToValidUTF8(out[:min(len(out), 80)], []byte("?")))
}
