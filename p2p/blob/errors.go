package blob

import (
	"errors"
	"fmt"

	"github.com/gpufair/gpufair/p2p"
)

// wireErrors is how our errors cross the wire. Codes are never renamed.
var wireErrors = []struct {
	err  error
	kind p2p.Kind
	code string
}{
	{ErrQuota, p2p.KindRefused, "blob_quota"},
	{ErrHashMismatch, p2p.KindBadRequest, "blob_hash"},
	{ErrPath, p2p.KindBadRequest, "blob_path"},
	{ErrNotFound, p2p.KindNotFound, "blob_not_found"},
	{ErrForbidden, p2p.KindForbidden, "blob_forbidden"},
	{ErrBusy, p2p.KindBusy, "blob_busy"},
	{ErrChanged, p2p.KindConflict, "blob_changed"},
}

// toPeer gives err the kind and code that the peer's [fromPeer] understands.
func toPeer(err error) error {
	var e *p2p.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	for _, w := range wireErrors {
		if errors.Is(err, w.err) {
			return fmt.Errorf("%w: %w", &p2p.Error{Kind: w.kind, Code: w.code, Detail: err.Error()}, err)
		}
	}
	return err
}

// fromPeer gives an error of the peer the meaning of ours. A reset has only a kind: those that mean one thing are enough.
func fromPeer(err error) error {
	var e *p2p.Error
	if !errors.As(err, &e) {
		return err
	}
	for _, w := range wireErrors {
		byKind := e.Code == "" && e.Kind == w.kind && e.Kind != p2p.KindRefused && e.Kind != p2p.KindBadRequest
		if (byKind || e.Code == w.code) && !errors.Is(err, w.err) {
			return fmt.Errorf("the peer says: %w (%w)", err, w.err)
		}
	}
	return err
}
