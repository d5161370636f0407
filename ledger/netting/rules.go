package netting

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpufair/gpufair/p2p/identity"
)

// State is where a clearing stands with one member. States are never renumbered.
type State uint8

// The states. A member in Prepared or Agreed has set the amount aside on its legs.
const (
	Prepared State = 1 // this device proposed it, signs last and has not signed
	Agreed   State = 2 // signed, and bound until all have signed or one has refused
	Cleared  State = 3 // all have signed: it counts here
	Refused  State = 4 // this device has said that it never will agree
	Aborted  State = 5 // another member has refused: it can't come to count
	Released State = 6 // the owner gave up waiting: the amount is not set aside any more, but all signatures still make it count
)

var stateNames = map[State]string{
	Prepared: "prepared", Agreed: "agreed", Cleared: "cleared", Refused: "refused", Aborted: "aborted", Released: "released",
}

// String is the state's name.
func (s State) String() string { return stateNames[s] }

// Reserves reports whether the amount is set aside: what is owed stays owed, but is cleared or settled by nothing else of ours.
func (s State) Reserves() bool { return s == Prepared || s == Agreed }

var (
	// ErrOver says that a clearing is over here: a member refused it, or its owner released it.
	ErrOver = errors.New("the clearing is over here")
	// ErrBound says that a device has agreed, and can't take that back on its own.
	ErrBound = errors.New("this device has agreed to the clearing: it counts when all have, and ends when one refuses")
	// ErrLast says that something is for the device to do that signs last, or for the others.
	ErrLast = errors.New("another member signs last")
	// ErrIncomplete says that members have not signed yet.
	ErrIncomplete = errors.New("not all members have signed")
)

// Clearing is what one member knows of a clearing. The rules change it; whoever keeps it does so durably before anybody is told, books it
// when it becomes Cleared, and sets its amount aside while its state says so.
//
// Why this is all or nothing: the set of all agreements is final for whoever sees it, whenever that is, and in whatever state. It can't come
// to be once a member has signed a refusal, since an honest member signs only one of both. So an amount that was set aside is free again
// only by a refusal of a member that has not agreed. What a lying member does costs nobody: whoever released on its refusal and is
// brought the whole set after all books it, and has its two signatures as proof.
type Clearing struct {
	Terms   Terms  `cbor:"1,keyasint"`
	State   State  `cbor:"2,keyasint"`
	Said    []Said `cbor:"3,keyasint"` // at most one agreement and one refusal a device, in the order in which they came
	Changed int64  `cbor:"4,keyasint"` // Unix milliseconds; kept by whoever stores it

	Has []identity.PeerID `cbor:"5,keyasint,omitempty"` // other members that are known to have all signatures
}

// Propose begins a clearing on the device that signs last.
func Propose(self identity.PeerID, t Terms) (Clearing, error) {
	if err := t.Validate(); err != nil {
		return Clearing{}, err
	}
	if t.Last != self {
		return Clearing{}, ErrLast
	}
	return Clearing{Terms: t, State: Prepared}, nil
}

// Agree is the member's own agreement; c is zero but for its terms where nothing is known of it. A repeat changes nothing.
func (c Clearing) Agree(mine Said) (Clearing, error) {
	switch {
	case c.Terms.Last == mine.Device:
		return c, ErrLast
	case c.State == Agreed || c.State == Cleared:
		return c, nil
	case c.State != 0 || c.dead():
		return c, fmt.Errorf("%w: %s", ErrOver, c.State)
	}
	c.State = Agreed
	return c.Hear(mine), nil
}

// Refuse is the member's own refusal: of a clearing that it has not agreed to. A repeat changes nothing.
func (c Clearing) Refuse(mine Said) (Clearing, error) {
	switch c.State {
	case 0, Prepared:
		c.State = Refused
		return c.Hear(mine), nil
	case Refused, Aborted:
		return c, nil
	}
	return c, ErrBound
}

// Complete is the last member's own agreement, when all others have agreed: it makes the clearing count. A repeat changes nothing.
func (c Clearing) Complete(mine Said) (Clearing, error) {
	switch {
	case c.State == Cleared:
		return c, nil
	case c.State != Prepared:
		return c, fmt.Errorf("%w: %s", ErrOver, c.State)
	case c.Terms.Last != mine.Device:
		return c, ErrLast
	case len(c.Missing()) != 1:
		return c, fmt.Errorf("%w: %d of %d are missing", ErrIncomplete, len(c.Missing()), len(c.Terms.Devices()))
	}
	return c.Hear(mine), nil
}

// Release gives up waiting, for the owner to say: nothing is lost by it, but if all signatures turn up after all, the debts go down by
// what may have been paid otherwise, and the surplus is prepaid.
func (c Clearing) Release() (Clearing, error) {
	if c.State != Agreed {
		return c, fmt.Errorf("%w: %s", ErrOver, c.State)
	}
	c.State = Released
	return c, nil
}

// Hear takes words of members, checked by [Open]. All agreements together make the clearing count in whatever state it was. A refusal
// ends it only if its device has not agreed: else it is a lie, kept as its proof, and the clearing may count elsewhere.
func (c Clearing) Hear(said ...Said) Clearing {
	c.Said = slices.Clone(c.Said)
	for _, s := range said {
		if !c.says(s.Device, s.Refuses) {
			c.Said = append(c.Said, s)
		}
	}
	switch {
	case len(c.Missing()) == 0:
		c.State = Cleared
	case c.State.Reserves() && c.dead():
		c.State = Aborted
	}
	return c
}

// dead reports whether a member has refused that has not agreed.
func (c Clearing) dead() bool {
	return slices.ContainsFunc(c.Said, func(s Said) bool { return s.Refuses && !c.says(s.Device, false) })
}

func (c Clearing) says(device identity.PeerID, refuses bool) bool {
	return slices.ContainsFunc(c.Said, func(s Said) bool { return s.Device == device && s.Refuses == refuses })
}

// Missing are the members whose agreement is not here.
func (c Clearing) Missing() []identity.PeerID {
	return slices.DeleteFunc(c.Terms.Devices(), func(d identity.PeerID) bool { return c.says(d, false) })
}

// Untold are the other members that may not have all signatures yet. A member in Cleared brings them until each has them: one that was lied
// to may have given up asking.
func (c Clearing) Untold(self identity.PeerID) []identity.PeerID {
	if c.State != Cleared {
		return nil
	}
	return slices.DeleteFunc(c.Terms.Devices(), func(d identity.PeerID) bool { return d == self || slices.Contains(c.Has, d) })
}

// Told notes that a member has all signatures.
func (c Clearing) Told(device identity.PeerID) Clearing {
	if slices.Contains(c.Terms.Devices(), device) && !slices.Contains(c.Has, device) {
		c.Has = append(slices.Clone(c.Has), device)
	}
	return c
}

// Words is all that is known, for other members.
func (c Clearing) Words() []Word {
	out := make([]Word, 0, len(c.Said))
	for _, s := range c.Said {
		out = append(out, s.Word)
	}
	return out
}

// Liars are the devices that signed both, an agreement and a refusal.
func (c Clearing) Liars() []identity.PeerID {
	return slices.DeleteFunc(c.Terms.Devices(), func(d identity.PeerID) bool { return !c.says(d, false) || !c.says(d, true) })
}
