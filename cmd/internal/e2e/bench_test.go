package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/renter/control/api"
)

// waitFree waits until the device can be bought again.
func (o *owner) waitFree() {
	o.t.Helper()
	until(o.t, "the device to be free and on offer", patience, func() bool { return o.free() && o.offering() })
}

// metric reports the median of what was measured in each turn, in milliseconds, in place of the time of a turn.
func metric(b *testing.B, turns []time.Duration, unit string) {
	b.Helper()
	slices.Sort(turns)
	b.ReportMetric(float64(turns[(len(turns)-1)/2].Microseconds())/1000, unit)
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBuy is the time from a run's submission to the lease that both have signed: choosing the offer, one round trip over loopback and
// one durable commit on each side.
func BenchmarkBuy(b *testing.B) {
	m := newFair(b)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	var turns []time.Duration
	for b.Loop() {
		o.waitFree()
		r.sees(1)
		began, leased := time.Now(), time.Duration(0)
		var last api.RunEvent
		err := r.agent.Submit(b.Context(), r.order(m, "exit", "0"), func(e api.RunEvent) error {
			if last = e; leased == 0 && e.Step != api.StepPlan && e.Step != api.StepBuy { // a follower may miss a step, not the one after
				leased = time.Since(began)
			}
			return nil
		})
		if err != nil || leased == 0 {
			b.Fatalf("leased after %v: %v, last %+v", leased, err, last)
		}
		turns = append(turns, leased)
	}
	metric(b, turns, "ms/lease")
}

// BenchmarkOwnerBack is the time from the owner's pause to a free device, under a job that does not listen to SIGTERM.
func BenchmarkOwnerBack(b *testing.B) {
	m := newFair(b)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	var turns []time.Duration
	for b.Loop() {
		o.waitFree()
		r.sees(1)
		id, _ := r.background(r.order(m, "deaf"))
		until(b, "the job to be deaf", patience, func() bool { out, _ := r.output(id); return strings.Contains(out, "ready") })
		began := time.Now()
		if err := o.agent.Pause(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
		for !o.free() {
			time.Sleep(time.Millisecond)
		}
		turns = append(turns, time.Since(began))
		if err := o.agent.Resume(b.Context()); err != nil {
			b.Fatal(err)
		}
		r.ends(id, patience)
	}
	metric(b, turns, "ms/free")
}

// BenchmarkRest is what the owner's daemon and the renter's agent take while nothing happens, a minute after they met: a turn is 30 s, so
// that `-benchtime 10x` measures five minutes.
func BenchmarkRest(b *testing.B) {
	s := newSite(b)
	p := s.newPair(b, s.daemon, "rest")
	p.sees(p.renter)
	time.Sleep(time.Minute)
	pids := map[string]int{"daemon": p.owner.running.cmd.Process.Pid, "agent": p.renter.agent().PID}
	used := func(pid int) time.Duration { return spent(b, pid) }
	before, began := map[string]time.Duration{}, time.Now()
	for name, pid := range pids {
		before[name] = used(pid)
	}
	for b.Loop() {
		time.Sleep(30 * time.Second)
	}
	took := time.Since(began)
	for name, pid := range pids {
		b.ReportMetric(100*float64(used(pid)-before[name])/float64(took), name+"-%core")
		b.ReportMetric(float64(residentMiB(b, pid)), name+"-MiB")
	}
	b.ReportMetric(0, "ns/op")
}

// spent is the processor time of a process so far, in user and kernel mode, without its children's.
func spent(t testing.TB, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the name before it may hold anything
	var skip string
	var user, kernel int64
	if _, err := fmt.Sscan(rest, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &user, &kernel); err != nil {
		t.Fatalf("read %q: %v", rest, err)
	}
	return time.Duration(user+kernel) * time.Second / 100 // ticks of user space are 100 a second on every Linux (USER_HZ)
}
