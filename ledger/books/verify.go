package books

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Results of a check, from best to worst. Commands have an exit code for each.
const (
	ResultOK      = "ok"
	ResultBehind  = "behind"  // shorter than the head note
	ResultCorrupt = "corrupt" // records that do not fit each other
	ResultForged  = "forged"  // records that do not fit their signatures
)

// Finding is what Verify found to be wrong first.
type Finding struct {
	Result string
	Entry  string // the entry, lane, voucher or settlement
	Detail string
}

// Error names the thing and what is wrong with it.
func (f *Finding) Error() string { return fmt.Sprintf("%s: %s: %s", f.Result, f.Entry, f.Detail) }

func forged(what string, err error) error {
	return &Finding{Result: ResultForged, Entry: what, Detail: err.Error()}
}

func corrupt(what, format string, args ...any) error {
	return &Finding{Result: ResultCorrupt, Entry: what, Detail: fmt.Sprintf(format, args...)}
}

// audit is one run of Verify.
type audit struct {
	r        *Reader
	checked  uint64 // signatures
	grown    history.Frontier
	ids      digest // of the entries' idempotency keys
	balances map[string]int64
	owed     map[string]int64      // by account record key
	lanes    map[ledger.Lane]int64 // usage less corrections
	settled  map[string]money.Micro
	listed   map[ledger.Lane]money.Micro // by settlements that both signed
	signed   map[wire.Hash]settledBy     // by entry id
	netted   map[wire.Hash]nettedBy      // by entry id
	forks    int                         // proofs against other devices
	headNote headNote                    // as it was before the snapshot; Size 0 and no checkpoint if there is none
}

// settledBy is a settlement with its parts.
type settledBy struct {
	terms voucher.Settlement
	kept  Settled
}

// Verify computes everything again from the entries and the signed records of one snapshot: ids, zero sums, balances, what each
// counterparty owes, log root against head and head note, every signature and sequence of vouchers, receipts and settlements, vouchers
// against postings, and the rate arithmetic where the segments are here. The verdict names the first thing that is wrong; the error is
// only for what kept it from looking.
func (b *Books) Verify(ctx context.Context) (statement.Verdict, error) {
	var v statement.Verdict
	note, _, noteErr := readHead(b.disk) // before the snapshot, which then can only be longer
	if noteErr != nil {
		v.Result, v.Entry, v.Detail = ResultCorrupt, "head note", noteErr.Error()
		return v, nil
	}
	err := b.View(ctx, func(r *Reader) error {
		h, err := r.head()
		if err != nil {
			return err
		}
		v.Entries, v.Root, v.Result = h.Size, h.Root.String(), ResultOK
		a := &audit{
			r: r, balances: map[string]int64{}, owed: map[string]int64{}, lanes: map[ledger.Lane]int64{}, settled: map[string]money.Micro{},
			listed: map[ledger.Lane]money.Micro{}, signed: map[wire.Hash]settledBy{}, headNote: note,
		}
		err = a.run(h)
		v.Checked, v.Forks = a.checked, a.forks
		return err
	})
	var f *Finding
	switch {
	case errors.As(err, &f):
		v.Result, v.Entry, v.Detail = f.Result, f.Entry, f.Detail
		return v, nil
	case errors.Is(err, ErrBehind):
		v.Result, v.Detail = ResultBehind, err.Error()
		return v, nil
	case errors.Is(err, ErrForged):
		v.Result, v.Detail = ResultForged, err.Error()
		return v, nil
	case errors.Is(err, ErrCorrupt), errors.Is(err, kv.ErrDamaged):
		v.Result, v.Detail = ResultCorrupt, err.Error()
		return v, nil
	}
	if err == nil {
		v.Detail = fits(v)
	}
	return v, err
}

func (a *audit) run(h head) error {
	promises := a.startPromises()
	defer promises.stop()
	for _, step := range []func() error{
		a.settlements, a.clearings, a.entries, a.allNetted, func() error { return a.log(h) }, a.checkBalances, promises.wait, a.checkLanes,
		a.checkAccounts, a.exposed, a.disputes, a.frauds, a.accountKeys, a.note, a.witnesses, a.shown, a.store,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return a.r.b.readOnlyCause()
}

// frauds checks the proofs that a lane's device signed two vouchers with one sequence.
func (a *audit) frauds() error {
	return each(a.r.own, "fraud/", func(lane []byte, f fraud) error {
		a.checked += 2
		if err := f.check(lane); err != nil {
			return forged(fmt.Sprintf("proof against lane %x", lane), err)
		}
		return nil
	})
}

func (b *Books) readOnlyCause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readOnly
}

// posting adds one posting to the sums.
func (a *audit) posting(e ledger.Entry, p ledger.Posting) error {
	add := func(m map[string]int64, k string, v int64) error {
		sum, err := ledger.AddSigned(m[k], v)
		m[k] = sum
		return err
	}
	if err := add(a.balances, string(balanceKey(p.Unit, p.Account)), p.Amount); err != nil {
		return err
	}
	var err error
	var sum int64
	switch p.Account.Kind {
	case ledger.Receivable:
		err, sum = add(a.owed, string(accountKey(ledger.AsProvider, p.Unit, p.Account.Peer)), p.Amount), p.Amount
	case ledger.Payable:
		err, sum = add(a.owed, string(accountKey(ledger.AsRenter, p.Unit, p.Account.Peer)), -p.Amount), -p.Amount
	}
	if e.Lane != (ledger.Lane{}) && (e.Kind == ledger.KindUsage || e.Kind == ledger.KindCorrection) {
		a.lanes[e.Lane] += sum
	}
	return err
}

// settlements reads all settlements.
func (a *audit) settlements() error {
	return a.r.Settlements(func(id wire.Hash, s voucher.Settlement, v Settled) error {
		a.checked++
		a.signed[ledger.EntryID(ledger.KindSettlement, id)] = settledBy{terms: s, kept: v}
		return nil
	})
}

// settlement checks both signatures of a settlement's entry, and its amount.
func (a *audit) settlement(name string, e ledger.Entry) error {
	got, ok := a.signed[e.ID]
	if !ok {
		return corrupt(name, "the signed settlement is missing")
	}
	s := got.terms
	c, err := voucher.OpenSettlement(got.kept.Counter)
	if err != nil {
		return forged(name, err)
	}
	a.checked++
	if err := voucher.Countersigned(s, identity.Hash(got.kept.Proposal), c); err != nil {
		return forged(name, err)
	}
	for _, signer := range []voucher.Settlement{s, c} {
		if err := a.r.checkSettler(signer); err != nil {
			return forged(name, err)
		}
	}
	if amount := e.Postings[0].Amount; amount != int64(s.Amount) {
		return corrupt(name, "it books %s, both signed %v", signed(amount), s.Amount)
	}
	role, err := a.r.role(s.Channel)
	if err != nil {
		return forged(name, err)
	}
	for _, la := range s.Lanes {
		a.listed[la.Lane] = max(a.listed[la.Lane], la.Amount)
	}
	k := string(accountKey(role, s.Channel.Unit, e.Peer))
	a.settled[k], err = money.Add(a.settled[k], s.Amount)
	return err
}

func (a *audit) checkBalances() error {
	left := maps.Clone(a.balances)
	for p, err := range a.r.own.Iterate([]byte("bal/"), nil) {
		if err != nil {
			return err
		}
		have, err := a.r.balanceAt(p.Key)
		if err != nil {
			return err
		}
		if have != left[string(p.Key)] {
			return corrupt(fmt.Sprintf("balance %q", p.Key), "it is %s, the entries sum up to %s", signed(have), signed(left[string(p.Key)]))
		}
		delete(left, string(p.Key))
	}
	for k, v := range left {
		if v != 0 {
			return corrupt(fmt.Sprintf("balance %q", k), "it is missing, the entries sum up to %s", signed(v))
		}
	}
	return nil
}

// checkLanes checks every lane's amount against the postings and the settlements.
func (a *audit) checkLanes() error {
	return a.r.EachLane(func(l Lane) error {
		name := "lane " + l.Lane.Short()
		owed, err := ledger.Signed(l.Owed())
		if err != nil {
			return corrupt(name, "%v", err)
		}
		if a.lanes[l.Lane] != owed {
			return corrupt(name, "its vouchers promise %v, its entries book %s", l.Owed(), signed(a.lanes[l.Lane]))
		}
		if a.listed[l.Lane] != l.Settled {
			return corrupt(name, "%v of it count as settled, the settlements list %v", l.Settled, a.listed[l.Lane])
		}
		delete(a.lanes, l.Lane)
		return nil
	})
}

// vouchers checks signature, order and receipt of each voucher of a lane.
func (a *audit) vouchers(name string, l Lane) error {
	powers, err := a.r.delegation(l.Proof)
	if err != nil {
		return forged(name, err)
	}
	rules := voucher.Lane{Channel: l.Channel, Lane: l.Lane, Device: l.Device, Powers: powers, Proof: l.Proof}
	var newest wire.Hash // the newest voucher's receipt
	var receipts uint64
	for o, err := range a.opened(l) {
		if err != nil {
			return err
		}
		v := o.v
		if o.err != nil {
			return forged(fmt.Sprintf("voucher of %s", name), o.err)
		}
		a.checked++
		what := fmt.Sprintf("voucher %d of %s", v.Seq, name)
		if string(o.key) != string(voucherKey(l.Lane, v.Seq)) {
			return corrupt(what, "it is kept in another's place")
		}
		if _, err := rules.Next(v, func(uint64) []byte { return nil }); err != nil {
			return forged(what, err)
		}
		rules.Last = &v
		newest, err = a.receipt(what, l, o)
		if err != nil {
			return err
		}
		if !newest.IsZero() {
			receipts = v.Seq
		}
	}
	if receipts != l.Receipts || newest != l.Receipt {
		return corrupt(name, "it is not at its newest receipt")
	}
	last := rules.Last
	if last == nil || last.Hash != l.Voucher || last.Amount != l.Amount || last.Seq != l.Seq || last.Quantity != l.Quantity {
		return corrupt(name, "it is not at its newest voucher")
	}
	return nil
}

// rate computes the newest amount of a lane again: from the segments that were signed, if they are here.
func (a *audit) rate(name string, l Lane) error {
	s, ok, err := load[segments](a.r.own, key("seg/", l.Lane[:]))
	if err != nil || !ok || s.Voucher != l.Voucher {
		return err
	}
	b, err := a.r.Voucher(l.Lane, l.Seq)
	if err != nil {
		return err
	}
	v, err := voucher.Open(b)
	if err != nil {
		return forged(name, err)
	}
	digest, err := meter.Hash(s.Segments)
	if err != nil {
		return err
	}
	most, err := meter.Charge(s.Segments)
	if err != nil {
		return corrupt(name, "%v", err)
	}
	if digest != v.Segments || v.Amount > most {
		return corrupt(name, "voucher %d promises %v, its rate segments come to %v", v.Seq, v.Amount, most)
	}
	return nil
}

// checkAccounts compares what each counterparty owes and has open with the sums over entries and lanes.
func (a *audit) checkAccounts() error {
	open, count, err := a.open()
	if err != nil {
		return err
	}
	for p, err := range a.r.own.Iterate([]byte("acct/"), nil) {
		if err != nil {
			return err
		}
		role, unit, size, err := splitAccountKey(p.Key)
		if err != nil {
			return err
		}
		have, peer, err := decodeAccount(p, size)
		if err != nil {
			return err
		}
		k := string(p.Key)
		if have.Lanes != count[k] {
			return corrupt("account "+peer.String(), "it counts %d lanes, there are %d", have.Lanes, count[k])
		}
		if have.Owed != a.owed[k] || have.Open != open[k] || have.Settled != a.settled[k] {
			return corrupt("account "+peer.String(), "it owes %s, has %v open and settled %v; the entries and lanes say %s, %v and %v",
				signed(have.Owed), have.Open, have.Settled, signed(a.owed[k]), open[k], a.settled[k])
		}
		if err := a.checkDue("account "+peer.String(), role, unit, peer, have); err != nil {
			return err
		}
		delete(a.owed, k)
	}
	for k, v := range a.owed {
		if v != 0 {
			return corrupt(fmt.Sprintf("account record %q", k), "it is missing, the entries sum up to %s", signed(v))
		}
	}
	for lane, v := range a.lanes {
		if v != 0 {
			return corrupt("lane "+lane.Short(), "it is missing, its entries book %s", signed(v))
		}
	}
	return nil
}

// open sums up what is open over lanes and holds, and counts the lanes, by account record key.
func (a *audit) open() (open map[string]money.Micro, count map[string]uint64, err error) {
	open, count = map[string]money.Micro{}, map[string]uint64{}
	add := func(c ledger.Channel, amount money.Micro, lanes uint64) error {
		role, err := a.r.role(c)
		if err != nil {
			return err
		}
		k := string(accountKey(role, c.Unit, c.Peer(a.r.b.self)))
		count[k] += lanes
		open[k], err = money.Add(open[k], amount)
		return err
	}
	if err := a.r.EachLane(func(l Lane) error { return add(l.Channel, l.Open(), 1) }); err != nil {
		return nil, nil, err
	}
	for p, err := range a.r.own.Iterate([]byte("hold/"), nil) {
		if err != nil {
			return nil, nil, err
		}
		var h Held
		if err := wire.UnmarshalStrict(p.Value, &h); err != nil {
			return nil, nil, corrupt(fmt.Sprintf("hold %x", p.Key), "%v", err)
		}
		if err := add(h.Channel, h.Left, 0); err != nil {
			return nil, nil, err
		}
	}
	return open, count, nil
}

// note compares the log with the head note on disk.
func (a *audit) note() error {
	if a.headNote.Checkpoint == "" {
		return nil
	}
	a.checked++
	return a.r.checkHead(a.headNote)
}
