package books

import (
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// keepSegments keeps, on the provider's side, the rate segments that a voucher was computed from, so that its proof shows them, too. They
// follow from what both sides know already: a lane has one rate from its opening on, and the voucher says for how many device-milliseconds.
// A voucher that names other segments keeps none: its amount is a promise all the same, and a proof says that the rate is not shown.
func (t *Tx) keepSegments(l Lane, v voucher.Signed) error {
	if l.Devices == 0 || v.Resource != meter.Resource {
		return nil
	}
	all := []meter.Segment{{Rate: l.Rate, Devices: l.Devices, Ms: v.Quantity / uint64(l.Devices)}}
	if digest, err := meter.Hash(all); err != nil || digest != v.Segments {
		return err
	}
	return save(t.own, key("seg/", l.Lane[:]), segments{Voucher: v.Hash, Segments: all})
}
