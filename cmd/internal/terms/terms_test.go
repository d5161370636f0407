package terms_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/terms"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/market/work"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// party is one account with real books.
type party struct {
	*books.Books
	dev *identity.Device
}

func newParty(t *testing.T) party {
	t.Helper()
	dev := markettest.Device(t)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(t.Context(), &kv.Memory{}, schema)
	must(t, err)
	b, err := books.Open(t.Context(), books.Config{
		Dir: t.TempDir(), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1_000_000, StrangersTotal: 1_000_000}},
	})
	must(t, err)
	t.Cleanup(func() { b.Close() })
	return party{b, dev}
}

// trade is a lease that was offered at 3.6 an hour (1 micro-unit a millisecond), ran for 60 s and was paid.
type trade struct {
	t                *testing.T
	renter, provider party
	accept           market.Accept
	offer            market.SealedOffer
	lane             ledger.Lane
	end              market.End
	signed           map[identity.Domain][]byte
	evidence         []byte // of the next interval
}

const rate, ran = money.Rate(3_600_000), 60_000

func newTrade(t *testing.T) *trade {
	t.Helper()
	w := &trade{t: t, renter: newParty(t), provider: newParty(t), signed: map[identity.Domain][]byte{}}
	o := markettest.Offer(w.provider.dev, 1, time.Now())
	o.Lots[1].Price = rate
	w.offer = markettest.Sealed(t, w.provider.dev, o)
	w.accept = markettest.Accept(w.renter.dev, w.offer, markettest.CPULot)
	w.lane = ledger.Lane(w.accept.ID())
	open := books.Opening{Channel: w.renter.Channel(w.provider.Self(), money.Credit), Lane: w.lane, Rate: rate, Devices: 1, Hold: 60_000}
	var first []byte
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) (err error) {
		if _, _, err = tx.KeepDelegation(w.provider.dev.Delegation()); err == nil {
			first, err = tx.Promise(open)
		}
		return err
	}))
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.OpenLane(open, first, w.renter.dev.Delegation()); return err }))
	w.accept.Voucher = identity.Hash(first)
	w.signed[market.DomainOffer] = w.offer.Raw
	w.order(w.accept)
	w.pay(ran/2, rate)
	w.pay(ran, rate)
	w.end = market.End{
		Header: w.provider.dev.Header(market.Version), Delegation: w.provider.dev.DelegationHash(), Lease: w.accept.ID(),
		Slots: []market.SlotGeneration{{Device: markettest.Hash("d"), Generation: 1}}, Reason: reason.New(reason.Completed, ""), Charge: ran, Billable: ran,
		Exit: &market.Exit{Code: 3},
	}
	w.sign(w.provider, market.DomainEnd, w.end)
	return w
}

func (w *trade) sign(p party, d identity.Domain, body identity.Body) {
	w.signed[d] = markettest.Seal(w.t, p.dev, d, body)
}

// order signs accept and lease.
func (w *trade) order(a market.Accept) {
	w.sign(w.renter, market.DomainAccept, a)
	l := markettest.Lease(w.t, w.provider.dev, w.offer, a, w.signed[market.DomainAccept], 1)
	l.ID = market.LeaseID(w.lane)
	w.sign(w.provider, market.DomainLease, l)
}

// pay signs for ms of running at a rate.
func (w *trade) pay(ms uint64, at money.Rate) {
	w.t.Helper()
	var raw []byte
	must(w.t, w.renter.Update(w.t.Context(), func(tx *books.Tx) (err error) {
		raw, err = tx.SignVoucher(w.lane, money.Micro(ms), []meter.Segment{{Rate: at, Devices: 1, Ms: ms}})
		return err
	}))
	var got books.Accepted
	must(w.t, w.provider.Update(w.t.Context(), func(tx *books.Tx) (err error) {
		if got, err = tx.AcceptVoucher(raw, voucher.EvidenceHash(w.evidence)); err == nil && w.evidence != nil {
			err = tx.KeepInterval(w.lane, books.Interval{At: 1, Evidence: w.evidence, Voucher: got.Lane.Seq})
		}
		return err
	}))
	must(w.t, w.renter.Update(w.t.Context(), func(tx *books.Tx) error { _, err := tx.RecordReceipt(got.Receipt); return err }))
}

// prove gives a party's file with the records.
func (w *trade) prove(p party) (f proof.File) {
	w.t.Helper()
	var list []proof.Attachment
	for _, d := range []identity.Domain{market.DomainOffer, market.DomainAccept, market.DomainLease, market.DomainEnd} {
		list = append(list, proof.Attachment{Name: string(d), Data: w.signed[d]})
	}
	must(w.t, p.View(w.t.Context(), func(r *books.Reader) (err error) { f, err = r.Prove(w.lane, proof.Attach(list)); return err }))
	return f
}

func encode(t *testing.T, f proof.File) []byte {
	t.Helper()
	raw, err := f.Encode()
	must(t, err)
	return raw
}

// TestWords: either side's file tells the whole story in words, and shows the rate again.
func TestWords(t *testing.T) {
	w := newTrade(t)
	for side, p := range map[string]party{"renter": w.renter, "provider": w.provider} {
		v := terms.Check(encode(t, w.prove(p)))
		if v.Result != proof.OK || len(v.Attachments) != 4 || len(v.Rates) != 1 || v.Rates[0].Rate != "3.6" || v.Rates[0].Millis != ran {
			t.Fatalf("%s's file: %+v", side, v)
		}
		var said strings.Builder
		for _, a := range v.Attachments {
			said.WriteString(a.Says + "\n")
		}
		for _, want := range []string{"orders 1 of lot 2 at 3.6", "lets 1 device for", "(completed) at 0.06 in all for 1m0s of running, exit code 3", "the provider's offer"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%s's file does not say %q:\n%s", side, want, said.String())
			}
		}
		proven := strings.Join(v.Proven, "\n")
		for _, want := range []string{"counted at the agreed rate, 3.6", "both sides say the same", "at the offer's price", "rate segments come to"} {
			if !strings.Contains(proven, want) {
				t.Errorf("%s's file does not prove %q:\n%s", side, want, proven)
			}
		}
	}
}

// lie is what somebody did to a file, and what a check says of it.
type lie struct {
	tell           func(w *trade, f *proof.File)
	result, record string
	says           string // part of the detail
}

// found checks that each lie is found from the file alone, and the record named.
func found(t *testing.T, lies map[string]lie) {
	t.Helper()
	for name, c := range lies {
		t.Run(name, func(t *testing.T) {
			w := newTrade(t)
			f := w.prove(w.provider)
			c.tell(w, &f)
			v := terms.Check(encode(t, f))
			if v.Result != c.result || v.Record != c.record || !strings.Contains(v.Detail, c.says) {
				t.Errorf("%s, %q: %s; want %s, %q: %s", v.Result, v.Record, v.Detail, c.result, c.record, c.says)
			}
		})
	}
}

// TestContradictions: a micro-unit between what was offered, ordered, vouched and ended is found.
func TestContradictions(t *testing.T) {
	found(t, map[string]lie{
		"voucher at one micro-unit less than was agreed": {func(w *trade, f *proof.File) {
			w.accept.Rate++
			w.order(w.accept)
			*f = w.prove(w.provider)
		}, proof.Forged, "rate segments", "at 3.6 an hour in segment 0, the order that account"},
		"order at one micro-unit less than was offered": {func(w *trade, f *proof.File) {
			w.accept.Rate--
			w.order(w.accept)
			*f = w.prove(w.provider)
		}, proof.Forged, "accept", "it says 3.599999 an hour, the offer asks 3.6"},
		"segments one micro-unit dearer": {func(_ *trade, f *proof.File) { f.Segments[0].Rate++ }, proof.Forged, "rate segments", "not those that voucher 2 was signed for"},
		"end one micro-unit over its time": {func(w *trade, f *proof.File) {
			w.end.Charge++
			w.sign(w.provider, market.DomainEnd, w.end)
			*f = w.prove(w.provider)
		}, proof.Forged, "end", "charges 0.060001 for 1m0s, which at the agreed 3.6 comes to 0.06"},
		"end of the renter's": {func(w *trade, f *proof.File) {
			w.end.Header, w.end.Delegation = w.renter.dev.Header(market.Version), w.renter.dev.DelegationHash()
			w.sign(w.renter, market.DomainEnd, w.end)
			*f = w.prove(w.provider)
		}, proof.Forged, "end", "is not the provider"},
		"order with another opening voucher": {func(w *trade, f *proof.File) {
			w.accept.Voucher[0]++
			w.order(w.accept)
			*f = w.prove(w.provider)
		}, proof.Forged, "accept", "another opening voucher"},
		"order for another lease": {func(w *trade, f *proof.File) {
			w.accept.Nonce[0]++
			w.order(w.accept)
			*f = w.prove(w.provider)
		}, proof.Forged, "accept", "it makes lease"},
		"order in another unit": {func(w *trade, f *proof.File) {
			w.accept.Unit = "EUR"
			w.order(w.accept)
			*f = w.prove(w.provider)
		}, proof.Forged, "accept", "in another unit"},
	})
}

// TestForgeries: a byte of a signed record, a second voucher of one sequence and a second head are found.
func TestForgeries(t *testing.T) {
	found(t, map[string]lie{
		"a byte of the receipt": {func(_ *trade, f *proof.File) {
			f.Receipt = bytes.Clone(f.Receipt)
			f.Receipt[len(f.Receipt)-1] ^= 1
		}, proof.Forged, "receipt", "signature"},
		"a byte of the end": {func(_ *trade, f *proof.File) {
			f.Attachments[3].Data = bytes.Clone(f.Attachments[3].Data)
			f.Attachments[3].Data[len(f.Attachments[3].Data)-1] ^= 1
		}, proof.Forged, `attachment 3 ("gpufair/end/1")`, "signature"},
		"two vouchers of one sequence": {func(w *trade, f *proof.File) {
			last, err := voucher.Open(f.Vouchers[len(f.Vouchers)-1])
			must(w.t, err)
			last.Amount--
			twin, err := voucher.Sign(w.renter.dev, last.Voucher)
			must(w.t, err)
			f.Vouchers = append(f.Vouchers, twin.Raw)
		}, proof.Forged, "voucher 2", "signed two with this sequence"},
		"two heads": {func(w *trade, f *proof.File) {
			r, err := voucher.OpenReceipt(f.Receipt)
			must(w.t, err)
			cp, err := history.Open(r.Checkpoint, w.provider.dev.Peer())
			must(w.t, err)
			cp.Root[0] ^= 1
			f.Checkpoint, err = cp.Sign(w.provider.dev.SignNote)
			must(w.t, err)
			f.Entries = nil
		}, proof.Forged, "checkpoint in receipt", "signed two histories of its log"},
	})
}

// TestUnequalEnd: an end over the vouchers proves nothing owed, one below them caps what the provider may ask for.
func TestUnequalEnd(t *testing.T) {
	w := newTrade(t)
	w.end.Billable += 1000
	w.end.Charge += 1000
	w.sign(w.provider, market.DomainEnd, w.end)
	if v := terms.Check(encode(t, w.prove(w.provider))); v.Result != proof.OK || !strings.Contains(strings.Join(v.NotProven, "\n"), "that 0.061 is owed") {
		t.Errorf("over: %+v", v)
	}
	w.end.Charge -= 2000
	w.sign(w.provider, market.DomainEnd, w.end)
	if v := terms.Check(encode(t, w.prove(w.renter))); v.Result != proof.OK || !strings.Contains(strings.Join(v.Proven, "\n"), "asks for no more than 0.059 in all") {
		t.Errorf("below: %+v", v)
	}
}

// TestCreditNote: what both agreed on after a dispute is the most that is left, whatever was allowed for an absence before, and the dispute's
// records are put in words.
func TestCreditNote(t *testing.T) {
	w := newTrade(t)
	var raw []byte
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) (err error) {
		raw, err = tx.SignAllowance(w.lane, 100_000, 1_796_050_800_000)
		return err
	}))
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.Allow(raw); return err }))
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) (err error) {
		raw, err = tx.OpenDispute(w.lane, "it never ran", 14*24*60*60*1000)
		return err
	}))
	w.end.Billable, w.end.Charge = 90_000, 90_000
	w.sign(w.provider, market.DomainEnd, w.end)
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { return tx.RecordDispute(raw) }))
	for _, p := range []party{w.renter, w.provider} {
		must(t, p.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.CloseLane(w.lane, 60_000); return err }))
	}
	note := func(p party) (d books.Dispute) {
		must(t, p.View(t.Context(), func(r *books.Reader) (err error) { d, err = r.Dispute(w.lane); return err }))
		return d
	}
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) error { return tx.OfferCredit(w.lane, 30_000) }))
	offered := note(w.renter).Offer
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { return tx.RecordNote(offered) }))
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { return tx.OfferCredit(w.lane, 30_000) }))
	countered := note(w.provider).Counter
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) error { return tx.RecordNote(countered) }))
	for side, p := range map[string]party{"renter": w.renter, "provider": w.provider} {
		v := terms.Check(encode(t, w.prove(p)))
		if v.Result != proof.OK || v.LeftAtMost != "0.03" {
			t.Errorf("%s's file: %+v", side, v)
		}
		var said strings.Builder
		for _, a := range v.Attachments {
			said.WriteString(a.Says + "\n")
		}
		for _, want := range []string{"the renter disputes the lease (\"it never ran\")", "the renter proposes that the lease comes to 0.03", "the provider agrees that"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%s's file says %q, not %q", side, said.String(), want)
			}
		}
	}
}

// TestAway: an allowance is a promise to sign and no debt; what it makes of an end that the renter never paid is told apart.
func TestAway(t *testing.T) {
	w := newTrade(t)
	var raw []byte
	must(t, w.renter.Update(t.Context(), func(tx *books.Tx) (err error) {
		raw, err = tx.SignAllowance(w.lane, 100_000, 1_796_050_800_000)
		return err
	}))
	must(t, w.provider.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.Allow(raw); return err }))
	w.end.Billable, w.end.Charge = 90_000, 90_000
	w.sign(w.provider, market.DomainEnd, w.end)
	for side, p := range map[string]party{"renter": w.renter, "provider": w.provider} {
		v := terms.Check(encode(t, w.prove(p)))
		if v.Result != proof.OK || v.Promised != "0.06" || v.Allowed != "0.1" || v.LeftAtLeast != "0.06" || v.LeftAtMost != "0.09" {
			t.Errorf("%s's file: %+v", side, v)
		}
		if !strings.Contains(strings.Join(v.Proven, "\n"), "0.09, is within what account") || !strings.Contains(strings.Join(v.NotProven, "\n"), "that the job ran for more than 0.06") {
			t.Errorf("%s's file: proven %q, not proven %q", side, v.Proven, v.NotProven)
		}
	}
	w.end.Billable, w.end.Charge = 110_000, 110_000
	w.sign(w.provider, market.DomainEnd, w.end)
	if v := terms.Check(encode(t, w.prove(w.provider))); v.LeftAtMost != "0.1" || !strings.Contains(strings.Join(v.NotProven, "\n"), "that 0.11 is owed") {
		t.Errorf("an end over the allowance: %+v", v)
	}
	f := w.prove(w.provider)
	f.Allowance = bytes.Clone(f.Allowance)
	f.Allowance[len(f.Allowance)-1] ^= 1
	if v := terms.Check(encode(t, f)); v.Result != proof.Forged || v.Record != "allowance" {
		t.Errorf("a byte of the allowance: %+v", v)
	}
}

// TestUsed: the evidence of the newest receipt is shown, and another one found.
func TestUsed(t *testing.T) {
	w := newTrade(t)
	evidence, err := wire.Marshal(work.Evidence{Beat: 9, From: 1, To: 2, Billable: ran, Charge: ran, State: work.Running, CPUMillis: 59_000, MemoryMiB: 7})
	must(t, err)
	w.evidence = evidence
	w.pay(ran+1000, rate)
	w.end.Billable, w.end.Charge = ran+1000, ran+1000
	w.sign(w.provider, market.DomainEnd, w.end)
	f := w.prove(w.provider)
	if v := terms.Check(encode(t, f)); v.Result != proof.OK || !strings.Contains(v.Evidence, "59s of CPU time, 7 MiB") {
		t.Errorf("%+v", v)
	}
	f.Evidence[len(f.Evidence)-1]++
	if v := terms.Check(encode(t, f)); v.Result != proof.Corrupt || v.Record != "evidence" {
		t.Errorf("other evidence: %+v", v)
	}
}
