package ledger_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func peer(n byte) identity.AccountID { return identity.AccountID{n} }

func usage(amounts ...int64) ledger.Entry {
	e := ledger.Entry{ID: wire.Hash{1}, Kind: ledger.KindUsage, Peer: peer(1)}
	for _, a := range amounts {
		e.Postings = append(e.Postings, ledger.Posting{Account: ledger.Account{Kind: ledger.Income}, Unit: money.Credit, Amount: a})
	}
	return e
}

func TestEntryValidate(t *testing.T) {
	twoUnits := usage(5, -5)
	twoUnits.Postings[1].Unit = "EUR"
	noID := usage(1, -1)
	noID.ID = wire.Hash{}
	badKind := usage(1, -1)
	badKind.Kind = 99
	badAccount := usage(1, -1)
	badAccount.Postings[0].Account.Kind = 99
	badUnit := usage(1, -1)
	badUnit.Postings[0].Unit = "x"
	for name, c := range map[string]struct {
		e    ledger.Entry
		want error
	}{
		"balanced":          {usage(5, -3, -2), nil},
		"unbalanced":        {usage(5, -4), ledger.ErrUnbalanced},
		"units not added":   {twoUnits, ledger.ErrUnbalanced},
		"one posting":       {usage(5), ledger.ErrEntry},
		"zero posting":      {usage(5, -5, 0), ledger.ErrEntry},
		"no id":             {noID, ledger.ErrEntry},
		"unknown kind":      {badKind, ledger.ErrEntry},
		"unknown account":   {badAccount, ledger.ErrEntry},
		"bad unit":          {badUnit, ledger.ErrEntry},
		"overflow":          {usage(math.MaxInt64, math.MaxInt64, 2), money.ErrOverflow},
		"overflow below":    {usage(math.MinInt64+1, -2, math.MaxInt64), money.ErrOverflow},
		"too many postings": {usage(make([]int64, 17)...), ledger.ErrEntry},
	} {
		if err := c.e.Validate(); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestLeafRoundTrip(t *testing.T) {
	e := usage(5, -5)
	e.Salt = ledger.Salt{9}
	e.Note = "invoice 7"
	leaf, err := e.Leaf()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ledger.DecodeLeaf(leaf)
	if err != nil || got.Note != e.Note || got.Salt != e.Salt || len(got.Postings) != 2 {
		t.Fatal(got, err)
	}
}

func FuzzDecodeLeaf(f *testing.F) {
	leaf, err := usage(5, -5).Leaf()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(leaf)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := ledger.DecodeLeaf(b)
		if err != nil {
			return
		}
		again, err := e.Leaf()
		if err != nil || len(again) > ledger.MaxEntry {
			t.Fatalf("decoded %x, then %v", b, err)
		}
	})
}

func TestEntryIDsDiffer(t *testing.T) {
	a, b := wire.Hash{1}, wire.Hash{2}
	seen := map[wire.Hash]bool{}
	for _, id := range []wire.Hash{
		ledger.EntryID(ledger.KindUsage, a), ledger.EntryID(ledger.KindHold, a), ledger.EntryID(ledger.KindUsage, b),
		ledger.EntryID(ledger.KindUsage, a, b), ledger.EntryID(ledger.KindUsage, b, a),
	} {
		if seen[id] {
			t.Fatal("two causes, one id")
		}
		seen[id] = true
	}
}

func TestChannel(t *testing.T) {
	c := ledger.Channel{Renter: peer(1), Provider: peer(2), Unit: money.Credit}
	if c.Validate() != nil || c.RoleOf(peer(1)) != ledger.AsRenter || c.RoleOf(peer(2)) != ledger.AsProvider || c.RoleOf(peer(3)) != 0 {
		t.Fatal("roles")
	}
	self := c
	self.Provider = peer(1)
	if !errors.Is(self.Validate(), ledger.ErrChannel) {
		t.Fatal("an account owes itself")
	}
	later := c
	later.Epoch = 1
	if later.ID() == c.ID() {
		t.Fatal("epochs share an id")
	}
}

var limits = ledger.Limits{Stranger: 30, StrangersTotal: 240, KnownPercent: 50, KnownCap: 1000}

func TestCreditRule(t *testing.T) {
	for name, c := range map[string]struct {
		s      ledger.Standing
		others money.Micro
		room   money.Micro
		cause  error
	}{
		"stranger":                         {ledger.Standing{}, 0, 30, ledger.ErrCreditLimit},
		"stranger, used":                   {ledger.Standing{Owed: 20, Open: 7}, 0, 3, ledger.ErrCreditLimit},
		"stranger over its limit":          {ledger.Standing{Owed: 40}, 0, 0, ledger.ErrCreditLimit},
		"total nearly full":                {ledger.Standing{}, 230, 10, ledger.ErrStrangersTotal},
		"total full":                       {ledger.Standing{}, 240, 0, ledger.ErrStrangersTotal},
		"total over":                       {ledger.Standing{}, 500, 0, ledger.ErrStrangersTotal},
		"own bad debt":                     {ledger.Standing{BadDebt: 1, Settled: 400}, 0, 0, ledger.ErrWrittenOff},
		"own bad debt, by hand":            {ledger.Standing{BadDebt: 230, ByHand: new(money.Micro(50))}, 230, 50, ledger.ErrCreditLimit},
		"own bad debt, prepaid":            {ledger.Standing{BadDebt: 1, Owed: -9}, 0, 9, ledger.ErrWrittenOff},
		"prepaid lets in at a full total":  {ledger.Standing{Owed: -50}, 240, 50, ledger.ErrStrangersTotal},
		"prepaid and stranger's limit":     {ledger.Standing{Owed: -50}, 0, 80, ledger.ErrCreditLimit},
		"known":                            {ledger.Standing{Settled: 400}, 0, 200, ledger.ErrCreditLimit},
		"known at a full total":            {ledger.Standing{Settled: 400}, 240, 200, ledger.ErrStrangersTotal},
		"known, capped":                    {ledger.Standing{Settled: 1 << 40}, 240, 1000, ledger.ErrStrangersTotal},
		"a little settled is no free pass": {ledger.Standing{Settled: 2}, 240, 1, ledger.ErrStrangersTotal},
		"a little settled costs nothing":   {ledger.Standing{Settled: 2}, 0, 30, ledger.ErrCreditLimit},
		"late":                             {ledger.Standing{Settled: 400, Late: true}, 0, 0, ledger.ErrLate},
		"late, by hand":                    {ledger.Standing{ByHand: new(money.Micro(50)), Late: true}, 0, 0, ledger.ErrLate},
		"by hand":                          {ledger.Standing{ByHand: new(money.Micro(77))}, 240, 77, ledger.ErrStrangersTotal},
		"by hand nothing":                  {ledger.Standing{Settled: 400, ByHand: new(money.Micro(0))}, 0, 0, ledger.ErrCreditLimit},
	} {
		room, cause, err := limits.Room(c.s, c.others)
		if err != nil || room != c.room || (c.room < 30 && !errors.Is(cause, c.cause)) {
			t.Errorf("%s: room %d by %v, %v; want %d by %v", name, uint64(room), cause, err, uint64(c.room), c.cause)
		}
		if err := limits.Check(c.s, c.others, room); err != nil {
			t.Errorf("%s: its own room is refused: %v", name, err)
		}
		var ce *ledger.CreditError
		if err := limits.Check(c.s, c.others, room+1); !errors.As(err, &ce) || ce.Room != room {
			t.Errorf("%s: more than its room: %v", name, err)
		}
	}
	if room, _, err := (ledger.Limits{}).Room(ledger.Standing{}, 0); room != 0 || err != nil {
		t.Error("no limits must be no credit")
	}
	if _, _, err := limits.Room(ledger.Standing{Owed: math.MaxInt64, Open: 1}, 0); !errors.Is(err, money.ErrOverflow) {
		t.Error("exposure overflows unseen")
	}
}

// Whatever accounts do, and however many keys somebody makes, what is owed beyond earned credit never exceeds the strangers' total.
func TestStrangersTotalHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		accounts := make([]ledger.Standing, rapid.IntRange(1, 12).Draw(t, "accounts"))
		used := func(without int) money.Micro {
			var sum money.Micro
			for i, a := range accounts {
				if part, err := limits.Strange(a); err == nil && i != without {
					sum += part
				}
			}
			return sum
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(accounts)-1).Draw(t, "account")
			amount := money.Micro(rapid.Uint64Range(1, 400).Draw(t, "amount"))
			switch a := &accounts[i]; rapid.IntRange(0, 3).Draw(t, "act") {
			case 0:
				if limits.Check(*a, used(i), amount) == nil {
					a.Owed += int64(amount)
				}
			case 1:
				if limits.Check(*a, used(i), amount) == nil {
					a.Open += amount
				}
			case 2:
				a.Owed -= int64(amount)
				a.Settled += amount
			case 3:
				if a.Owed > 0 {
					a.BadDebt += money.Micro(a.Owed)
					a.Owed = 0
				}
			}
			// a known account that turns bad moves what it earned into the total: that is the one way over
			if total := used(-1); total > limits.StrangersTotal {
				for _, a := range accounts {
					if a.BadDebt > 0 && a.Settled > 0 {
						return
					}
				}
				t.Fatalf("strangers owe %d of %d: %+v", uint64(total), uint64(limits.StrangersTotal), accounts)
			}
		}
	})
}

func TestDefaultLimits(t *testing.T) {
	l, err := ledger.DefaultLimits(400_000, 2)
	if err != nil || l.Stranger != 400_000 || l.StrangersTotal != 3_200_000 || l.KnownPercent != 50 || l.KnownCap == 0 {
		t.Fatal(l, err)
	}
	if _, err := ledger.DefaultLimits(math.MaxUint64, 2); !errors.Is(err, money.ErrOverflow) {
		t.Fatal(err)
	}
}
