package renter

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/renter/control/api"
)

// ErrRequest says that a request makes no sense as it is: nothing was held or paid. Errors that are one have their own words: this is for
// errors.Is.
var ErrRequest = errors.New("not possible as asked")

// ErrSilent says that a job's provider does not answer now.
var ErrSilent = errors.New("the provider does not answer")

// ErrDiskFull says that this machine's disk, or its user's quota, is full.
var ErrDiskFull = errors.New("the disk is full")

// refusal is an [ErrRequest] in its own words.
type refusal struct {
	why  error
	next string // what to do, or empty
}

func (r *refusal) Error() string { return r.why.Error() }

func (r *refusal) Unwrap() []error { return []error{ErrRequest, r.why} }

func refuse(format string, args ...any) error { return &refusal{why: fmt.Errorf(format, args...)} }

// Next is what the person can do about an error of this package; empty if that is not known.
func Next(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.next
	}
	return ""
}

// noOffer says that nothing can be bought for a request, with so many offers known and peers connected.
func noOffer(req api.RunRequest, known, peers, own int) error {
	r := &refusal{next: "gpufair why, with the same query, says what refused each; fewer conditions may find something"}
	if known == 0 {
		r.next = "gpufair peers lists who is connected, gpufair search shows what there is"
	}
	wanted := fmt.Sprintf("%q", req.Query)
	if req.Query == "" {
		wanted = "a GPU"
	}
	if !strings.Contains(req.Query, "kind") {
		r.next += "; only GPUs are looked for unless -q says kind=cpu"
	}
	if known == 0 {
		r.why = fmt.Errorf("no live offer matches: %s", nothingKnown(peers))
		return r
	}
	r.why = fmt.Errorf("no live offer matches: asked for %s with %s; known: %s", wanted, count(max(req.Devices, 1), "free device"), count(known, "offer"))
	if own > 0 {
		r.why = fmt.Errorf("%w; %s of your own account left out: it can't lease from itself", r.why, count(own, "lot"))
	}
	return r
}

// nothingKnown says why no offer is known, with so many peers connected.
func nothingKnown(peers int) string {
	if peers > 0 {
		return count(peers, "peer") + " connected, but nothing is offered now: owners may have paused, or still measure"
	}
	return "no offers are known yet: join a peer with an invite (gpufair join), or wait a few seconds after the start"
}

// count is a number of things for people: "1 offer", "2 offers".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
