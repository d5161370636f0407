package history_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/p2p/identity"
)

// stamp is a time of the tests.
var stamp = time.Unix(1_800_000_000, 999)

// sealed is a signed note of a log of dev with size entries.
func sealed(t fataler, dev *identity.Device, epoch, size uint64, root history.Hash) []byte {
	t.Helper()
	msg, err := history.Checkpoint{Origin: history.Origin{Peer: dev.Peer(), Epoch: epoch}, Size: size, Root: root}.Sign(dev.SignNote)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// TestCosign checks a cosignature with our own reader, and by the words of C2SP tlog-cosignature with bare Ed25519.
func TestCosign(t *testing.T) {
	log, by := device(t), device(t)
	msg := sealed(t, log, 3, 5, history.Hash{9})
	both, err := history.Cosign(msg, log.Peer(), by.Peer(), stamp, by.SignCosignature)
	if err != nil {
		t.Fatal(err)
	}
	got, err := history.OpenCosigned(both, log.Peer(), by.Peer())
	if err != nil || got.Size != 5 || got.Root != (history.Hash{9}) || !got.Time.Equal(stamp.Truncate(time.Second)) {
		t.Fatalf("%+v, %v", got, err)
	}
	if !bytes.HasPrefix(both, msg) {
		t.Errorf("the log's own note was changed:\n%s", both)
	}
	text, _, _ := strings.Cut(string(msg), "\n\n")
	line := strings.TrimSuffix(strings.TrimPrefix(string(both[len(msg):]), "— gpufair/"+by.Peer().String()+" "), "\n")
	raw, err := base64.StdEncoding.DecodeString(line)
	if err != nil || len(raw) != 4+8+64 || binary.BigEndian.Uint64(raw[4:]) != uint64(stamp.Unix()) {
		t.Fatalf("cosignature line %q: %v", line, err)
	}
	if !ed25519.Verify(bytesOf(by.Peer()), []byte("cosignature/v1\ntime 1800000000\n"+text+"\n"), raw[12:]) {
		t.Error("bare Ed25519 refuses the cosignature")
	}
	// Again, later: the new one takes the old one's place.
	later, err := history.Cosign(both, log.Peer(), by.Peer(), stamp.Add(time.Hour), by.SignCosignature)
	if err != nil || len(later) != len(both) {
		t.Fatalf("cosigned again: %d bytes, %v", len(later), err)
	}
	if got, err := history.OpenCosigned(later, log.Peer(), by.Peer()); err != nil || got.Time.Unix() != stamp.Unix()+3600 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCosignNot(t *testing.T) {
	log, by, other := device(t), device(t), device(t)
	msg := sealed(t, log, 3, 5, history.Hash{9})
	for name, c := range map[string]struct {
		log  identity.PeerID
		by   *identity.Device
		now  time.Time
		want error
	}{
		"its own witness":        {log.Peer(), log, stamp, identity.ErrNote},
		"another's as the log's": {other.Peer(), by, stamp, identity.ErrSigner},
		"at no time":             {log.Peer(), by, time.Unix(0, 0), identity.ErrNote},
	} {
		if _, err := history.Cosign(msg, c.log, c.by.Peer(), c.now, c.by.SignCosignature); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestOpenCosignedRefusals(t *testing.T) {
	log, other := device(t), device(t)
	_, key, by, err := identity.Generate()
	if err != nil {
		t.Fatal(err)
	}
	msg := sealed(t, log, 3, 5, history.Hash{9})
	both, err := history.Cosign(msg, log.Peer(), by.Peer(), stamp, by.SignCosignature)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(msg, []byte("\n\n")) + 2
	text, own, line := msg[:at], msg[at:], both[len(msg):]
	prefix := line[:bytes.LastIndexByte(line, ' ')+1]
	raw, err := base64.StdEncoding.DecodeString(string(line[len(prefix) : len(line)-1]))
	if err != nil {
		t.Fatal(err)
	}
	with := func(stamp uint64, sig []byte) []byte {
		b := binary.BigEndian.AppendUint64(bytes.Clone(raw[:4]), stamp)
		return bytes.Join([][]byte{msg, prefix, []byte(base64.StdEncoding.EncodeToString(append(b, sig...)) + "\n")}, nil)
	}
	body := text[:at-1]
	if got, err := history.OpenCosigned(with(5, ed25519.Sign(key, identity.CosignatureText(body, 5))), log.Peer(), by.Peer()); err != nil || got.Time.Unix() != 5 {
		t.Fatalf("signed by bare Ed25519: %+v, %v", got, err)
	}
	if got, err := history.OpenCosigned(with(uint64(stamp.Unix()), raw[12:]), log.Peer(), by.Peer()); err != nil || got.Size != 5 {
		t.Fatalf("put together again: %+v, %v", got, err)
	}
	bare := ed25519.NewKeyFromSeed(make([]byte, 32))
	for name, c := range map[string]struct {
		msg     []byte
		log, by identity.PeerID
		want    error
	}{
		"not cosigned":     {msg, log.Peer(), by.Peer(), identity.ErrSignature},
		"another witness":  {both, log.Peer(), other.Peer(), identity.ErrSignature},
		"another log":      {both, other.Peer(), by.Peer(), identity.ErrSigner},
		"only cosigned":    {bytes.Join([][]byte{text, line}, nil), log.Peer(), by.Peer(), identity.ErrSignature},
		"changed size":     {bytes.Replace(both, []byte("\n5\n"), []byte("\n6\n"), 1), log.Peer(), by.Peer(), identity.ErrSignature},
		"another time":     {with(uint64(stamp.Unix())+1, raw[12:]), log.Peer(), by.Peer(), identity.ErrSignature},
		"no time":          {with(0, ed25519.Sign(key, identity.CosignatureText(body, 0))), log.Peer(), by.Peer(), identity.ErrSignature},
		"no such time":     {with(1<<40, ed25519.Sign(key, identity.CosignatureText(body, 1<<40))), log.Peer(), by.Peer(), identity.ErrSignature},
		"short":            {with(uint64(stamp.Unix()), raw[12:75]), log.Peer(), by.Peer(), identity.ErrSignature},
		"the log's line":   {bytes.Join([][]byte{msg, own}, nil), log.Peer(), by.Peer(), identity.ErrSignature},
		"another's key":    {with(uint64(stamp.Unix()), ed25519.Sign(bare, identity.CosignatureText(body, uint64(stamp.Unix())))), log.Peer(), by.Peer(), identity.ErrSignature},
		"of another text":  {with(uint64(stamp.Unix()), ed25519.Sign(bare, []byte("x"))), log.Peer(), by.Peer(), identity.ErrSignature},
		"longer than ever": {append(bytes.Clone(both), make([]byte, 1000)...), log.Peer(), by.Peer(), history.ErrCheckpoint},
	} {
		if got, err := history.OpenCosigned(c.msg, c.log, c.by); !errors.Is(err, c.want) {
			t.Errorf("%s: opened as %+v, %v, want %v", name, got, err, c.want)
		}
	}
	if got, err := history.OpenCosigned(bytes.Join([][]byte{text, line, own}, nil), log.Peer(), by.Peer()); err != nil || got.Size != 5 {
		t.Errorf("the cosignature first: %+v, %v", got, err)
	}
}

// TestTrim: what others wrote below a note is dropped, and nothing else.
func TestTrim(t *testing.T) {
	log, by := device(t), device(t)
	msg := sealed(t, log, 1, 7, history.Hash{1})
	both, err := history.Cosign(msg, log.Peer(), by.Peer(), stamp, by.SignCosignature)
	if err != nil {
		t.Fatal(err)
	}
	both = append(both, "— somebody "+base64.StdEncoding.EncodeToString(make([]byte, 76))+"\n"...)
	got, cp, err := history.Trim(both, log.Peer())
	if err != nil || !bytes.Equal(got, msg) || cp.Size != 7 {
		t.Errorf("%q, %+v, %v", got, cp, err)
	}
	if _, _, err := history.Trim(both, by.Peer()); !errors.Is(err, identity.ErrSigner) {
		t.Error(err)
	}
}

// TestFork: two notes prove a fork only if they are of one log, one size and two roots, and both are signed.
func TestFork(t *testing.T) {
	dev, other := device(t), device(t)
	a := sealed(t, dev, 1, 7, history.Hash{1})
	if one, two, err := history.Fork(a, sealed(t, dev, 1, 7, history.Hash{2}), dev.Peer()); err != nil || one.Root == two.Root {
		t.Fatalf("%+v, %+v, %v", one, two, err)
	}
	for name, b := range map[string][]byte{
		"the same": a, "a larger one": sealed(t, dev, 1, 8, history.Hash{2}), "another epoch": sealed(t, dev, 2, 7, history.Hash{2}),
	} {
		if _, _, err := history.Fork(a, b, dev.Peer()); !errors.Is(err, history.ErrProof) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := history.Fork(a, sealed(t, other, 1, 7, history.Hash{2}), dev.Peer()); !errors.Is(err, identity.ErrSigner) {
		t.Errorf("another's note: %v", err)
	}
	forged := bytes.Replace(a, []byte("\n7\n"), []byte("\n8\n"), 1)
	for _, pair := range [][2][]byte{{a, forged}, {forged, a}} {
		if _, _, err := history.Fork(pair[0], pair[1], dev.Peer()); !errors.Is(err, identity.ErrSignature) {
			t.Errorf("an unsigned note: %v", err)
		}
	}
}

// TestForkOrProof: of any two histories with a common start, either the heads are consistent and can be proven so, or the log's own heads at
// the old size are two roots of one size. There is no third way for a log that answers.
func TestForkOrProof(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(rt, "entries")
		old := rapid.IntRange(1, n).Draw(rt, "old size")
		leaves := entries(n)
		changed := rapid.IntRange(0, n).Draw(rt, "changed from")
		for i := changed; i < n; i++ {
			leaves[i] = append(bytes.Clone(leaves[i]), 'x')
		}
		was, is := grow(rt, entries(old)...), grow(rt, leaves...)
		p, err := history.ProveConsistency(is, uint64(old), uint64(n))
		if err != nil {
			rt.Fatal(err)
		}
		held := history.CheckConsistency(p, was.head(old), is.head(n)) == nil
		if forks := was.head(old).Forks(is.head(old)); held == forks || held != (changed >= old) {
			rt.Fatalf("changed from %d: a proof holds: %v, the heads fork: %v", changed, held, forks)
		}
	})
}

func FuzzOpenCosigned(f *testing.F) {
	f.Add([]byte(goldenText + "\n— gpufair/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/7 AAAA\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := history.OpenCosigned(b, fixedPeer(), identity.PeerID{1}); err == nil {
			t.Errorf("%q opened as %+v", b, c)
		}
	})
}

func TestRead(t *testing.T) {
	dev := device(t)
	msg := sealed(t, dev, 1, 7, history.Hash{1})
	if cp, err := history.Read(msg); err != nil || cp.Size != 7 || cp.Root != (history.Hash{1}) || cp.Origin.Peer != dev.Peer() {
		t.Errorf("%+v, %v", cp, err)
	}
	for _, bad := range [][]byte{nil, []byte("x\n\n"), []byte(goldenText), append(bytes.Clone(msg), make([]byte, 1000)...)} {
		if cp, err := history.Read(bad); !errors.Is(err, history.ErrCheckpoint) {
			t.Errorf("%q: %+v, %v", bad, cp, err)
		}
	}
}
