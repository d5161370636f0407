package books

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/gpufair/gpufair/ledger"
)

// BenchmarkClose measures the end of a lease of an account that owes for so many others.
func BenchmarkClose(b *testing.B) {
	for _, unpaid := range []int{0, 1_000} {
		b.Run(fmt.Sprintf("unpaid=%d", unpaid), func(b *testing.B) {
			p := newPair(b)
			channel := p.renter.Channel(p.provider.Self(), "CREDIT")
			lane := func(n int) (l ledger.Lane) {
				binary.BigEndian.PutUint32(l[:], uint32(n)+1)
				return l
			}
			open := func(from, to int) {
				for from < to {
					p.renter.update(func(tx *Tx) error {
						for n := from; n < min(from+100, to); n++ {
							if _, err := tx.Promise(Opening{Channel: channel, Lane: lane(n), Rate: 3_600_000, Devices: 1}); err != nil {
								return err
							}
							if _, err := tx.SignVoucher(lane(n), 1, nil); err != nil {
								return err
							}
						}
						return nil
					})
					from += 100
				}
			}
			closeAll := func(from, to int) {
				for from < to {
					p.renter.update(func(tx *Tx) error {
						for n := from; n < min(from+100, to); n++ {
							if _, err := tx.CloseLane(lane(n), 1); err != nil {
								return err
							}
						}
						return nil
					})
					from += 100
				}
			}
			open(0, unpaid)
			closeAll(0, unpaid)
			open(unpaid, unpaid+b.N)
			b.ResetTimer()
			for n := range b.N {
				p.renter.update(func(tx *Tx) error { _, err := tx.CloseLane(lane(unpaid+n), 1); return err })
			}
		})
	}
}
