package renter

import (
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p/identity"
)

// linkAgain is what to do when the account does not let this device buy.
const linkAgain = "on the PC that has the account's key, run `identity link` with --powers trade,pay and the request that\n" +
	"`gpufair identity link` prints here"

// mayBuy says whether the account lets this device buy: else every provider would refuse it.
func (a *Agent) mayBuy() error {
	const needs = identity.PowerTrade | identity.PowerPay
	d, err := identity.OpenDelegation(a.Device.Delegation())
	if err != nil {
		return err
	}
	if err := a.Delegations.Self(); err != nil {
		return &refusal{why: err, next: linkAgain}
	}
	if d.Powers&needs != needs {
		return &refusal{
			why:  fmt.Errorf("%w: the account lets this device %q, buying takes %q", identity.ErrPower, d.Powers, needs),
			next: linkAgain,
		}
	}
	return nil
}

// notRevoked leaves out the offers of devices that their account has let go.
func (a *Agent) notRevoked(offers []book.Found) ([]book.Found, error) {
	var why error
	offers = slices.DeleteFunc(offers, func(f book.Found) bool {
		err := a.Delegations.RevokedRecord(f.Entry.Header, f.Entry.DelegationRaw)
		if err != nil {
			why = err
		}
		return err != nil
	})
	if len(offers) == 0 {
		return nil, &refusal{why: fmt.Errorf("the offer is by a device that may not make it: %w", why), next: "gpufair search shows other offers"}
	}
	return offers, nil
}
