package identity

import (
	"bytes"

	"github.com/libp2p/go-libp2p/core/record"
)

// SameBody reports whether two envelopes hold the same record: key, payload type and body, whatever their signatures are. Ed25519 as the
// standard library signs gives one signature for one body, but whoever holds the key can make others that verify (RFC 8032, 5.1.6: the
// nonce is the signer's choice), and a statement made twice is no contradiction. It checks no signature.
func SameBody(a, b []byte) bool {
	x, err := record.UnmarshalEnvelope(a)
	if err != nil {
		return false
	}
	y, err := record.UnmarshalEnvelope(b)
	if err != nil {
		return false
	}
	return x.PublicKey.Equals(y.PublicKey) && bytes.Equal(x.PayloadType, y.PayloadType) && bytes.Equal(x.RawPayload, y.RawPayload)
}
