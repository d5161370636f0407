package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type record struct {
	N    uint64            `cbor:"1,keyasint"`
	S    string            `cbor:"2,keyasint,omitempty"`
	B    []byte            `cbor:"3,keyasint,omitempty"`
	H    Hash              `cbor:"4,keyasint"`
	L    []uint32          `cbor:"5,keyasint,omitempty"`
	M    map[string]string `cbor:"6,keyasint,omitempty"`
	Deep *record           `cbor:"7,keyasint,omitempty"`
}

// zeroHash is 32 zero bytes as CBOR.
var zeroHash = "5820" + strings.Repeat("00", 32)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMarshalIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := record{
			N: rapid.Uint64().Draw(t, "n"), S: rapid.String().Draw(t, "s"), B: rapid.SliceOf(rapid.Byte()).Draw(t, "b"),
			M: rapid.MapOfN(rapid.String(), rapid.String(), 0, 8).Draw(t, "m"), L: rapid.SliceOf(rapid.Uint32()).Draw(t, "l"),
		}
		a, err := Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back record
		if err := UnmarshalStrict(a, &back); err != nil {
			t.Fatal(err)
		}
		if b, err := Marshal(back); err != nil || !bytes.Equal(a, b) {
			t.Fatalf("%x came back as %x: %v", a, b, err)
		}
	})
}

func TestMarshalForm(t *testing.T) {
	got, err := Marshal(record{N: 500, M: map[string]string{"bb": "1", "a": "2"}})
	want := "a3" + "01" + "1901f4" + "04" + zeroHash + "06" + "a2" + "6161" + "6132" + "626262" + "6131"
	if err != nil || hex.EncodeToString(got) != want {
		t.Fatalf("%x, want %s (%v)", got, want, err)
	}
}

// What a record never holds must be refused, not skipped: each of these is a second form of a value, or work for the reader.
func TestDecoderRefuses(t *testing.T) {
	head := "04" + zeroHash
	nested := "01"
	for range maxNesting + 1 {
		nested = "81" + nested
	}
	for name, s := range map[string]string{
		"duplicate key":           "a3 0101 0102" + head,
		"float for an integer":    "a2 01 fb3ff0000000000000" + head,
		"whole float":             "a2 01 f93c00" + head,
		"not a number":            "a2 01 f97e00" + head,
		"negative":                "a2 01 20" + head,
		"tag":                     "a2 01 c101" + head,
		"bignum":                  "a2 01 c24101" + head,
		"indefinite map":          "bf 0101" + head + "ff",
		"indefinite bytes":        "a2 03 5f4101ff" + head,
		"indefinite text":         "a2 02 7f6161ff" + head,
		"indefinite array":        "a2 05 9f01ff" + head,
		"text that is not UTF-8":  "a2 02 61ff" + head,
		"short hash":              "a1 04 581f" + strings.Repeat("00", 31),
		"long hash":               "a1 04 5821" + strings.Repeat("00", 33),
		"empty hash":              "a1 04 40",
		"hash as text":            "a1 04 7820" + strings.Repeat("61", 32),
		"hash as array":           "a1 04 9820" + strings.Repeat("00", 32),
		"array over the limit":    "a2 04" + zeroHash + "05 9a00010001" + strings.Repeat("00", maxElements+1),
		"array of 2^32 elements":  "a1 05 9affffffff",
		"bytes of 2^62":           "a1 03 5b4000000000000000",
		"bytes after the end":     "a2 0101" + head + "00",
		"cut short":               "a2 0101 04 5820 00",
		"text key":                "a1 616e 01",
		"deep nesting, right key": "a1 05" + nested,
		"text for an integer":     "a1 01 6131",
		"nothing":                 "",
		"not a map":               "01",
	} {
		for mode, f := range map[string]func([]byte, any) error{"strict": UnmarshalStrict, "lenient": Unmarshal} {
			if mode == "lenient" && name == "text key" {
				continue // a key that the record does not have: ignored like any other
			}
			var r record
			if err := f(unhex(t, s), &r); !errors.Is(err, ErrFormat) {
				t.Errorf("%s, %s: read as %+v (%v)", name, mode, r, err)
			}
		}
	}
}

func TestDeepAndWideUnknownValuesAreRefused(t *testing.T) {
	var deep strings.Builder
	deep.WriteString("a1 18ff")
	for range maxNesting + 1 {
		deep.WriteString("81")
	}
	var wide strings.Builder
	wide.WriteString("a1 18ff b90101")
	for i := range maxPairs + 1 {
		wide.WriteString(hex.EncodeToString([]byte{0x19, byte(i >> 8), byte(i), 0}))
	}
	for name, s := range map[string]string{"deep": deep.String() + "01", "wide": wide.String(), "tag": "a1 18ff c100", "indefinite": "a1 18ff 9fff"} {
		var r record
		if err := Unmarshal(unhex(t, s), &r); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	b := unhex(t, "a3 0107 04"+zeroHash+"18ff 6161")
	var r record
	if err := UnmarshalStrict(b, &r); !errors.Is(err, ErrFormat) {
		t.Errorf("strict: %v", err)
	}
	if err := Unmarshal(b, &r); err != nil || r.N != 7 {
		t.Errorf("lenient: %+v %v", r, err)
	}
}

func TestHashText(t *testing.T) {
	h := Sum("domain", []byte("a"), []byte("b"))
	got, err := ParseHash(h.String())
	if err != nil || got != h || h.IsZero() || !strings.HasPrefix(h.String(), h.Short()) {
		t.Fatal(got, err)
	}
	for _, bad := range []string{"", "00", h.String() + "0", h.String()[:62], h.String()[:63] + "g"} {
		if _, err := ParseHash(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestFrames(t *testing.T) {
	var buf bytes.Buffer
	for i := range uint64(3) {
		if err := WriteFrame(&buf, record{N: i}, 100); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(3) {
		var r record
		if err := ReadFrame(&buf, &r, 100); err != nil || r.N != i {
			t.Fatal(r, err)
		}
	}
	var r record
	if err := ReadFrame(&buf, &r, 100); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if err := WriteRaw(&buf, make([]byte, 101), 100); !errors.Is(err, ErrTooLarge) || buf.Len() != 0 {
		t.Errorf("oversized: %v, and %d bytes were sent", err, buf.Len())
	}
}

func TestFrameCutShort(t *testing.T) {
	var buf bytes.Buffer
	if err := WriteFrame(&buf, record{N: 1}, 100); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < buf.Len(); n++ {
		var r record
		if err := ReadFrame(bytes.NewReader(buf.Bytes()[:n]), &r, 100); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, buf.Len(), err)
		}
	}
}

// A stranger's length is only a claim: it may cost no memory, neither over the limit nor below it.
func TestFrameLengthAloneAllocatesNothing(t *testing.T) {
	allocated := func(n uint32, limit int) uint64 {
		head := binary.BigEndian.AppendUint32(nil, n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadRaw(bytes.NewReader(head), limit)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("a frame of %d bytes without any was read", n)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	if got := allocated(math.MaxUint32, 1<<20); got > 64<<10 {
		t.Errorf("over the limit: %d bytes allocated", got)
	}
	if got := allocated(1<<30, 1<<30); got > 64<<10 {
		t.Errorf("within the limit: %d bytes allocated", got)
	}
	if _, err := ReadRaw(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	good, err := Marshal(record{N: 1, S: "s", B: []byte{1}, L: []uint32{1}, M: map[string]string{"a": "b"}, Deep: &record{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(unhex(f, "a3 0107 04"+zeroHash+"18ff 6161"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var strict, lenient record
		strictErr, lenientErr := UnmarshalStrict(b, &strict), Unmarshal(b, &lenient)
		if strictErr == nil && lenientErr != nil {
			t.Fatalf("strict reads what lenient does not: %v", lenientErr)
		}
		if strictErr != nil {
			return
		}
		again, err := Marshal(strict)
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > 2*len(b)+64 {
			t.Fatalf("%d bytes became %d", len(b), len(again))
		}
		var back record
		if err := UnmarshalStrict(again, &back); err != nil {
			t.Fatalf("%x: %v", again, err)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 0xa1, 1, 7})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		body, err := ReadRaw(r, 64)
		if err == nil && (len(body) > 64 || len(body)+4+r.Len() != len(b)) {
			t.Fatalf("%d of %d bytes read, %d left", len(body), len(b), r.Len())
		}
	})
}
