package voucher_test

import (
	"crypto/ed25519"
	"errors"
	"math"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// side is one account with its device.
type side struct {
	dev     *identity.Device
	account ed25519.PrivateKey
}

func newSide(tb testing.TB) side {
	tb.Helper()
	account, _, dev, err := identity.Generate()
	if err != nil {
		tb.Fatal(err)
	}
	return side{dev, account}
}

// second gives another device of the same account.
func (s side) second(tb testing.TB, powers identity.Powers, limit uint64) *identity.Device {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := identity.Delegate(s.account, identity.PeerID(key.Public().(ed25519.PublicKey)), 2, powers, limit)
	if err != nil {
		tb.Fatal(err)
	}
	dev, err := identity.NewDevice(key, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return dev
}

func powersOf(tb testing.TB, dev *identity.Device) identity.Delegation {
	tb.Helper()
	d, err := identity.OpenDelegation(dev.Delegation())
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func sign(tb testing.TB, dev *identity.Device, v voucher.Voucher) voucher.Signed {
	tb.Helper()
	s, err := voucher.Sign(dev, v)
	if err != nil {
		tb.Fatal(err)
	}
	got, err := voucher.Open(s.Raw)
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

type world struct {
	renter, provider side
	lane             voucher.Lane
	first            voucher.Signed
	second           voucher.Signed
}

func newWorld(tb testing.TB) world {
	tb.Helper()
	w := world{renter: newSide(tb), provider: newSide(tb)}
	c := ledger.Channel{Renter: w.renter.dev.Account(), Provider: w.provider.dev.Account(), Unit: money.Credit, Epoch: 1}
	w.lane = voucher.Lane{
		Channel: c, Lane: ledger.Lane{7}, Device: w.renter.dev.Peer(), Powers: powersOf(tb, w.renter.dev), Proof: w.renter.dev.DelegationHash(),
	}
	w.first = sign(tb, w.renter.dev, voucher.Voucher{Channel: c, Lane: w.lane.Lane, Resource: "device-second"})
	w.second = sign(tb, w.renter.dev, w.next(w.first, 1, 100))
	w.lane.Last = &w.second
	return w
}

// next is the voucher after prev.
func (w world) next(prev voucher.Signed, seq uint64, amount money.Micro) voucher.Voucher {
	return voucher.Voucher{
		Channel: w.lane.Channel, Lane: w.lane.Lane, Seq: seq, Amount: amount, Quantity: uint64(amount), Resource: "device-second", Prev: prev.Hash,
	}
}

func (w world) older(seq uint64) []byte {
	if seq == 0 {
		return w.first.Raw
	}
	return nil
}

func TestRules(t *testing.T) {
	w := newWorld(t)
	stranger := newSide(t)
	elsewhere := w.next(w.second, 2, 200)
	elsewhere.Lane = ledger.Lane{8}
	otherUnit := w.next(w.second, 2, 200)
	otherUnit.Channel.Unit = "EUR"
	shrunk := w.next(w.second, 2, 200)
	shrunk.Quantity = 1
	fresh := w.lane
	fresh.Last = nil
	twin := w.renter.second(t, identity.AllPowers, 1<<40)
	weak := w.renter.second(t, identity.PowerTrade, 1<<40)
	poor := w.renter.second(t, identity.AllPowers, 150)
	of := func(dev *identity.Device) voucher.Lane {
		l := w.lane
		l.Device, l.Powers, l.Proof = dev.Peer(), powersOf(t, dev), dev.DelegationHash()
		return l
	}
	for name, c := range map[string]struct {
		lane    voucher.Lane
		v       voucher.Signed
		verdict voucher.Verdict
		want    error
	}{
		"the next":                   {w.lane, sign(t, w.renter.dev, w.next(w.second, 2, 101)), voucher.New, nil},
		"one was lost on the way":    {w.lane, sign(t, w.renter.dev, w.next(w.first, 9, 200)), voucher.New, nil},
		"opening":                    {fresh, w.first, voucher.New, nil},
		"the same again":             {w.lane, w.second, voucher.Already, nil},
		"an older one again":         {w.lane, w.first, voucher.Already, nil},
		"not opened":                 {fresh, w.second, 0, voucher.ErrOpening},
		"same amount":                {w.lane, sign(t, w.renter.dev, w.next(w.second, 2, 100)), 0, voucher.ErrOrder},
		"less":                       {w.lane, sign(t, w.renter.dev, w.next(w.second, 2, 99)), 0, voucher.ErrOrder},
		"quantity fell":              {w.lane, sign(t, w.renter.dev, shrunk), 0, voucher.ErrOrder},
		"another predecessor":        {w.lane, sign(t, w.renter.dev, w.next(w.first, 2, 200)), 0, voucher.ErrChain},
		"same sequence, more":        {w.lane, sign(t, w.renter.dev, w.next(w.first, 1, 300)), 0, voucher.ErrEquivocation},
		"another lane":               {w.lane, sign(t, w.renter.dev, elsewhere), 0, voucher.ErrLane},
		"another unit":               {w.lane, sign(t, w.renter.dev, otherUnit), 0, voucher.ErrLane},
		"another device":             {w.lane, sign(t, twin, w.next(w.second, 2, 200)), 0, voucher.ErrSigner},
		"a device that may not pay":  {of(weak), sign(t, weak, w.next(w.second, 2, 200)), 0, identity.ErrPower},
		"within the device's cap":    {of(poor), sign(t, poor, w.next(w.second, 2, 150)), voucher.New, nil},
		"over the device's cap":      {of(poor), sign(t, poor, w.next(w.second, 2, 151)), 0, voucher.ErrCap},
		"another delegation's proof": {of(twin), sign(t, w.renter.dev, w.next(w.second, 2, 200)), 0, voucher.ErrSigner},
	} {
		verdict, err := c.lane.Next(c.v, w.older)
		if verdict != c.verdict || !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s: %d, %v; want %d, %v", name, verdict, err, c.verdict, c.want)
		}
	}
	if _, err := voucher.Sign(stranger.dev, w.next(w.second, 2, 200)); !errors.Is(err, voucher.ErrSigner) {
		t.Error("a stranger signs for the renter:", err)
	}
}

func TestEquivocationKeepsBoth(t *testing.T) {
	w := newWorld(t)
	other := sign(t, w.renter.dev, w.next(w.first, 1, 300))
	_, err := w.lane.Next(other, w.older)
	var two *voucher.Equivocation
	if !errors.As(err, &two) || string(two.Have) != string(w.second.Raw) || string(two.Got) != string(other.Raw) || two.Lane != w.lane.Lane {
		t.Fatal(err)
	}
	// An older sequence is compared too; one that is not kept is only old.
	third := sign(t, w.renter.dev, w.next(w.second, 5, 500))
	w.lane.Last = &third
	if _, err := w.lane.Next(other, func(uint64) []byte { return w.second.Raw }); !errors.As(err, &two) {
		t.Error(err)
	}
	if _, err := w.lane.Next(other, func(uint64) []byte { return nil }); !errors.Is(err, voucher.ErrOld) {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		change func(*voucher.Voucher)
		want   error
	}{
		"too much":              {func(v *voucher.Voucher) { v.Amount = money.Max + 1 }, money.ErrOverflow},
		"too much of it":        {func(v *voucher.Voucher) { v.Quantity = math.MaxUint64 }, money.ErrOverflow},
		"opening with a debt":   {func(v *voucher.Voucher) { v.Seq, v.Prev = 0, wire.Hash{} }, voucher.ErrOpening},
		"nothing promised":      {func(v *voucher.Voucher) { v.Amount = 0 }, voucher.ErrOrder},
		"no predecessor":        {func(v *voucher.Voucher) { v.Prev = wire.Hash{} }, voucher.ErrOrder},
		"no lane":               {func(v *voucher.Voucher) { v.Lane = ledger.Lane{} }, wire.ErrFormat},
		"long resource":         {func(v *voucher.Voucher) { v.Resource = string(make([]byte, 33)) }, wire.ErrFormat},
		"long checkpoint":       {func(v *voucher.Voucher) { v.Checkpoint = make([]byte, 1025) }, wire.ErrFormat},
		"owes itself":           {func(v *voucher.Voucher) { v.Channel.Provider = v.Channel.Renter }, ledger.ErrChannel},
		"no unit":               {func(v *voucher.Voucher) { v.Channel.Unit = "" }, money.ErrUnit},
		"another account's own": {func(v *voucher.Voucher) { v.Channel.Renter = identity.AccountID{5} }, voucher.ErrSigner},
	} {
		v := w.next(w.first, 1, 100)
		c.change(&v)
		if _, err := voucher.Sign(w.renter.dev, v); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		// A peer's own program signs what it likes: the reader judges alone.
		v.Header, v.Delegation = w.renter.dev.Header(1), w.renter.dev.DelegationHash()
		raw, err := w.renter.dev.Seal(voucher.DomainVoucher, v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := voucher.Open(raw); !errors.Is(err, c.want) {
			t.Errorf("%s: opened with %v, want %v", name, err, c.want)
		}
	}
	if _, err := voucher.Open(make([]byte, voucher.MaxVoucher+1)); !errors.Is(err, wire.ErrTooLarge) {
		t.Error(err)
	}
	if _, err := voucher.OpenReceipt(w.second.Raw); !errors.Is(err, identity.ErrSignature) {
		t.Error("a voucher passes as a receipt:", err)
	}
}

func proposal(w world) voucher.Settlement {
	return voucher.Settlement{
		Channel: w.lane.Channel.AllEpochs(), Nonce: wire.Hash{1}, Amount: 500, Method: "manual", Reference: "invoice 7", Time: 1,
		Lanes: []voucher.LaneAmount{{Lane: ledger.Lane{1}, Amount: 5}, {Lane: ledger.Lane{2}, Amount: 7}},
	}
}

func TestSettlement(t *testing.T) {
	w := newWorld(t)
	raw, err := voucher.SignSettlement(w.renter.dev, proposal(w))
	if err != nil {
		t.Fatal(err)
	}
	p, err := voucher.OpenSettlement(raw)
	if err != nil {
		t.Fatal(err)
	}
	hash := identity.Hash(raw)
	counter := func(dev *identity.Device, change func(*voucher.Settlement)) voucher.Settlement {
		c := p
		c.Proposal = hash
		if change != nil {
			change(&c)
		}
		raw, err := voucher.SignSettlement(dev, c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := voucher.OpenSettlement(raw)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	good := counter(w.provider.dev, nil)
	if err := voucher.Countersigned(p, hash, good); err != nil || good.ID() != p.ID() {
		t.Fatal(err)
	}
	for name, c := range map[string]voucher.Settlement{
		"own signature":     counter(w.renter.dev, nil),
		"own second device": counter(w.renter.second(t, identity.AllPowers, 1), nil),
		"other amount":      counter(w.provider.dev, func(s *voucher.Settlement) { s.Amount++ }),
		"other reference":   counter(w.provider.dev, func(s *voucher.Settlement) { s.Reference = "invoice 8" }),
		"other lanes":       counter(w.provider.dev, func(s *voucher.Settlement) { s.Lanes = s.Lanes[:1] }),
		"other nonce":       counter(w.provider.dev, func(s *voucher.Settlement) { s.Nonce[0]++ }),
		"other proposal":    counter(w.provider.dev, func(s *voucher.Settlement) { s.Proposal[0]++ }),
		"a proposal":        counter(w.provider.dev, func(s *voucher.Settlement) { s.Proposal = wire.Hash{} }),
	} {
		if err := voucher.Countersigned(p, hash, c); !errors.Is(err, voucher.ErrTerms) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := voucher.Countersigned(good, hash, p); !errors.Is(err, voucher.ErrTerms) {
		t.Error("a countersignature is countersigned:", err)
	}
	other := proposal(w)
	other.Nonce = wire.Hash{2}
	if other.Payment() != p.Payment() || other.ID() == p.ID() {
		t.Error("one payment, one reference; two proposals, two ids")
	}
	other.Reference = ""
	if !other.Payment().IsZero() {
		t.Error("a payment without a reference has no name")
	}
}

func TestSettlementValidate(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*voucher.Settlement){
		"nothing paid":   func(s *voucher.Settlement) { s.Amount = 0 },
		"too much":       func(s *voucher.Settlement) { s.Amount = money.Max + 1 },
		"no nonce":       func(s *voucher.Settlement) { s.Nonce = wire.Hash{} },
		"no method":      func(s *voucher.Settlement) { s.Method = "" },
		"long reference": func(s *voucher.Settlement) { s.Reference = string(make([]byte, 129)) },
		"lanes twice":    func(s *voucher.Settlement) { s.Lanes[1] = s.Lanes[0] },
		"too many lanes": func(s *voucher.Settlement) { s.Lanes = make([]voucher.LaneAmount, 257) },
		"a third party":  func(s *voucher.Settlement) { s.Channel.Renter = identity.AccountID{9} },
	} {
		s := proposal(w)
		change(&s)
		if _, err := voucher.SignSettlement(w.renter.dev, s); !errors.Is(err, voucher.ErrSettlement) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	w := newWorld(f)
	receipt, err := voucher.SignReceipt(w.provider.dev, voucher.Receipt{Voucher: w.second.Hash, Checkpoint: []byte("x")})
	if err != nil {
		f.Fatal(err)
	}
	settlement, err := voucher.SignSettlement(w.renter.dev, proposal(w))
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{w.first.Raw, w.second.Raw, receipt, settlement} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := voucher.Open(b); err == nil {
			_, _ = w.lane.Next(v, w.older)
		}
		_, _ = voucher.OpenReceipt(b)
		if s, err := voucher.OpenSettlement(b); err == nil {
			_ = voucher.Countersigned(s, identity.Hash(b), s)
		}
	})
}
