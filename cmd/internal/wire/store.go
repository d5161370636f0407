package wire

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/kv"
)

// schema is everything that was ever changed in how a daemon's store is laid out.
func schema(release string) kv.Schema {
	return kv.Schema{Release: strings.Join(strings.Fields(release), "-"), Steps: []kv.Step{
		{Number: 1, Name: "first light", Run: func(context.Context, *kv.Txn) error { return nil }},
	}}
}

// persist keeps the network's durable bytes in the store; it fulfils p2p.Persist.
type persist struct{ store *kv.Store }

// Load fulfils p2p.Persist.
func (p persist) Load(ctx context.Context, key string) (value []byte, err error) {
	err = p.store.View(ctx, func(t *kv.Txn) error {
		value, err = t.Of(kv.P2PPersist).Get([]byte(key))
		if errors.Is(err, kv.ErrNotFound) {
			value, err = nil, nil
		}
		return err
	})
	return value, err
}

// Store fulfils p2p.Persist.
func (p persist) Store(ctx context.Context, key string, value []byte) error {
	return p.store.Update(ctx, func(t *kv.Txn) error { return t.Of(kv.P2PPersist).Set([]byte(key), value) })
}

// lanes finds the lanes whose ids start so.
func (b *Base) lanes(ctx context.Context, start string) (found []ledger.Lane, err error) {
	err = b.Books.View(ctx, func(r *books.Reader) error {
		return r.EachLane(func(l books.Lane) error {
			if strings.HasPrefix(l.Lane.String(), start) {
				found = append(found, l.Lane)
			}
			return nil
		})
	})
	return found, err
}

// alreadyClosed says that a part was closed by its own Run.
func alreadyClosed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed)
}
