package proof_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/kv"
	"github.com/gpufair/gpufair/ledger/meter"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/ledger/proof"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/ledger/voucher"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// party is one account with real books over a store in memory.
type party struct {
	*books.Books
	tb  testing.TB
	dev *identity.Device
}

func newParty(tb testing.TB) *party {
	tb.Helper()
	_, _, dev, err := identity.Generate()
	must(tb, err)
	schema := kv.Schema{Release: "v0.0.1", Steps: []kv.Step{{Number: 1, Name: "first", Run: func(context.Context, *kv.Txn) error { return nil }}}}
	store, err := kv.Open(tb.Context(), &kv.Memory{}, schema)
	must(tb, err)
	b, err := books.Open(tb.Context(), books.Config{
		Dir: filepath.Join(tb.TempDir(), "ledger"), Store: store, Device: dev, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Limits: map[money.Unit]ledger.Limits{money.Credit: {Stranger: 1_000_000, StrangersTotal: 10_000_000, KnownPercent: 50, KnownCap: 1_000_000}},
	})
	must(tb, err)
	tb.Cleanup(func() { b.Close() })
	return &party{b, tb, dev}
}

func (p *party) update(f func(*books.Tx) error) {
	p.tb.Helper()
	must(p.tb, p.Update(p.tb.Context(), f))
}

// prove gives the party's file about a lane.
func (p *party) prove(lane ledger.Lane, attached ...proof.Attachment) (f proof.File) {
	p.tb.Helper()
	must(p.tb, p.View(p.tb.Context(), func(r *books.Reader) (err error) {
		f, err = r.Prove(lane, attached)
		return err
	}))
	return f
}

// attach seals a record about a lane, as an agent would keep one.
func (p *party) attach(name string, lane ledger.Lane) proof.Attachment {
	p.tb.Helper()
	raw, err := p.dev.Seal(identity.Domain(name), struct {
		identity.Header
		Delegation wire.Hash   `cbor:"4,keyasint"`
		Lane       ledger.Lane `cbor:"5,keyasint"`
		Charge     uint64      `cbor:"8,keyasint"`
	}{p.dev.Header(1), p.dev.DelegationHash(), lane, 7})
	must(p.tb, err)
	return proof.Attachment{Name: name, Data: raw}
}

// world is two parties that did business.
type world struct{ renter, provider *party }

const perMs = 3_600_000 // micro-units per device-hour: one per millisecond

var lease, otherLease = ledger.Lane{1}, ledger.Lane{2}

// newWorld: a lease came to 3,000 and was paid, then went on to 7,000 while another was opened.
func newWorld(tb testing.TB) world {
	tb.Helper()
	w := world{newParty(tb), newParty(tb)}
	w.renter.update(func(t *books.Tx) error { _, _, err := t.KeepDelegation(w.provider.dev.Delegation()); return err })
	w.sell(lease)
	w.pay(lease, 3000)
	w.settle(3000)
	w.sell(otherLease)
	w.pay(otherLease, 500)
	w.pay(lease, 5000)
	w.pay(lease, 7000)
	return w
}

func (w world) sell(lane ledger.Lane) {
	o := books.Opening{Channel: w.renter.Channel(w.provider.Self(), money.Credit), Lane: lane, Rate: perMs, Devices: 1, Hold: 2000}
	var first []byte
	w.renter.update(func(t *books.Tx) (err error) { first, err = t.Promise(o); return err })
	w.provider.update(func(t *books.Tx) error { _, err := t.OpenLane(o, first, w.renter.dev.Delegation()); return err })
}

func (w world) promise(lane ledger.Lane, amount money.Micro) (raw []byte) {
	first := min(uint64(amount), 1000)
	w.renter.update(func(t *books.Tx) (err error) {
		raw, err = t.SignVoucher(lane, amount, []meter.Segment{
			{Rate: perMs, Devices: 1, Ms: first}, {Rate: perMs / 2, Devices: 2, Ms: uint64(amount) - first},
		})
		return err
	})
	return raw
}

func (w world) pay(lane ledger.Lane, amount money.Micro) {
	raw := w.promise(lane, amount)
	var a books.Accepted
	w.provider.update(func(t *books.Tx) (err error) { a, err = t.AcceptVoucher(raw, wire.Hash{1}); return err })
	w.renter.update(func(t *books.Tx) error { _, err := t.RecordReceipt(a.Receipt); return err })
}

func (w world) settle(amount money.Micro) { w.settleAs(amount, "transfer 1") }

func (w world) settleAs(amount money.Micro, reference string) {
	var id wire.Hash
	var proposal, counter []byte
	w.renter.update(func(t *books.Tx) (err error) {
		id, proposal, err = t.Propose(books.Payment{
			Channel: w.renter.Channel(w.provider.Self(), money.Credit), Amount: amount, Method: "manual", Reference: reference,
		})
		return err
	})
	w.provider.update(func(t *books.Tx) (err error) {
		if _, _, err = t.RecordProposal(proposal); err == nil {
			counter, err = t.Countersign(id)
		}
		return err
	})
	w.renter.update(func(t *books.Tx) error { _, err := t.RecordCounter(counter); return err })
}

func encode(tb testing.TB, f proof.File) []byte {
	tb.Helper()
	raw, err := f.Encode()
	must(tb, err)
	return raw
}

// TestBothSides: either side's file shows the same debt; who made it shows in what is proven only.
func TestBothSides(t *testing.T) {
	w := newWorld(t)
	for name, side := range map[string]*party{"renter": w.renter, "provider": w.provider} {
		raw := encode(t, side.prove(lease, w.provider.attach("gpufair/lease/1", lease), w.renter.attach("gpufair/release/1", lease)))
		got := proof.Check(raw)
		want := statement.Proof{
			Result: "ok", Lease: lease.String(), Renter: w.renter.Self().String(), Provider: w.provider.Self().String(), MadeBy: side.Self().String(),
			Unit: "CREDIT", Promised: "0.007", Sequence: 3, Received: "0.007", Booked: "0.007",
			PaidAtLeast: "0.003", PaidAtMost: "0.003", LeftAtLeast: "0.004", LeftAtMost: "0.004",
		}
		if name == "renter" {
			want.Rates = []statement.ProofRate{{Rate: "3.6", Devices: 1, Millis: 1000, Charge: "0.001"}, {Rate: "1.8", Devices: 2, Millis: 6000, Charge: "0.006"}}
		}
		short := got
		short.Voucher, short.Settlements, short.Attachments, short.Origin, short.Entries, short.Root, short.Proven, short.NotProven = "", nil, nil, "", 0, "", nil, nil
		if diff := cmp.Diff(want, short); diff != "" {
			t.Errorf("%s's file (-want +got):\n%s", name, diff)
		}
		if len(got.Settlements) != 1 || len(got.Settlements[0].Signed) != 2 || got.Settlements[0].Listed != "0.003" || len(got.Attachments) != 2 {
			t.Errorf("%s's file: %+v, %+v", name, got.Settlements, got.Attachments)
		}
		text := strings.Join(got.NotProven, "\n")
		if strings.Contains(text, "rate segments") != (name == "provider") || !strings.Contains(text, "no newer voucher") {
			t.Errorf("%s's file, not proven:\n%s", name, text)
		}
		if again := encode(t, mustDecode(t, raw)); !bytes.Equal(again, raw) {
			t.Errorf("%s's file has a second form", name)
		}
		if len(raw) > 16<<10 {
			t.Errorf("%s's file has %d bytes", name, len(raw))
		}
	}
}

func mustDecode(tb testing.TB, raw []byte) proof.File {
	tb.Helper()
	f, err := proof.Decode(raw)
	must(tb, err)
	return f
}

// figures is what a person acts on.
func figures(tb testing.TB, p statement.Proof) string {
	tb.Helper()
	p.Detail, p.Proven, p.NotProven, p.Booked = "", nil, nil, ""
	b, err := json.Marshal(p)
	must(tb, err)
	return string(b)
}

// resum makes the sum of a changed file right again, as a forger would.
func resum(raw []byte) []byte {
	head, body, _ := bytes.Cut(raw, []byte("\n"))
	magic, _, _ := bytes.Cut(head, []byte(" "))
	return slices.Concat(magic, []byte(" "+wire.Sum("gpufair/proof/1", body).String()+"\n"), body)
}

// TestEveryRegion changes bytes all over the file: as damage, which the sum finds, and as a forger who makes the sum right, who gets no
// other figures.
func TestEveryRegion(t *testing.T) {
	w := newWorld(t)
	raw := encode(t, w.renter.prove(lease, w.provider.attach("gpufair/lease/1", lease)))
	want := figures(t, proof.Check(raw))
	start := bytes.IndexByte(raw, '\n') + 1
	checked, harmless := 0, 0
	for i := range len(raw) {
		if i%29 != 0 && i >= start { // a check has 20 signatures, and hashes have 32 bytes
			continue
		}
		bad := bytes.Clone(raw)
		bad[i] ^= 1 << (i % 8)
		if got := proof.Check(bad); got.Result != proof.Corrupt || got.Promised != "" {
			t.Fatalf("byte %d of %d flipped: %+v", i, len(raw), got)
		}
		if i < start {
			continue
		}
		checked++
		if got := proof.Check(resum(bad)); got.Result == proof.OK {
			harmless++
			if figures(t, got) != want {
				t.Fatalf("byte %d of %d flipped and the sum made right: %+v", i, len(raw), got)
			}
		}
	}
	if harmless > 2 { // the two counts of what was left out
		t.Errorf("%d of %d flips did nothing", harmless, checked)
	}
	for _, n := range []int{0, 1, start - 1, start, len(raw) / 2, len(raw) - 1} {
		if got := proof.Check(raw[:n]); got.Result != proof.Corrupt || got.Record != "file" {
			t.Errorf("cut after %d bytes: %+v", n, got)
		}
		whole := max(n, start)
		if got := proof.Check(resum(append(bytes.Clone(raw[:whole]), raw[whole]^1))); got.Result == proof.OK {
			t.Errorf("cut after %d bytes and the sum made right: %+v", n, got)
		}
	}
}

// sign makes a voucher of the world's renter that follows prev.
func (w world) sign(tb testing.TB, f proof.File, lane ledger.Lane, seq uint64, amount money.Micro, prev []byte) []byte {
	tb.Helper()
	like, err := voucher.Open(f.Vouchers[0])
	must(tb, err)
	v, err := voucher.Sign(w.renter.dev, voucher.Voucher{
		Channel: f.Channel, Lane: lane, Seq: seq, Amount: amount, Quantity: 1, Resource: meter.Resource, Prev: identity.Hash(prev), Checkpoint: like.Checkpoint,
	})
	must(tb, err)
	return v.Raw
}

// wrong is a whole file with a right sum in which something is wrong.
type wrong struct {
	side           *party
	change         func(*proof.File)
	result, record string
}

// found checks that each is found, and named.
func found(t *testing.T, cases map[string]wrong) {
	t.Helper()
	for name, c := range cases {
		f := c.side.prove(lease)
		c.change(&f)
		got := proof.Check(encode(t, f))
		if got.Result != c.result || !strings.HasPrefix(got.Record, c.record) || got.Detail == "" {
			t.Errorf("%s: %s, %q: %q; want %s, %q", name, got.Result, got.Record, got.Detail, c.result, c.record)
		}
	}
}

// TestChangedFiles are files from which somebody took something, or put something else in.
func TestChangedFiles(t *testing.T) {
	w := newWorld(t)
	stranger := newParty(t)
	renterOther, providerOther := w.renter.prove(otherLease), w.provider.prove(otherLease)
	found(t, map[string]wrong{
		"rate one micro-unit more": {w.renter, func(f *proof.File) { f.Segments[1].Rate++ }, proof.Forged, "rate segments"},
		"rate one micro-unit less": {w.renter, func(f *proof.File) { f.Segments[0].Rate-- }, proof.Forged, "rate segments"},
		"a device more":            {w.renter, func(f *proof.File) { f.Segments[0].Devices++ }, proof.Forged, "rate segments"},
		"a millisecond less":       {w.renter, func(f *proof.File) { f.Segments[0].Ms-- }, proof.Forged, "rate segments"},
		"no opening voucher":       {w.renter, func(f *proof.File) { f.Vouchers = f.Vouchers[1:] }, proof.Corrupt, "voucher 3"},
		"no voucher":               {w.renter, func(f *proof.File) { f.Vouchers = nil }, proof.Corrupt, "voucher 0"},
		"vouchers out of order":    {w.renter, func(f *proof.File) { slices.Reverse(f.Vouchers) }, proof.Corrupt, "voucher 3"},
		"other lease's voucher":    {w.provider, func(f *proof.File) { f.Vouchers[1] = renterOther.Vouchers[1] }, proof.Corrupt, "voucher 1"},
		"other lease's vouchers":   {w.provider, func(f *proof.File) { f.Vouchers = renterOther.Vouchers }, proof.Corrupt, "voucher 0"},
		"other lease's receipt":    {w.renter, func(f *proof.File) { f.Receipt = renterOther.Receipt }, proof.Corrupt, "receipt"},
		"other lease's entries":    {w.provider, func(f *proof.File) { f.Entries = providerOther.Entries }, proof.Corrupt, "entry"},
		"other side's entries":     {w.provider, func(f *proof.File) { f.Entries = w.renter.prove(lease).Entries }, proof.Forged, "entry"},
		"other side's head":        {w.provider, func(f *proof.File) { f.Checkpoint = w.renter.prove(lease).Checkpoint }, proof.Corrupt, "checkpoint"},
		"other lease's attachment": {w.provider, func(f *proof.File) {
			f.Attachments = []proof.Attachment{w.provider.attach("gpufair/end/1", otherLease)}
		}, proof.Corrupt, "attachment 0"},
		"a stranger's attachment": {w.provider, func(f *proof.File) { f.Attachments = []proof.Attachment{stranger.attach("gpufair/end/1", lease)} }, proof.Corrupt, "attachment 0"},
		"attachment under another name": {w.provider, func(f *proof.File) {
			a := w.provider.attach("gpufair/end/1", lease)
			a.Name = "gpufair/lease/1"
			f.Attachments = append(f.Attachments, a)
		}, proof.Forged, "attachment 0"},
		"no delegation": {w.renter, func(f *proof.File) { f.Delegations = nil }, proof.Corrupt, "voucher 0"},
		"no receipt's delegation": {w.renter, func(f *proof.File) {
			f.Delegations = slices.DeleteFunc(f.Delegations, func(b []byte) bool { return bytes.Equal(b, w.provider.dev.Delegation()) })
		}, proof.Corrupt, "receipt"},
		"a stranger's file":            {w.renter, func(f *proof.File) { f.Account = stranger.Self() }, proof.Corrupt, "channel"},
		"another renter":               {w.provider, func(f *proof.File) { f.Channel.Renter = stranger.Self() }, proof.Corrupt, "voucher 0"},
		"another unit":                 {w.renter, func(f *proof.File) { f.Channel.Unit = "EUR" }, proof.Corrupt, "voucher 0"},
		"another lane":                 {w.renter, func(f *proof.File) { f.Lane = otherLease }, proof.Corrupt, "voucher 0"},
		"an entry in another place":    {w.renter, func(f *proof.File) { f.Entries[1].Index++ }, proof.Forged, "entry"},
		"an entry with another salt":   {w.renter, func(f *proof.File) { f.Entries[1].Leaf[0]++ }, proof.Forged, "entry"},
		"an entry twice":               {w.renter, func(f *proof.File) { f.Entries = append(f.Entries, f.Entries[len(f.Entries)-1]) }, proof.Corrupt, "entry"},
		"no extension":                 {w.renter, func(f *proof.File) { f.Extensions = f.Extensions[1:] }, proof.Corrupt, "checkpoint in"},
		"no settlement, but its entry": {w.renter, func(f *proof.File) { f.Settlements = nil }, proof.Corrupt, "entry"},
		"no settlement's entry": {w.renter, func(f *proof.File) {
			f.Entries = slices.DeleteFunc(f.Entries, func(e proof.Entry) bool { return entryKind(t, e) == ledger.KindSettlement })
		}, proof.Corrupt, "entries"},
		"settlement twice":               {w.renter, func(f *proof.File) { f.Settlements = append(f.Settlements, f.Settlements[0]) }, proof.Corrupt, "settlement"},
		"countersigned by the same side": {w.renter, func(f *proof.File) { f.Settlements[0].Counter = f.Settlements[0].Proposal }, proof.Forged, "settlement"},
	})
}

// TestForgedRecords are files with records that somebody signed for them.
func TestForgedRecords(t *testing.T) {
	w := newWorld(t)
	stranger := newParty(t)
	found(t, map[string]wrong{
		"receipt of the renter's": {w.renter, func(f *proof.File) { f.Receipt = receipt(t, w.renter, f.Vouchers[len(f.Vouchers)-1]) }, proof.Forged, "receipt"},
		"receipt of a stranger's": {w.renter, func(f *proof.File) {
			f.Receipt, f.Delegations = receipt(t, stranger, f.Vouchers[len(f.Vouchers)-1]), append(f.Delegations, stranger.dev.Delegation())
		}, proof.Forged, "receipt"},
		"receipt for another voucher": {w.renter, func(f *proof.File) { f.Receipt = receipt(t, w.provider, []byte("another")) }, proof.Corrupt, "receipt"},
		"two vouchers of one sequence": {w.provider, func(f *proof.File) {
			f.Vouchers = append(f.Vouchers, w.sign(t, *f, lease, 3, 6999, f.Vouchers[0]))
		}, proof.Forged, "voucher 3"},
		"a voucher that falls":    {w.provider, func(f *proof.File) { f.Vouchers = append(f.Vouchers, w.sign(t, *f, lease, 4, 6999, f.Vouchers[1])) }, proof.Forged, "voucher 4"},
		"a voucher after another": {w.provider, func(f *proof.File) { f.Vouchers = append(f.Vouchers, w.sign(t, *f, lease, 4, 8000, f.Vouchers[0])) }, proof.Forged, "voucher 4"},
		"two heads": {w.renter, func(f *proof.File) { // of the size at which voucher 0 was signed
			f.Checkpoint = head(t, history.Checkpoint{Origin: history.Origin{Peer: w.renter.dev.Peer(), Epoch: 1}, Root: history.Hash{1}}, w.renter)
		}, proof.Forged, "checkpoint in voucher 0"},
		"a rewritten log": {w.renter, func(f *proof.File) {
			f.Checkpoint = head(t, history.Checkpoint{Origin: history.Origin{Peer: w.renter.dev.Peer(), Epoch: 1}, Size: 100, Root: history.Hash{1}}, w.renter)
		}, proof.Corrupt, "checkpoint in"},
		"a head of nobody": {w.renter, func(f *proof.File) {
			f.Checkpoint = head(t, history.Empty(history.Origin{Peer: stranger.dev.Peer()}), stranger)
		}, proof.Corrupt, "checkpoint"},
		"an older head": {w.renter, func(f *proof.File) {
			f.Checkpoint, f.Entries, f.Settlements = head(t, history.Empty(history.Origin{Peer: w.renter.dev.Peer(), Epoch: 1}), w.renter), nil, nil
		}, proof.Behind, "checkpoint"},
		"an older voucher": {w.renter, func(f *proof.File) {
			f.Vouchers, f.Receipt, f.Segments = [][]byte{f.Vouchers[0], w.sign(t, *f, lease, 1, 2000, f.Vouchers[0])}, nil, nil
		}, proof.Behind, "settlement"},
	})
}

func head(t *testing.T, c history.Checkpoint, p *party) []byte {
	t.Helper()
	note, err := c.Sign(p.dev.SignNote)
	must(t, err)
	return note
}

func entryKind(t *testing.T, e proof.Entry) ledger.EntryKind {
	t.Helper()
	d, err := ledger.DecodeLeaf(e.Leaf)
	must(t, err)
	return d.Kind
}

func receipt(t *testing.T, by *party, of []byte) []byte {
	t.Helper()
	var cp []byte
	must(t, by.View(t.Context(), func(r *books.Reader) (err error) { cp, err = r.Checkpoint(); return err }))
	raw, err := voucher.SignReceipt(by.dev, voucher.Receipt{Voucher: identity.Hash(of), Checkpoint: cp})
	must(t, err)
	return raw
}

// FuzzCheck: a stranger's file may say anything; it never breaks the check, and without good signatures it has no figures.
func FuzzCheck(f *testing.F) {
	w := newWorld(f)
	for _, side := range []*party{w.renter, w.provider} {
		raw := encode(f, side.prove(lease))
		_, body, _ := bytes.Cut(raw, []byte("\n"))
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		raw := resum(append([]byte("gpufair-proof/1 \n"), body...))
		got := proof.Check(raw)
		if decoded, err := proof.Decode(raw); err == nil {
			if again := encode(t, decoded); !bytes.Equal(again, raw) {
				t.Fatal("a file has two forms")
			}
		} else if got.Result != proof.Corrupt {
			t.Fatalf("unreadable (%v), but %s", err, got.Result)
		}
	})
}
