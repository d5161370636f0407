package wire

import (
	"github.com/gpufair/gpufair/ledger/settle"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p"
)

// openWitness makes the conversation in which peers check that each other's ledgers only grew, and the network on which nobody is dealt with
// before it said what it holds of this one.
func (b *Base) openWitness() (err error) {
	protocol := p2p.ProtocolID(b.name, work.ProtoWitness)
	b.witness, err = settle.NewWitness(settle.WitnessConfig{
		Network: b.Network, Protocol: protocol, Books: b.Books, Log: b.Log.With("part", "witness"),
	})
	if err != nil {
		return err
	}
	b.Network.Handle(protocol, settle.WitnessLimits(), b.witness.Handler())
	var signed, rest []p2p.Protocol
	for _, name := range []string{work.ProtoTrade, work.ProtoLane, work.ProtoSettle, work.ProtoClaims, work.ProtoNet, work.ProtoAuction} {
		signed = append(signed, p2p.ProtocolID(b.name, name))
	}
	for _, name := range []string{work.ProtoJob, work.ProtoRecover} {
		rest = append(rest, p2p.ProtocolID(b.name, name), p2p.ProtocolVersion(b.name, name, 2))
	}
	b.Dealing = b.witness.Guard(signed, rest)
	return nil
}
