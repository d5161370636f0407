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
	lately := slices.DeleteFunc(a.unanswered[account], func(at time.Time) bool { return now.Sub(at) > unansweredFor })
	if a.unanswered[account] = lately; len(lately) == 0 {
		delete(a.unanswered, account)
	}
	if n += len(lately); n >= most {
		return reason.Errorf(reason.Unanswered, "%d in %v, at most %d", n, unansweredFor, most)
	}
	return nil
}

// unansweredBy notes that a lease was withdrawn because its account did not answer.
func (a *Agent) unansweredBy(account identity.AccountID, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unanswered[account] = append(a.unanswered[account], now)
}
