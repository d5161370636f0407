package delegation

import (
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/gpufair/gpufair/p2p/identity"
)

// lineage is what is known of the changes of an account's key.
type lineage struct {
	chain  identity.Chain
	forked bool // one key named two to follow it
}

// lineages are those of accounts whose key was ever changed. The news of a change is a revocation: where the [Keeper] keeps it, the lineage
// comes back with it at each start, and nothing here forgets it. What only a delegation told, and what strangers say, makes room for newer ones.
type lineages struct {
	kept  map[identity.AccountID]lineage // of accounts of which a revocation is kept
	heard *lru.Cache[identity.AccountID, lineage]
}

func newLineages() (lineages, error) {
	heard, err := lru.New[identity.AccountID, lineage](heardRevocations)
	if err != nil {
		return lineages{}, fmt.Errorf("changes of accounts' keys: %w", err)
	}
	return lineages{kept: map[identity.AccountID]lineage{}, heard: heard}, nil
}

func (l lineages) of(account identity.AccountID) lineage {
	if v, ok := l.kept[account]; ok {
		return v
	}
	v, _ := l.heard.Get(account)
	return v
}

// follow takes a chain that was checked; kept says that it is of an account that was dealt with.
func (l lineages) follow(account identity.AccountID, chain identity.Chain, kept bool) {
	if len(chain) == 0 {
		return
	}
	v := l.of(account)
	switch chain.Against(v.chain) {
	case identity.NewerKey:
		v.chain = chain
	case identity.Forked:
		v.forked = true
	}
	if _, ok := l.kept[account]; ok || kept {
		l.kept[account] = v
		l.heard.Remove(account)
		return
	}
	l.heard.Add(account, v)
}

// follow learns the changes of an account's key from a delegation that was checked.
func (s *revocations) follow(d identity.Delegation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys.follow(d.Account, d.Chain, false)
}

// changed reports whether an account's key is known to have been changed.
func (s *revocations) changed(account identity.AccountID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.keys.of(account)
	return len(v.chain) > 0 || v.forked
}

// replaced says why nothing new is taken under a delegation whose signer is not the account's newest key.
func (s *revocations) replaced(d identity.Delegation) error {
	s.mu.Lock()
	v := s.keys.of(d.Account)
	s.mu.Unlock()
	switch {
	case v.forked || d.Chain.Against(v.chain) == identity.Forked:
		return fmt.Errorf("%w: account %s", identity.ErrTwoKeys, d.Account.Short())
	case d.Chain.Against(v.chain) == identity.OlderKey:
		return fmt.Errorf("%w: device %s of account %s", identity.ErrReplaced, d.Device.Short(), d.Account.Short())
	}
	return nil
}
