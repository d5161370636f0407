package auction

import (
	"time"

	"github.com/gpufair/gpufair/market/reason"
)

// Windows are half open: at its last instant a window is over, for the seller as for every peer. (A market elsewhere cleared and then took
// one more bid at the closing instant: gridlab-d#403.) Each side measures on its own monotonic clock from the first sight of the
// record that opens the window, so no two clocks are ever compared.

// CommitFor is how long after the Open bidders send commits.
func (o Open) CommitFor() time.Duration { return time.Duration(o.Commit) * time.Second }

// SealAfter is when the seller seals: the commit window and the grace for what is on its way.
func (o Open) SealAfter() time.Duration {
	return o.CommitFor() + time.Duration(o.Grace)*time.Second
}

// RevealFor is how long after the Seal openings are taken.
func (o Open) RevealFor() time.Duration { return time.Duration(o.Reveal) * time.Second }

// TakesCommit says whether the seller takes a commit so long after its Open, if it has not sealed yet; an error is the reason why not.
func (o Open) TakesCommit(sinceOpen time.Duration, sealed bool) error {
	if sealed {
		return reason.Errorf(reason.AuctionClosed, "it is sealed")
	}
	if over := o.SealAfter(); sinceOpen >= over {
		return reason.Errorf(reason.AuctionClosed, "%v after the open, it closed at %v", sinceOpen, over)
	}
	return nil
}

// TakesOpening says whether an opening so long after the Seal counts; an error is the reason why not.
func (o Open) TakesOpening(sinceSeal time.Duration) error {
	if sinceSeal >= o.RevealFor() {
		return reason.Errorf(reason.RevealOver, "%v after the seal, the window was %v", sinceSeal, o.RevealFor())
	}
	return nil
}

// EarlySeal reports whether a Seal first seen so long after the Open is attested against the seller (see [Witness]).
func (o Open) EarlySeal(sinceOpen time.Duration) bool { return sinceOpen < o.SealAfter()-SealEarly }
