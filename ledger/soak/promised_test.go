package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
)

// promised is what processes said to be durable.
type promised struct {
	mu       sync.Mutex
	changed  *sync.Cond
	full     int                      // guarded by mu; how often a side had no room
	lines    int                      // guarded by mu
	signed   map[ledger.Lane][]uint64 // guarded by mu; amounts by sequence, 0 where nothing was said
	taken    map[ledger.Lane][]uint64 // guarded by mu
	receipts map[ledger.Lane]uint64   // guarded by mu; highest sequence with a receipt at the renter
	paid     map[string]bool          // guarded by mu
	wrong    []string                 // guarded by mu
}

func newPromised() *promised {
	p := &promised{
		signed: map[ledger.Lane][]uint64{}, taken: map[ledger.Lane][]uint64{}, receipts: map[ledger.Lane]uint64{}, paid: map[string]bool{},
	}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// note takes one line of a process.
func (p *promised) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.changed.Broadcast()
	p.lines++
	switch line {
	case "open":
		return
	case "full":
		p.full++
		return
	}
	var what string
	var id []byte
	var seq, amount uint64
	n, _ := fmt.Sscanf(line, "%s %x %d %d", &what, &id, &seq, &amount)
	if n < 3 || len(id) != 32 {
		p.wrong = append(p.wrong, line)
		return
	}
	lane := ledger.Lane(id)
	keep := func(m map[ledger.Lane][]uint64) {
		for uint64(len(m[lane])) <= seq {
			m[lane] = append(m[lane], 0)
		}
		if old := m[lane][seq]; old != 0 && old != amount {
			p.wrong = append(p.wrong, fmt.Sprintf("%s, before: %d", line, old))
		}
		m[lane][seq] = amount
	}
	switch what {
	case "signed":
		keep(p.signed)
	case "taken":
		keep(p.taken)
	case "receipted":
		p.receipts[lane] = max(p.receipts[lane], seq)
	case "paid":
		p.paid[string(id)] = true
	}
}

// noRoom is how often a side said that it has no room.
func (p *promised) noRoom() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.full
}

// await waits until the processes have said n lines more, or one of them has ended.
func (p *promised) await(n int, all ...*process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ended := func() bool {
		for _, c := range all {
			select {
			case <-c.drained:
				return true
			default:
			}
		}
		return false
	}
	for want := p.lines + n; p.lines < want && !ended(); {
		p.changed.Wait()
	}
}

// check compares both ledgers with what was promised, lets them meet again, and compares them with each other. It gives how many vouchers
// the renter said to be durable.
func (p *promised) check(ctx context.Context, rented, provided *party) (vouchers int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wrong) > 0 {
		return 0, fmt.Errorf("contradictions: %q", p.wrong)
	}
	for _, side := range []struct {
		name string
		*party
		said map[ledger.Lane][]uint64
	}{{"renter", rented, p.signed}, {"provider", provided, p.taken}} {
		n, err := look(ctx, side.party, side.said, side.name == "provider")
		if err != nil {
			return 0, fmt.Errorf("%s: %w", side.name, err)
		}
		if side.name == "renter" {
			vouchers = n
		}
		if err := verified(ctx, side.party); err != nil {
			return 0, fmt.Errorf("%s: %w", side.name, err)
		}
	}
	err = rented.View(ctx, func(r *books.Reader) error {
		for id, seq := range p.receipts {
			if l, err := r.Lane(id); err != nil || l.Receipts < seq {
				return fmt.Errorf("renter: receipt %d of lane %s is lost: %d, %w", seq, id.Short(), l.Receipts, err)
			}
		}
		for id := range p.paid {
			if s, err := r.Settlement([32]byte([]byte(id))); err != nil || s.State != books.Signed {
				return fmt.Errorf("renter: payment %x is lost: %s, %w", id, s.State, err)
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return vouchers, meet(ctx, rented, provided)
}

// look looks for every voucher that was said to be durable, and at the provider for its receipt.
func look(ctx context.Context, p *party, said map[ledger.Lane][]uint64, receipts bool) (n int, err error) {
	return n, p.View(ctx, func(r *books.Reader) error {
		for id, amounts := range said {
			for seq, amount := range amounts {
				if amount == 0 {
					continue
				}
				b, err := r.Voucher(id, uint64(seq))
				if err != nil || b == nil {
					return fmt.Errorf("voucher %d of lane %s is lost: %w", seq, id.Short(), err)
				}
				v, err := voucher.Open(b)
				if err != nil || uint64(v.Amount) != amount {
					return fmt.Errorf("voucher %d of lane %s promises %d, not %d: %w", seq, id.Short(), uint64(v.Amount), amount, err)
				}
				if got, err := r.Receipt(v.Hash); receipts && (err != nil || got == nil) {
					return fmt.Errorf("the receipt for voucher %d of lane %s is lost: %w", seq, id.Short(), err)
				}
				n++
			}
		}
		return nil
	})
}

func verified(ctx context.Context, p *party) error {
	v, err := p.Verify(ctx)
	if err == nil && v.Result != books.ResultOK {
		err = fmt.Errorf("verify: %s: %s: %s", v.Result, v.Entry, v.Detail)
	}
	return err
}

// meet lets both meet again, and compares them to the micro-unit.
func meet(ctx context.Context, rented, provided *party) error {
	silent := func(string, ...any) {}
	ask := func(q request) (reply, error) {
		a := answer(ctx, provided, q, silent)
		if a.Err != "" {
			return a, fmt.Errorf("%w: %s", errRefused, a.Err)
		}
		return a, nil
	}
	peer, err := hello(ctx, rented, ask)
	if err != nil {
		return err
	}
	if err := (renter{rented, peer, ask, silent}).reconnect(ctx); err != nil {
		return fmt.Errorf("meet again: %w", err)
	}
	lanes := map[ledger.Lane]books.Lane{}
	var mine, theirs books.Account
	err = rented.View(ctx, func(r *books.Reader) error {
		if mine, err = r.Account(ledger.AsRenter, money.Credit, peer); err != nil {
			return err
		}
		return r.EachLane(func(l books.Lane) error {
			lanes[l.Lane] = l
			return nil
		})
	})
	if err != nil {
		return err
	}
	var promised money.Micro
	err = provided.View(ctx, func(r *books.Reader) error {
		if theirs, err = r.Account(ledger.AsProvider, money.Credit, rented.Self()); err != nil {
			return err
		}
		return r.EachLane(func(l books.Lane) error {
			m := lanes[l.Lane]
			delete(lanes, l.Lane)
			if m.Amount != l.Amount || m.Owed() != l.Owed() || m.Settled != l.Settled || m.Voucher != l.Voucher {
				return fmt.Errorf("lane %s: renter %+v, provider %+v", l.Lane.Short(), m, l)
			}
			promised, err = money.Add(promised, l.Owed())
			return err
		})
	})
	if err != nil {
		return err
	}
	if len(lanes) > 0 {
		return fmt.Errorf("%d lanes are unknown to the provider", len(lanes))
	}
	if mine.Owed != theirs.Owed || mine.Settled != theirs.Settled || theirs.Owed+int64(theirs.Settled) != int64(promised) {
		return fmt.Errorf("renter: %+v, provider: %+v, the lanes promise %v", mine.Standing, theirs.Standing, promised)
	}
	return errors.Join(verified(ctx, rented), verified(ctx, provided))
}

// pair is where a provider and a renter live.
type pair struct{ provider, renter place }

// newPair makes identities in keys, which are not what is tested.
func newPair(t *testing.T, keys, data string) pair {
	t.Helper()
	p := pair{
		provider: place{keys: filepath.Join(keys, "provider"), data: filepath.Join(data, "provider")},
		renter:   place{keys: filepath.Join(keys, "renter"), data: filepath.Join(data, "renter")},
	}
	for _, one := range []place{p.provider, p.renter} {
		must(t, os.MkdirAll(one.data, 0o700))
		_, err := one.device()
		must(t, err)
	}
	return p
}

// check opens both ledgers here and compares them with what was promised.
func (p pair) check(t *testing.T, to *promised) (vouchers int) {
	t.Helper()
	r, err := open(t.Context(), p.renter)
	must(t, err)
	defer func() { must(t, r.close()) }()
	s, err := open(t.Context(), p.provider)
	must(t, err)
	defer func() { must(t, s.close()) }()
	vouchers, err = to.check(t.Context(), r, s)
	must(t, err)
	return vouchers
}
