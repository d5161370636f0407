package books

import (
	"bytes"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/export"
	"github.com/gpufair/gpufair/ledger/money"
)

// all are a ledger's entries.
func (r *Reader) all() iter.Seq2[ledger.Entry, error] {
	return func(yield func(ledger.Entry, error) bool) {
		err := r.Entries(0, func(_ uint64, e ledger.Entry) (bool, error) { return yield(e, nil), nil })
		if err != nil {
			yield(ledger.Entry{}, err)
		}
	}
}

// TestExported: hledger and bean-check accept what real ledgers come to that have cleared a circle, disputed a lease and agreed on less for it,
// given up hope and been paid after all.
func TestExported(t *testing.T) {
	r := newRing(t, 1000, 700, 900)
	terms := r.terms(700)
	r.gather(terms)
	cleared, err := r.all[0].complete(r.id(terms))
	must(t, err)
	for _, p := range r.all[1:] {
		p.hear(terms, cleared.Words())
	}
	p := r.pair(0)
	p.dispute(p.renter, p.provider, r.lanes[0])
	p.offer(p.provider, p.renter, r.lanes[0], 800)
	p.offer(p.renter, p.provider, r.lanes[0], 800)
	q := r.pair(2)
	q.provider.update(func(tx *Tx) error { _, err := tx.WriteOff(q.renter.Self(), money.Credit, "gone"); return err })
	q.settle(q.renter, q.provider, 150, "after all")

	kinds := map[ledger.EntryKind]int{}
	for i, side := range r.all {
		for format, program := range map[export.Format][]string{
			export.FormatHledger: {"hledger", "check", "--strict", "-f"}, export.FormatBeancount: {"bean-check", "--no-cache"},
		} {
			if _, err := exec.LookPath(program[0]); err != nil {
				t.Fatalf("%v\nnext: make deps", err)
			}
			var out bytes.Buffer
			side.view(func(rd *Reader) error {
				for e := range rd.all() {
					kinds[e.Kind]++
				}
				return export.Write(&out, format, rd.all())
			})
			file := filepath.Join(t.TempDir(), "ledger."+string(format))
			must(t, os.WriteFile(file, out.Bytes(), 0o600))
			said, err := exec.CommandContext(t.Context(), program[0], append(program[1:], file)...).CombinedOutput()
			if err != nil || len(said) > 0 {
				t.Errorf("%s of party %d: %v\n%s\n%s", program[0], i, err, said, out.String())
			}
		}
	}
	for _, k := range []ledger.EntryKind{ledger.KindNetting, ledger.KindDispute, ledger.KindCorrection, ledger.KindWriteOff, ledger.KindSettlement} {
		if kinds[k] == 0 {
			t.Errorf("no entry of kind %s was exported", k)
		}
	}
}
