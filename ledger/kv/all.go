package kv

import "iter"

// All reads the keys of every owner, prefixes included: what a backup holds. It writes nothing.
func (t *Txn) All() Reader { return whole{t} }

type whole struct{ t *Txn }

func (w whole) Get(key []byte) ([]byte, error) { return w.t.get(string(key)) }

func (w whole) Iterate(prefix, from []byte) iter.Seq2[Pair, error] {
	return w.t.iterate(string(prefix), string(from))
}

// Owners lists everybody who has keys of his own in a store, but the store itself.
func Owners() []Owner {
	return []Owner{Books, Provider, Renter, P2PPersist, MarketAnnounce, Negotiate, Settle}
}
