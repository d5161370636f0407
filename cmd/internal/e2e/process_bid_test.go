package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// sealedBid: an agent that is killed with its sealed bid on the way bids once, opens it in its next life, and runs and pays the job that it
// won at the bid's price. Anybody can check the auction's file.
func sealedBid(t *testing.T, s *site) {
	p := s.strangers(t, s.daemon, "bid")
	config := filepath.Join(p.owner.dir, "config.toml")
	b, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, config, string(b)+"reserve = \"1.8\"\n[auction]\ncommit = \"45s\"\nreveal = \"20s\"\n")
	p.owner.daemon()
	p.meet(p.renter)
	offer := p.sees(p.renter)
	args := []string{"run", p.image, "--offer", offer.ID, "--budget", "1", "--name", "bid", "--output", p.out("bid"), "--bid"}
	p.renter.refused(125, append(args, "1.7", "--", "job", "work", "5", "/out/result"), "the reserve 1.8")
	run := p.renter.start(append(args, "2.4", "--", "job", "work", "50", "/out/result")...)
	run.says("the seller has the sealed bid")
	if err := syscall.Kill(p.renter.agent().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := run.ends(patience); code != 125 || !strings.Contains(run.err.String(), "any command starts the agent again") {
		t.Errorf("run without its agent ended with %d:\n%s", code, run.err.String())
	}
	if job := p.job("bid"); job.State != "bidding" {
		t.Errorf("ps after the agent was killed: %+v", job)
	}
	eventually(t, "the job's end", 2*patience, func() bool { return p.job("bid").State == "ended" })
	p.finished("bid", 50)
	job := p.job("bid")
	if most := (rent(50) + rent(30)) * 2 / 3; amount(t, job.Cost) > most || job.Rate != "2.4" {
		t.Errorf("%s paid at %s an hour, want at most %v", job.Cost, job.Rate, most)
	}
	said := p.renter.ok("auction", "verify", job.Auction)
	if !strings.Contains(said, "2.4") {
		t.Errorf("the auction's file says:\n%s", said)
	}
	p.owner.ok("auctions")
}
