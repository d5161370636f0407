package renter

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/renter/control/api"
)

// TestNoOffer wants a reason and a next step on every way to no offer, and the hint at kind=cpu wherever it may help.
func TestNoOffer(t *testing.T) {
	const kind = "only GPUs are looked for unless -q says kind=cpu"
	for name, c := range map[string]struct {
		query        string
		known, peers int
		why          string
		hint         bool
	}{
		"no query":       {"", 1, 1, "no live offer matches: asked for a GPU with 1 free device; known: 1 offer", true},
		"query":          {"price<1", 2, 1, `no live offer matches: asked for "price<1" with 1 free device; known: 2 offers`, true},
		"kind given":     {"kind=cpu", 2, 1, `asked for "kind=cpu" with 1 free device; known: 2 offers`, false},
		"not joined":     {"", 0, 0, "no offers are known yet: join a peer", true},
		"owner measures": {"", 0, 1, "1 peer connected, but nothing is offered now", true},
		"owners pause":   {"kind=cpu", 0, 2, "2 peers connected, but nothing is offered now", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := noOffer(api.RunRequest{Query: c.query}, c.known, c.peers, 0)
			if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), c.why) || strings.Contains(err.Error(), ErrRequest.Error()) {
				t.Errorf("got %v, want %s", err, c.why)
			}
			if next := Next(err); next == "" || strings.Contains(next, kind) != c.hint {
				t.Errorf("next: %q", next)
			}
		})
	}
}

// TestSignalToNobody wants words, not the network's, for a signal that a provider did not hear.
func TestSignalToNobody(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		id := r.order(plenty)
		r.runs(id)
		r.owner.node.Close()
		err := r.agent.Signal(t.Context(), id, api.SignalRequest{Signal: "SIGINT"})
		if !errors.Is(err, ErrSilent) || strings.Contains(err.Error(), "call /") || strings.Contains(err.Error(), "connection") {
			t.Errorf("got %v", err)
		}
		r.owner.join()
		r.net.Mesh()
		r.owner.ends()
		r.ends(id, time.Minute)
	})
}

// TestTerms: the least term is a matter of credit, not of price.
func TestTerms(t *testing.T) {
	text := strings.Join(termsOf(book.Found{Lot: market.Lot{MinTerm: 60, MaxTerm: 120}}), "\n")
	for _, want := range []string{"however short that is", "a lease is for 60 s to 120 s: the rent of the least is held on credit, not charged"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestDiskFull: what a full disk means for results, whoever finds it full.
func TestDiskFull(t *testing.T) {
	for _, e := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err := noRoom(market.LeaseID{1}, "/home/me/out", &os.PathError{Op: "write", Path: "/home/me/.out/x", Err: e})
		if !errors.Is(err, ErrDiskFull) || !strings.HasPrefix(err.Error(), "no space is left in /home/me for the results of job 01") {
			t.Errorf("got %v", err)
		}
		if next := Next(err); !strings.Contains(next, "--output DIR") {
			t.Errorf("next: %q", next)
		}
	}
	if other := errors.New("other"); noRoom(market.LeaseID{1}, "/x", other) != other {
		t.Error("another error is taken for a full disk")
	}
}
