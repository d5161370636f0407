package ledger_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
)

// owner simulates what an owner with limits is owed by any number of accounts. It keeps the strangers' part as a sum, so that a hundred
// thousand accounts cost no more than one.
type owner struct {
	t        *testing.T
	limits   ledger.Limits
	accounts []ledger.Standing
	strange  money.Micro // of the strangers' total, in use
	worked   money.Micro // that somebody owed at some time
	paid     money.Micro // for it, or in advance
}

func newOwner(t *testing.T) *owner {
	t.Helper()
	limits, err := ledger.DefaultLimits(400_000, 1) // 0.4 an hour
	if err != nil {
		t.Fatal(err)
	}
	return &owner{t: t, limits: limits}
}

// join is a fresh key: it costs nothing.
func (o *owner) join() (account int) {
	o.accounts = append(o.accounts, ledger.Standing{})
	return len(o.accounts) - 1
}

// change replaces an account's standing and keeps the sum.
func (o *owner) change(i int, f func(*ledger.Standing)) {
	o.t.Helper()
	was, err1 := o.limits.Strange(o.accounts[i])
	f(&o.accounts[i])
	is, err2 := o.limits.Strange(o.accounts[i])
	if err := errors.Join(err1, err2); err != nil {
		o.t.Fatal(err)
	}
	o.strange = o.strange - was + is
}

func (o *owner) others(i int) money.Micro {
	o.t.Helper()
	own, err := o.limits.Strange(o.accounts[i])
	if err != nil {
		o.t.Fatal(err)
	}
	return o.strange - own
}

// work is the rule of every lease and voucher: as much as the account asks for, or an error.
func (o *owner) work(i int, amount money.Micro) error {
	o.t.Helper()
	if err := o.limits.Check(o.accounts[i], o.others(i), amount); err != nil {
		return err
	}
	o.change(i, func(s *ledger.Standing) { s.Owed += int64(amount) })
	o.worked += amount
	return nil
}

// room is the most that work takes, which is the greedy account's question.
func (o *owner) room(i int) money.Micro {
	o.t.Helper()
	room, _, err := o.limits.Room(o.accounts[i], o.others(i))
	if err != nil {
		o.t.Fatal(err)
	}
	if o.limits.Check(o.accounts[i], o.others(i), room+1) == nil {
		o.t.Fatalf("account %d may take more than its room of %v", i, room)
	}
	return room
}

func (o *owner) pay(i int, amount money.Micro) {
	o.t.Helper()
	o.change(i, func(s *ledger.Standing) { s.Owed -= int64(amount); s.Settled += amount })
	o.paid += amount
}

// writeOff is the owner's end of hope.
func (o *owner) writeOff(i int) {
	o.t.Helper()
	o.change(i, func(s *ledger.Standing) { s.BadDebt += ledger.Positive(s.Owed); s.Owed = min(s.Owed, 0) })
}

// lost is what was worked for and nobody has paid.
func (o *owner) lost() (sum money.Micro) {
	for _, s := range o.accounts {
		sum += ledger.Positive(s.Owed) + s.BadDebt
	}
	return sum
}

// flood lets n fresh keys take all they get, and none pays.
func (o *owner) flood(n int) {
	o.t.Helper()
	for range n {
		i := o.join()
		if room := o.room(i); room > 0 {
			if err := o.work(i, room); err != nil {
				o.t.Fatal(err)
			}
		}
	}
}

// TestSybilLoss: however many keys somebody makes, the owner loses the strangers' total and not a micro-unit more, also when bad debts are
// written off and the keys come again. -v shows it as a table.
func TestSybilLoss(t *testing.T) {
	t.Logf("%8s %8s %8s  with the default limits at 0.4 an hour", "keys", "lost", "at most")
	for _, n := range []int{1, 7, 8, 9, 1_000, 100_000} {
		o := newOwner(t)
		o.flood(n)
		want := min(o.limits.Stranger*money.Micro(n), o.limits.StrangersTotal)
		t.Logf("%8d %8v %8v", n, o.lost(), o.limits.StrangersTotal)
		if got := o.lost(); got != want {
			t.Errorf("%d keys cost the owner %v, want %v", n, got, want)
		}
		for i := range o.accounts {
			o.writeOff(i)
		}
		o.flood(100)
		if got := o.lost(); got > o.limits.StrangersTotal {
			t.Errorf("%d keys and 100 after a write-off cost the owner %v, want at most %v", n, got, o.limits.StrangersTotal)
		}
	}
}

// TestHonestStrangers: with the defaults, eight strangers at a time get half an hour each for nothing but their word; each who pays makes
// room for the next.
func TestHonestStrangers(t *testing.T) {
	o := newOwner(t)
	var working []int
	for i := range 8 {
		working = append(working, o.join())
		if err := o.work(working[i], o.limits.Stranger); err != nil {
			t.Fatalf("stranger %d: %v", i, err)
		}
	}
	if err := o.work(o.join(), 1); !errors.Is(err, ledger.ErrStrangersTotal) {
		t.Fatalf("a ninth: %v", err)
	}
	for i := range 100 {
		o.pay(working[i], o.limits.Stranger)
		working = append(working, o.join())
		if err := o.work(working[len(working)-1], o.limits.Stranger); err != nil {
			t.Fatalf("after %d paid: %v", i+1, err)
		}
	}
}

// TestHonestAfterFlood: when Sybils have used the whole total, who has paid before still works on that credit, and a stranger gets the
// first job by paying in advance; only strangers on their word alone have to wait.
func TestHonestAfterFlood(t *testing.T) {
	o := newOwner(t)
	known := o.join()
	for range 4 {
		if err := o.work(known, o.limits.Stranger); err != nil {
			t.Fatal(err)
		}
		o.pay(known, o.limits.Stranger)
	}
	o.flood(1_000)
	stranger := o.join()
	if err := o.work(stranger, 1); !errors.Is(err, ledger.ErrStrangersTotal) {
		t.Errorf("a stranger on its word alone: %v", err)
	}
	first := 3 * o.limits.Stranger
	o.pay(stranger, first)
	if err := o.work(stranger, first); err != nil {
		t.Errorf("a stranger who paid in advance: %v", err)
	}
	if err := o.work(known, 2*o.limits.Stranger); err != nil { // half of what it settled
		t.Errorf("a known account, on half of what it has paid: %v", err)
	}
	if got := o.lost(); got > o.limits.StrangersTotal+2*o.limits.Stranger {
		t.Errorf("lost %v", got)
	}
}

// TestSybilsWithPatience: keys that pay for a while to earn credit and then vanish, among honest ones, in random order. The owner never
// has more unpaid than the strangers' total and half of what was paid.
func TestSybilsWithPatience(t *testing.T) {
	for seed := range uint64(20) {
		o, r := newOwner(t), rand.New(rand.NewPCG(seed, 3))
		for step := range 3_000 {
			if len(o.accounts) == 0 || r.IntN(4) == 0 {
				o.join()
			}
			i := r.IntN(len(o.accounts))
			switch r.IntN(5) {
			case 0, 1:
				if room := o.room(i); room > 0 {
					if err := o.work(i, 1+money.Micro(r.Uint64N(uint64(room)))); err != nil {
						t.Fatal(err)
					}
				}
			case 2:
				if owed := ledger.Positive(o.accounts[i].Owed); owed > 0 {
					o.pay(i, 1+money.Micro(r.Uint64N(uint64(owed))))
				}
			case 3:
				o.pay(i, 1+money.Micro(r.Uint64N(100_000))) // in advance
			case 4:
				if r.IntN(10) == 0 {
					o.writeOff(i)
				}
			}
			if most := o.limits.StrangersTotal + o.paid/2; o.lost() > most {
				t.Fatalf("seed %d, step %d: lost %v of at most %v", seed, step, o.lost(), most)
			}
		}
		if o.worked == 0 || o.paid == 0 {
			t.Errorf("seed %d: nothing happened", seed)
		}
	}
}
