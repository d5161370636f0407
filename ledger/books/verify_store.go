package books

import (
	"errors"

	"github.com/gpufair/gpufair/ledger/kv"
)

// store compares everything that the store holds, lease state too, with what was written. It comes last, since it can name nothing.
func (a *audit) store() error {
	err := a.r.txn.Check()
	if errors.Is(err, kv.ErrDamaged) {
		return corrupt("store", "%v", err)
	}
	return err
}
