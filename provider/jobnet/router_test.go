package jobnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/gpufair/gpufair/provider/reach"
)

// routerOf is a router without a stack, which lets everything out that the rules do.
func routerOf(t *testing.T, most uint64) *router {
	t.Helper()
	older, newer, err := openFlowFiles(t.TempDir(), "j")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { older.Close(); newer.Close() })
	log, err := openFlowLog(older, newer)
	if err != nil {
		t.Fatal(err)
	}
	return newRouter(t.Context(), settings{Rate: plenty, Cap: most}, &reach.Policy{Rules: reach.Rules()}, &counters{}, log)
}

var (
	outside = netip.MustParseAddrPort(server + ":443")
	names   = netip.AddrPortFrom(nameServer4, 53)
)

// TestAdmit fills each limit by itself.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := routerOf(t, plenty)
		over := func(what string, to netip.AddrPort, slots chan struct{}) {
			t.Helper()
			before := n.count.over
			if err := n.admit(to, slots); !errors.Is(err, errOver) || n.count.over != before+1 {
				t.Errorf("%s: %v, %d over", what, err, n.count.over-before)
			}
		}
		taken := func(what string, to netip.AddrPort, slots chan struct{}) {
			t.Helper()
			before := n.count.over
			if err := n.admit(to, slots); err != nil || n.count.over != before {
				t.Errorf("%s: %v, %d over", what, err, n.count.over-before)
			}
		}
		for what, slots := range map[string]chan struct{}{"tcp": n.tcp, "udp": n.udp} {
			for range 512 {
				time.Sleep(time.Second / newFlows) // slower than the limit of new flows
				taken(what, outside, slots)
			}
			time.Sleep(time.Second)
			over(what+" slots", outside, slots)
			over(what+" slots for names", names, slots)
			<-slots
			taken(what+" slot given back", names, slots)
			for range 512 {
				<-slots
			}
			time.Sleep(time.Minute)
			for range 400 {
				taken(what+" at once", outside, slots)
			}
			over(what+" at once", outside, slots)
			for range 400 {
				<-slots
			}
			time.Sleep(time.Minute)
		}
		var refused *reach.Refused
		if err := n.admit(netip.MustParseAddrPort("10.0.0.1:80"), n.tcp); !errors.As(err, &refused) || n.count.refused != 1 || len(n.tcp) != 0 {
			t.Errorf("a rule: %v, %d refused, %d slots", err, n.count.refused, len(n.tcp))
		}
		n.count.capped = 1
		over("bytes", outside, n.tcp)
		over("bytes for names", names, n.udp)
	})
}

// TestLogFull fills the disk under the flow log: what can't be logged is not let out.
func TestLogFull(t *testing.T) {
	n := routerOf(t, plenty)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if n.log, err = openFlowLog(n.log.files[0], full); err != nil {
		t.Fatal(err)
	}
	if err := n.admit(outside, n.tcp); err != nil {
		t.Fatalf("before it is written: %v", err)
	}
	n.log.opened("tcp", outside)
	if err := n.log.close(); err == nil {
		t.Fatal("a full disk took the log")
	}
	if err := n.admit(outside, n.tcp); !errors.Is(err, errOver) || n.count.over != 1 || len(n.tcp) != 1 {
		t.Errorf("after it: %v, %d over, %d slots", err, n.count.over, len(n.tcp))
	}
}

// TestNamesAreCounted asks for names until the byte cap is reached: then none is answered, though a smaller question would fit.
func TestNamesAreCounted(t *testing.T) {
	query := func(name string) []byte {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
		q := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
		err := errors.Join(b.StartQuestions(), b.Question(q))
		text, finish := b.Finish()
		if err := errors.Join(err, finish); err != nil {
			t.Fatal(err)
		}
		return text
	}
	long, short := query(strings.Repeat("long.", 20)+"localhost."), query("localhost.") // the long one takes more than the other and its answer
	n := routerOf(t, plenty)
	answer := n.answer(long)
	if answer == nil || n.count.out != uint64(len(long)) || n.count.in != uint64(len(answer)) {
		t.Fatalf("%d bytes answered, counted %d out and %d in", len(answer), n.count.out, n.count.in)
	}
	n.cap = n.count.in + n.count.out + uint64(len(long)) - 1
	if n.answer(long) != nil || n.count.capped != 1 {
		t.Errorf("answered beyond the cap, capped is %d", n.count.capped)
	}
	if n.answer(short) != nil {
		t.Error("answered after the cap")
	}
	inner, job := net.Pipe()
	defer job.Close()
	done := make(chan struct{})
	go func() { defer close(done); n.answerStream(inner); inner.Close() }()
	if _, err := job.Write(append([]byte{0, byte(len(short))}, short...)); err != nil {
		t.Fatal(err)
	}
	if k, err := job.Read(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes by a connection that was open before the cap", k)
	}
	<-done
}
