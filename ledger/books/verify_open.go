package books

import (
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"

	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// promises is the check of all vouchers, receipts and allowances, which runs beside the walk over the entries: neither needs the other, and
// both are long.
type promises struct {
	by   *audit // with a reader of its own
	of   *audit
	end  chan struct{} // closed: nobody waits for it any more
	done chan error
}

// startPromises begins the check.
func (a *audit) startPromises() *promises {
	r := *a.r
	r.powers = nil
	p := &promises{by: &audit{r: &r}, of: a, end: make(chan struct{}), done: make(chan error, 1)}
	go func() {
		err := p.by.r.EachLane(func(l Lane) error {
			select {
			case <-p.end:
				return errStopped
			default:
				return p.by.promised(l)
			}
		})
		p.done <- err
		close(p.done)
	}()
	return p
}

var errStopped = errors.New("the check was stopped")

// wait gives what came of it.
func (p *promises) wait() error {
	err := <-p.done
	p.of.checked += p.by.checked
	return err
}

// stop ends it: its reader is not used any more.
func (p *promises) stop() {
	close(p.end)
	for range p.done {
	}
}

// promised checks all that was signed on a lane.
func (a *audit) promised(l Lane) error {
	name := "lane " + l.Lane.Short()
	if err := a.vouchers(name, l); err != nil {
		return err
	}
	if err := a.allowance(name, l); err != nil {
		return err
	}
	return a.rate(name, l)
}

// aheadOf is how many vouchers of a lane are opened at once: enough for every core, and little to hold.
const aheadOf = 512

// openedVoucher is a stored voucher with its receipt. Signatures are checked; what they say is not.
type openedVoucher struct {
	key, raw []byte
	v        voucher.Signed
	err      error // of v
	receipt  []byte
	r        voucher.Receipt
	rerr     error // of r
}

// opened gives a lane's vouchers in order. Their signatures, which cost more than all else in a ledger's check, are checked on all cores.
func (a *audit) opened(l Lane) iter.Seq2[openedVoucher, error] {
	return func(yield func(openedVoucher, error) bool) {
		var part []openedVoucher
		give := func() bool {
			if err := a.openPart(part); err != nil {
				yield(openedVoucher{}, err)
				return false
			}
			for _, o := range part {
				if !yield(o, nil) {
					return false
				}
			}
			part = part[:0]
			return true
		}
		for p, err := range a.r.own.Iterate(key("v/", l.Lane[:], []byte("/")), nil) {
			if err != nil {
				yield(openedVoucher{}, err)
				return
			}
			part = append(part, openedVoucher{key: p.Key, raw: p.Value})
			if len(part) == aheadOf && !give() {
				return
			}
		}
		give()
	}
}

// openPart opens some vouchers and their receipts.
func (a *audit) openPart(part []openedVoucher) (err error) {
	onAllCores(len(part), func(i int) { part[i].v, part[i].err = voucher.Open(part[i].raw) })
	for i := range part {
		if part[i].err != nil {
			continue
		}
		if part[i].receipt, err = a.r.Receipt(part[i].v.Hash); err != nil {
			return err
		}
	}
	onAllCores(len(part), func(i int) {
		o := &part[i]
		if o.receipt == nil {
			return
		}
		if o.r, o.rerr = voucher.OpenReceipt(o.receipt); o.rerr == nil {
			o.rerr = checkCheckpoint(o.r.Checkpoint, o.r.Device)
		}
	})
	return nil
}

// onAllCores calls f with 0 to n-1, on as many cores as there are.
func onAllCores(n int, f func(i int)) {
	cores := min(runtime.GOMAXPROCS(0), n)
	var all sync.WaitGroup
	for c := range cores {
		all.Go(func() {
			for i := c; i < n; i += cores {
				f(i)
			}
		})
	}
	all.Wait()
}

// receipt checks the receipt of a voucher and gives its hash, zero if there is none.
func (a *audit) receipt(what string, l Lane, o openedVoucher) (wire.Hash, error) {
	if o.receipt == nil {
		return wire.Hash{}, nil
	}
	if o.rerr != nil {
		return wire.Hash{}, forged("receipt of "+what, o.rerr)
	}
	a.checked += 2 // its own signature, and its checkpoint's
	if o.r.Voucher != o.v.Hash {
		return wire.Hash{}, corrupt("receipt of "+what, "it is for another voucher")
	}
	if err := a.r.checkReceiptSigner(l, o.r); err != nil {
		return wire.Hash{}, forged("receipt of "+what, fmt.Errorf("signer: %w", err))
	}
	return identity.Hash(o.receipt), nil
}
