package wire

import (
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
)

// openWitness makes the conversation in which peers check that each other's ledgers only grew.
func (b *Base) openWitness() (err error) {
	protocol := p2p.ProtocolID(b.name, work.ProtoWitness)
	b.witness, err = settle.NewWitness(settle.WitnessConfig{
		Network: b.Network, Protocol: protocol, Books: b.Books, Log: b.Log.With("part", "witness"),
	})
	if err != nil {
		return err
	}
	b.Network.Handle(protocol, settle.WitnessLimits(), b.witness.Handler())
	return nil
}
