package kv

import (
	"bytes"
	"iter"
)

// All reads the keys of every owner, prefixes included: what a backup holds. It writes nothing.
func (t *Txn) All() Reader { return whole{t} }

type whole struct{ t *Txn }

func (w whole) Get(key []byte) ([]byte, error) { return w.t.get(string(key)) }

func (w whole) Iterate(prefix, from []byte) iter.Seq2[Pair, error] {
	return w.t.iterate(string(prefix), string(from))
}

// OwnerOf is whose a key is, given with its prefix.
func OwnerOf(key []byte) Owner {
	owner, _, _ := bytes.Cut(key, []byte(separator))
	return Owner(owner)
}
