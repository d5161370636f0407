package soak

import (
	"path/filepath"
	"testing"
	"time"
)

// Processes of a provider and a renter under load are killed at random points, each alone and both at once, also while they open. Nothing
// that either said to be durable is lost, nothing is charged twice, and when they meet again both have the same to the micro-unit.
func TestSoakKills(t *testing.T) {
	n, r, done := suite(t, 20, 1000)
	n = max(n, 1)
	dir := t.TempDir()
	p, to := newPair(t, dir, dir), newPromised()
	socket := filepath.Join(dir, "s")
	provider, renter := start(t, "provider", p.provider, socket, to), start(t, "renter", p.renter, socket, to)
	kills := 0
	for kills < n {
		switch r.IntN(4) {
		case 0: // while it opens
		default:
			to.await(r.IntN(60), provider, renter)
		}
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond) // between two lines
		victim := r.IntN(3)
		if victim != 0 {
			provider.kill(t)
			kills++
		}
		if victim != 1 {
			renter.kill(t)
			kills++
		}
		if kills%200 < 2 && victim == 2 {
			t.Logf("%d kills, %d vouchers", kills, p.check(t, to))
		}
		if victim != 0 {
			provider = start(t, "provider", p.provider, socket, to)
		}
		if victim != 1 {
			renter = start(t, "renter", p.renter, socket, to)
		}
	}
	to.await(20, provider, renter)
	provider.kill(t)
	renter.kill(t)
	vouchers := p.check(t, to)
	if vouchers == 0 {
		t.Fatal("nothing was done")
	}
	done("kills=%d vouchers=%d payments=%d lost=0 charged_twice=0", kills, vouchers, len(to.paid))
}
