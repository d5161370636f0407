package wire

import (
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
)

// LedgerConfig is what both daemons' config files say of the ledger.
type LedgerConfig struct {
	Netting bool   `toml:"netting" comment:"take part in \"ledger net\": circles of debts are found by telling those you owe, and those they owe, of debts on the way,\nand cleared with everyone's signature; your own sum never changes by it"`
	Backup  string `toml:"backup" comment:"folder for a backup of the ledger a day, best on another disk; empty: none"`
	Keep    int    `toml:"keep" comment:"how many daily backups to keep, 1 or more"`
	// DisputeDays is of disputes that this account opens.
	DisputeDays int `toml:"dispute_days" comment:"how long a dispute that you open stays open unless you say otherwise, 1 to 60 days; then what both signed stands"`
}

// SetNetting says whether the owner takes part in the clearing of circles, as after a reload of the config.
func (b *Base) SetNetting(on bool) { b.netting.Store(on) }

// openNet makes the conversation that finds circles of debts and clears them.
func (b *Base) openNet() (err error) {
	b.SetNetting(b.Ledger.Netting)
	protocol := p2p.ProtocolID(b.name, work.ProtoNet)
	b.Net, err = settle.NewNet(settle.NetConfig{
		Network: b.Dealing, Protocol: protocol, Books: b.Books, Consent: b.netting.Load, Siblings: b.siblings, Log: b.Log.With("part", "netting"),
	})
	if err != nil {
		return err
	}
	b.Dealing.Handle(protocol, settle.NetLimits(), b.Net.Handler())
	return nil
}

// siblings are the other devices of this account that its PC knows.
func (b *Base) siblings() (all []identity.PeerID) {
	known, err := identity.Devices(IdentityDir(b.State))
	if err != nil {
		b.Log.Warn("the account's other devices are not known", "err", err)
	}
	for _, k := range known {
		if !k.This && !k.Revoked() {
			all = append(all, k.Device)
		}
	}
	return all
}
