package provider

import (
	"slices"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
)

// DefaultUnanswered is how many leases of one account may go without its answer in unansweredFor: enough for a renter whose line breaks
// while it buys, and too few to keep an owner's devices from others for 30 s again and again.
const DefaultUnanswered = 4

// unansweredFor is how long a lease that nobody answered to is remembered.
const unansweredFor = 10 * time.Minute

// unanswered is a lease that was withdrawn because its account did not answer to it.
type unanswered struct {
	account identity.AccountID
	at      time.Time
}

// mayWait refuses an account that has too many leases which it did not answer to: those that wait now, and those that were withdrawn
// lately. What a restart forgets of the latter it forgets in nobody's favour but for ten minutes. a.mu is held.
func (a *Agent) mayWait(account identity.AccountID, now time.Time) error {
	most := a.conf.Unanswered
	if most == 0 {
		most = DefaultUnanswered
	}
	n := 0
	for _, k := range a.keepers {
		if rec := k.look().rec; rec.Renter == account && rec.State == work.Agreed {
			n++
		}
	}
	a.forgetUnanswered(now)
	for _, u := range a.unanswered {
		if u.account == account {
			n++
		}
	}
	if n >= most {
		return reason.Errorf(reason.Unanswered, "%d in %v, at most %d", n, unansweredFor, most)
	}
	return nil
}

// unansweredBy notes that a lease was withdrawn because its account did not answer.
func (a *Agent) unansweredBy(account identity.AccountID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetUnanswered(now) // accounts cost nothing: most that did not answer never come back
	a.unanswered = append(a.unanswered, unanswered{account, now})
}

// forgetUnanswered drops what was long ago. a.mu is held.
func (a *Agent) forgetUnanswered(now time.Time) {
	a.unanswered = slices.DeleteFunc(a.unanswered, func(u unanswered) bool { return now.Sub(u.at) > unansweredFor })
}
