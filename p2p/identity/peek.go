package identity

import (
	"fmt"

	"github.com/libp2p/go-libp2p/core/record"

	"github.com/gpufair/gpufair/p2p/wire"
)

// PeekAdvert decodes an advert without checking its signature. What it gives may only be used to drop the advert (a replay, an old
// one) before the cost of a signature check, never to keep or believe it.
func PeekAdvert[T Body](d Domain, raw []byte) (T, error) {
	var zero, v T
	if len(raw) > MaxEnvelope {
		return zero, fmt.Errorf("peek %s: %d bytes: %w (limit %d)", d, len(raw), wire.ErrTooLarge, MaxEnvelope)
	}
	env, err := record.UnmarshalEnvelope(raw)
	if err != nil {
		return zero, fmt.Errorf("peek %s: %w: %w", d, wire.ErrFormat, err)
	}
	if string(env.PayloadType) != string(d) {
		return zero, fmt.Errorf("peek %s: %w: it is a %q", d, ErrSignature, env.PayloadType)
	}
	if err := wire.Unmarshal(env.RawPayload, &v); err != nil {
		return zero, fmt.Errorf("peek %s: %w", d, err)
	}
	return v, nil
}
