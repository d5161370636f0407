package query_test

import (
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/query"
	"github.com/gpufair/gpufair/market/reason"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// facts are those of the lots that every table here judges: two of four RTX 4090 free at 0.42, and eight free cores at 0.05.
func facts(t testing.TB, change ...func(*market.Offer)) (gpu, cpu query.Facts, o market.Offer) {
	t.Helper()
	o = markettest.Offer(markettest.Device(t), 1, now)
	for _, c := range change {
		c(&o)
	}
	return query.FactsOf(&o, &o.Lots[0]), query.FactsOf(&o, &o.Lots[1]), o
}

// match is a query and which of the two lots it finds.
type match struct {
	q        string
	gpu, cpu bool
}

// countsAndNames judge kinds, models and counts.
func countsAndNames() []match {
	return []match{
		{"", true, false},
		{"kind=gpu", true, false},
		{"kind=cpu", false, true},
		{"kind=any", true, true},
		{"kind!=gpu", false, true},
		{"KIND=CPU", false, true},
		{"gpu_name=RTX_4090", true, false},
		{"gpu_name = RTX_4090", true, false},
		{`gpu_name="RTX 4090"`, true, false},
		{"gpu_name='NVIDIA GeForce RTX 4090'", true, false},
		{"gpu_name=rtx-4090", true, false},
		{"gpu_name=RTX_3090", false, false},
		{"gpu_name!=RTX_3090", true, false},
		{"gpu_name in [RTX_3090,RTX_4090]", true, false},
		{"gpu_name in [RTX_3090, 'RTX 4090' ]", true, false},
		{"gpu_name notin [RTX_3090,RTX_4090]", false, false},
		{"gpu_name not in [RTX_3090]", true, false},
		{"gpu_name nin [RTX_3090]", true, false},
		{"model=AMD_Ryzen_7_5800X_8_Core_Processor kind=any", false, true},
		{"num_gpus=2", true, false},
		{"num_gpus>=2", true, false},
		{"num_gpus>2", false, false},
		{"num_gpus>=1 kind=cpu", false, false},
		{"num_gpus=0 kind=any", false, true},
		{"devices=4", true, false},
		{"free>=3", false, false},
	}
}

// pricesAndSizes judge numbers with units.
func pricesAndSizes() []match {
	return []match{
		{"price<0.42", false, false},
		{"price<=0.42", true, false},
		{"price<0.420001", true, false},
		{"price==0.42", true, false},
		{"price!=0.42", false, false},
		{"price>.419999", true, false},
		{"dph<0.5 kind=any", true, true},
		{"price in [0.1,0.42]", true, false},
		{"price notin [0.1,0.42]", false, false},
		{"vram>=23.98", true, false},
		{"vram>=24", false, false},
		{"gpu_ram>23GiB", true, false},
		{"gpu_ram>1T", false, false},
		{"ram=16 kind=any", true, true},
		{"ram>=15.99 ram<=16.01", true, false},
		{"disk>=100", true, false},
		{"cpu_cores>=8 kind=any", false, true},
		{"min_term<=5m", true, false},
		{"min_term<300", false, false},
		{"max_term>=1d", true, false},
		{"max_term>24h", false, false},
	}
}

// otherFields judge the rest; account is the provider.
func otherFields(account string) []match {
	return []match{
		{"region=eu-west", true, false},
		{"region in [eu-west,us-east]", true, false},
		{"geolocation=US", false, false},
		{"sandbox=runc egress=none arch=amd64", true, false},
		{"egress=internet", false, false},
		{"unit=credit", true, false},
		{"driver>=550", true, false},
		{"driver=550", true, false},
		{"driver=550.54.14", true, false},
		{"driver>550", false, false},
		{"driver<=550", true, false},
		{"driver>=550.54.15", false, false},
		{"driver<560", true, false},
		{"provider=" + account, true, false},
		{"fp32_matmul>80000", false, false},
		{"fp32_matmul>=80000", true, false},
		{"fp32_matmul>=80TFLOPS", true, false},
		{"fp32_matmul>512.2 kind=cpu", false, true},
		{"mem_copy>900", true, false},
		{"reliability>0.5", false, false}, // nobody knows yet
		{"mem_read>0", false, false},      // not measured: a missing field never matches
		{"mem_read!=1", false, false},
		{"vram!=1 kind=cpu", false, false},
		{"driver notin [1] kind=cpu", false, false},
		{"price<1 price=any", true, false},
	}
}

func TestMatch(t *testing.T) {
	gpu, cpu, o := facts(t)
	cases := slices.Concat(countsAndNames(), pricesAndSizes(), otherFields(o.Account.String()))
	for _, tt := range cases {
		q, err := query.Parse(tt.q)
		if err != nil {
			t.Errorf("%q: %v", tt.q, err)
			continue
		}
		if g, c := q.Match(&gpu), q.Match(&cpu); g != tt.gpu || c != tt.cpu {
			t.Errorf("%q: gpu %v, cpu %v; want %v, %v", tt.q, g, c, tt.gpu, tt.cpu)
		}
		if (len(q.Explain(&gpu)) == 0) != q.Match(&gpu) {
			t.Errorf("%q: Explain and Match disagree", tt.q)
		}
	}
}

func TestOnlyFreeUnlessAsked(t *testing.T) {
	gpu, _, _ := facts(t)
	gpu.SetFree(0)
	for q, want := range map[string]bool{"": false, "free>=0": true, "free=any": true, "devices>=4": false, "num_gpus=0 free=0": true} {
		parsed, err := query.Parse(q)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.Match(&gpu); got != want {
			t.Errorf("%q: %v", q, got)
		}
	}
}

func TestAllowUnknown(t *testing.T) {
	gpu, _, _ := facts(t)
	q, err := query.Parse("reliability>0.98 price<1")
	if err != nil {
		t.Fatal(err)
	}
	if q.Match(&gpu) {
		t.Fatal("an unknown reliability matches")
	}
	if m := q.Explain(&gpu); len(m) != 1 || !m[0].Unknown || m[0].Condition != "reliability>0.98" {
		t.Fatal(m)
	}
	q.AllowUnknown = true
	if !q.Match(&gpu) || q.Explain(&gpu) != nil {
		t.Fatal("--allow-unknown does not allow")
	}
	gpu.SetReliability(970_000)
	if q.Match(&gpu) {
		t.Fatal("a known reliability of 0.97 passes")
	}
	if m := q.Explain(&gpu); len(m) != 1 || m[0].Unknown || m[0].Have != "0.97" {
		t.Fatal(m)
	}
	gpu.SetReliability(990_000)
	if !q.Match(&gpu) {
		t.Fatal("0.99 does not pass")
	}
}

func TestExplain(t *testing.T) {
	gpu, _, _ := facts(t)
	q, err := query.Parse("price<0.4 num_gpus>=3 vram>=48 mem_read>1 gpu_name=H100 fp32_matmul>90000 driver>=570 min_term<60 ram<1")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range q.Explain(&gpu) {
		got = append(got, m.String())
	}
	want := []string{
		"price<0.4: the lot has 0.42/h", "num_gpus>=3: the lot has 2 free of 4", "vram>=48: the lot has 23.98828125 GiB",
		"mem_read>1: the offer does not say (--allow-unknown lets it pass)", "gpu_name=H100: the lot has RTX_4090",
		"fp32_matmul>90000: the lot has 80.0 TFLOPS", "driver>=570: the lot has 550.54.14", "min_term<60: the lot has 300 s",
		"ram<1: the lot has 16 GiB",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	_, cpu, _ := facts(t)
	if m := (query.Query{}).Explain(&cpu); m != nil {
		t.Fatal("the zero query has no conditions:", m)
	}
	q, _ = query.Parse("")
	if m := q.Explain(&cpu); len(m) != 1 || m[0].Condition != "kind=gpu" || m[0].Have != "cpu" {
		t.Fatal(m)
	}
}

// How far off a lot is, and why it would be refused: what `gpufair why` sorts by and says.
func TestMisses(t *testing.T) {
	gpu, cpu, _ := facts(t)
	for _, tt := range []struct {
		q    string
		f    *query.Facts
		code reason.Code
		off  uint64
	}{
		{"price<0.4", &gpu, reason.PriceBelow, 47621}, // 0.42 is 0.020001 over the largest that passes
		{"price<=0.21", &gpu, reason.PriceBelow, 500_000},
		{"price>0.84", &gpu, reason.ConditionUnmet, 500_000},
		{"price<0", &gpu, reason.PriceBelow, query.Whole}, // nothing passes
		{"price in [0.21,0.84]", &gpu, reason.ConditionUnmet, 500_000},
		{"price!=0.42", &gpu, reason.ConditionUnmet, query.Whole},
		{"num_gpus>=4", &gpu, reason.DeviceTaken, 500_000},
		{"num_gpus>=5", &gpu, reason.ResourcesExceeded, 600_000},
		{"kind=cpu num_gpus>=1", &cpu, reason.ResourcesExceeded, query.Whole},
		{"ram>=32", &gpu, reason.ResourcesExceeded, 500_000},
		{"min_term<=150", &gpu, reason.TermOutOfRange, 500_000},
		{"gpu_name=H100", &gpu, reason.ConditionUnmet, query.Whole},
		{"mem_read>1", &gpu, reason.NotStated, query.Whole},
		{"fp32_matmul>=160000", &gpu, reason.ConditionUnmet, 500_000},
		{"driver>=570", &gpu, reason.ConditionUnmet, 35087},
	} {
		q, err := query.Parse(tt.q)
		if err != nil {
			t.Fatal(tt.q, err)
		}
		m := q.Explain(tt.f)
		if len(m) != 1 || m[0].Code != tt.code || m[0].Off != tt.off {
			t.Errorf("%s: %+v, want %s off by %d", tt.q, m, tt.code, tt.off)
		}
		if refused, off := q.NewCensus().Add(tt.f); refused != 1 || off != tt.off {
			t.Errorf("%s: the census says %d refused, off by %d", tt.q, refused, off)
		}
	}
}

func TestCensus(t *testing.T) {
	gpu, cpu, _ := facts(t)
	q, err := query.Parse("price<0.4 vram>=48")
	if err != nil {
		t.Fatal(err)
	}
	c := q.NewCensus()
	for _, f := range []*query.Facts{&gpu, &gpu, &cpu} {
		c.Add(f)
	}
	fits, _ := query.Parse("kind=cpu")
	cheap := fits.NewCensus()
	cheap.Add(&cpu)
	cheap.Add(&gpu)
	var lines []string
	for _, r := range append(c.Refusals(), cheap.Refusals()...) {
		lines = append(lines, fmt.Sprintf("%s %d %d", r.Condition, r.Lots, r.Alone))
	}
	if got := strings.Join(lines, "; "); c.Lots != 3 || c.Matches != 0 || cheap.Matches != 1 ||
		got != "price<0.4 2 0; vram>=48 3 0; free>=1 0 0; kind=gpu 1 0; kind=cpu 1 1; free>=1 0 0" {
		t.Fatal(c.Lots, c.Matches, cheap.Matches, got)
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, tt := range []struct {
		q      string
		column int // from 1
		says   string
	}{
		{"prise<0.5", 1, "did you mean price?"},
		{"price<0.5 gpu_nam=X", 11, "did you mean gpu_name?"},
		{"price<0.5 banana=1", 11, "`gpufair search --help`"},
		{"price", 6, "want an operator after price"},
		{"price ~ 3", 7, "operators are"},
		{"price<", 7, "want a value for price"},
		{"price<cheap", 7, "want"},
		{"price<-1", 7, "six decimals"},
		{"price<0.1234567", 7, "six decimals"},
		{"price<1e3", 7, "six decimals"},
		{"kind=tpu", 6, "kind is gpu, cpu or any"},
		{"kind>gpu", 5, "has no order"},
		{"vram>=24 MB", 10, "no field"},
		{"vram>=24MB", 7, "GiB"},
		{"min_term<5y", 10, "s, m, h or d"},
		{"region in eu", 11, "want a list"},
		{"region in [eu", 14, "want , or ]"},
		{"region in []", 12, "want a value"},
		{"region in [eu,,us]", 15, "want a value"},
		{"gpu_name='RTX", 10, "never closed"},
		{"driver>=new", 9, "version"},
		{"driver>=1.2.3.4", 9, "version"},
		{"provider=gfabc", 10, "whole account"},
		{"=3", 1, "want the name of a field"},
		{"é=3", 1, "want the name of a field"},
		{"region=é banana=1", 10, "no field"},
		{strings.Repeat("price<1 ", 70), 64*8 + 1, "more than 64"},
		{strings.Repeat("x", 5000), 1, "at most"},
	} {
		_, err := query.Parse(tt.q)
		var s *query.SyntaxError
		if !errors.As(err, &s) {
			t.Errorf("%q: %v", tt.q, err)
			continue
		}
		if s.Column+1 != tt.column || !strings.Contains(s.Error(), tt.says) {
			t.Errorf("%.40q: column %d, want %d; want %q in:\n%v", tt.q, s.Column+1, tt.column, tt.says, s)
		}
	}
	_, err := query.Parse("price<0.5 gpu_nam=X")
	want := "query, column 11: no field \"gpu_nam\"\n  price<0.5 gpu_nam=X\n            ^\ndid you mean gpu_name?"
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestOrder(t *testing.T) {
	a, _, _ := facts(t, func(o *market.Offer) { o.Lots[0].Price = 1; o.Lots[0].Figures = nil })
	b, _, _ := facts(t, func(o *market.Offer) { o.Lots[0].Price = 2 })
	c, _, _ := facts(t, func(o *market.Offer) {
		o.Lots[0].Price = 2
		o.Lots[0].Figures = []benchmark.Figure{{ID: benchmark.FigureFP32Matmul, Value: 90_000_000}}
		o.Region = ""
	})
	for _, tt := range []struct {
		order string
		x, y  *query.Facts
		want  int
	}{
		{"price", &a, &b, -1},
		{"-price", &a, &b, 1},
		{"price-", &a, &b, 1},
		{"+price", &a, &b, -1},
		{"price", &b, &c, 0},
		{"price,fp32_matmul", &b, &c, -1},
		{"price,-fp32_matmul", &b, &c, 1},
		{"price, -fp32_matmul ", &b, &c, 1},
		{"fp32_matmul", &a, &b, 1},  // unknown comes last,
		{"-fp32_matmul", &a, &b, 1}, // both ways
		{"region", &b, &c, -1},
		{"-region", &b, &c, -1},
		{"", &a, &b, 0},
	} {
		o, err := query.ParseOrder(tt.order)
		if err != nil {
			t.Fatalf("%q: %v", tt.order, err)
		}
		if got := o.Compare(tt.x, tt.y); got != tt.want || o.Compare(tt.y, tt.x) != -tt.want {
			t.Errorf("%q: %d, want %d", tt.order, got, tt.want)
		}
	}
	for _, bad := range []string{"prise", "price fp32_matmul", "price,,x", "-", strings.Repeat("price,", 9), strings.Repeat("x", 5000)} {
		var s *query.SyntaxError
		if _, err := query.ParseOrder(bad); !errors.As(err, &s) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func TestQuantity(t *testing.T) {
	for q, want := range map[string]uint32{"": 1, "num_gpus>=2": 2, "num_gpus>2": 3, "num_gpus=4": 4, "free>=3 num_gpus>=2": 3, "num_gpus<=8": 1, "kind=cpu": 1} {
		parsed, err := query.Parse(q)
		if err != nil || parsed.Quantity() != want {
			t.Errorf("%q: %d, %v", q, parsed.Quantity(), err)
		}
	}
}

// TestEveryFigureIsAField: a figure that the benchmark declares can be searched by name and by each alias.
func TestEveryFigureIsAField(t *testing.T) {
	for _, f := range benchmark.Figures() {
		for _, name := range append([]string{f.Name}, f.Aliases...) {
			if _, err := query.Parse(name + ">=1.5" + f.Unit); err != nil {
				t.Error(err)
			}
		}
	}
	seen := map[string]bool{}
	for _, f := range query.Fields() {
		if f.Help == "" {
			t.Errorf("%s has no help", f.Name)
		}
		for _, n := range append(f.Aliases, f.Name) {
			if seen[n] {
				t.Errorf("two fields are named %s", n)
			}
			seen[n] = true
		}
	}
}

// TestPricesAreExact compares with fractions: no price is ever on the wrong side of a limit.
func TestPricesAreExact(t *testing.T) {
	gpu, _, o := facts(t)
	_ = gpu
	ops := map[string]func(int) bool{
		"=": func(c int) bool { return c == 0 }, "!=": func(c int) bool { return c != 0 }, "<": func(c int) bool { return c < 0 },
		"<=": func(c int) bool { return c <= 0 }, ">": func(c int) bool { return c > 0 }, ">=": func(c int) bool { return c >= 0 },
	}
	rapid.Check(t, func(t *rapid.T) {
		price := rapid.Uint64Range(0, uint64(market.MaxRate)).Draw(t, "price")
		limit := rapid.OneOf(rapid.Just(price), rapid.Uint64Range(0, uint64(market.MaxRate))).Draw(t, "limit")
		mib := rapid.Uint64Range(1, 1<<26).Draw(t, "mib")
		gib := rapid.OneOf(rapid.Just(money.Micro(mib*1_000_000/1024)), rapid.Map(rapid.Uint64Range(0, 1<<36), func(v uint64) money.Micro { return money.Micro(v) })).Draw(t, "gib")
		o.Lots[0].Price, o.Lots[0].MemoryMiB = money.Rate(price), mib
		f := query.FactsOf(&o, &o.Lots[0])
		have := new(big.Rat).SetFrac64(int64(mib), 1024)
		want := new(big.Rat).SetFrac64(int64(gib), 1_000_000)
		for op, holds := range ops {
			q, err := query.Parse(fmt.Sprintf("price%s%s", op, money.Rate(limit)))
			if err != nil || q.Match(&f) != holds(cmp(price, limit)) {
				t.Fatalf("%d %s %d: %v", price, op, limit, err)
			}
			q, err = query.Parse(fmt.Sprintf("ram%s%s", op, gib))
			if err != nil || q.Match(&f) != holds(have.Cmp(want)) {
				t.Fatalf("%d MiB %s %v GiB: %v", mib, op, gib, err)
			}
		}
	})
}

func cmp(a, b uint64) int { return new(big.Int).SetUint64(a).Cmp(new(big.Int).SetUint64(b)) }

// FuzzParse: no text panics the parser, an error points into the text, and what parses is judged without a panic.
func FuzzParse(f *testing.F) {
	gpu, cpu, _ := facts(f)
	for _, s := range []string{"gpu_name=RTX_4090 num_gpus>=2 price<0.5", "region in [a,'b c']", "price<", "-price,fp32_matmul-", "kind=any free=any", "driver not in [5,6.1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := query.Parse(s)
		var syntax *query.SyntaxError
		if err != nil && (!errors.As(err, &syntax) || syntax.Column > len(s)) {
			t.Fatalf("%q: %v", s, err)
		}
		if err == nil && (q.Match(&gpu) != (len(q.Explain(&gpu)) == 0) || q.Match(&cpu) != (len(q.Explain(&cpu)) == 0)) {
			t.Fatalf("%q: Match and Explain disagree", s)
		}
		if o, err := query.ParseOrder(s); err == nil && o.Compare(&gpu, &cpu) != -o.Compare(&cpu, &gpu) {
			t.Fatalf("%q: the order is not one", s)
		}
	})
}
