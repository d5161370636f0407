package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	provided "github.com/gpufair/gpufair/provider/control/api"
)

// refusals are starts that can't be, and what they say to whoever tried.
func refusals(t *testing.T, s *site) {
	p := s.strangers(t, s.daemon, "refusals")
	first := p.owner
	first.daemon()
	mistakes(p)
	next := s.strangers(t, s.daemon, "second").owner // another home: its settings are changed below
	first.refused(9, []string{"run", "--set", "runtime.namespace=gpufair-second"}, "another gpufaird uses", "next: ")
	addr := first.status().Addrs[1] // /ip4/127.0.0.1/tcp/PORT
	port := addr[strings.LastIndexByte(addr, '/')+1:]
	next.refused(9, []string{"run", "--set", "listen=127.0.0.1:" + port}, "127.0.0.1:"+port, "is taken by another program", "next: ")
	next.notRoot()
	second := next.start("run", "--set", "locks="+filepath.Join(first.dir, "locks"))
	next.running = second
	eventually(t, "the second daemon to say who has the core", patience, func() bool {
		st := next.status()
		return len(st.Devices) == 1 && st.Devices[0].State == provided.DeviceUnoffered &&
			strings.Contains(st.Devices[0].Detail, fmt.Sprintf("in use by process %d", first.running.cmd.Process.Pid))
	})
	second.stop()
	first.running.stop()
}

// mistakes are wrong settings and flags: the file and the line, or what was meant.
func mistakes(p *pair) {
	p.t.Helper()
	good, err := os.ReadFile(filepath.Join(p.owner.dir, "config.toml"))
	if err != nil {
		p.t.Fatal(err)
	}
	bad := filepath.Join(p.work, "owner.toml")
	for _, c := range []struct{ old, new, says string }{
		{`price = "3.6"`, `price = "cheap"`, "owner.toml:12:9: cpu.price"},
		{`cores = "0"`, `core = "0"`, "owner.toml:11:1: cpu.core: unknown key; did you mean cpu.cores?"},
		{`max_pids = 64`, `max_pids = 1`, "owner.toml:17:1: cpu[0].max_pids"},
		{`[[cpu]]`, `[[cpu]`, "owner.toml:10:"},
	} {
		write(p.t, bad, strings.Replace(string(good), c.old, c.new, 1))
		p.owner.refused(3, []string{"run", "--config", bad}, c.says, "next: ")
	}
	wrong := filepath.Join(p.work, "renter.toml")
	write(p.t, wrong, "network = \"e2e\"\ngive_up = \"soon\"\n")
	p.renter.refused(3, []string{"search", "--config", wrong}, "renter.toml:2", "next: ")
	p.owner.refused(2, []string{"status", "--lin"}, "--lin", "--line")
	p.owner.refused(2, []string{"stauts"}, "stauts", "status")
	p.renter.refused(2, []string{"ps", "--al"}, "--al", "--all")
	p.renter.refused(125, []string{"run", "--buget", "1", p.image}, "--buget", "--budget")
}

// notRoot runs the daemon as nobody, from a folder that nobody may look into.
func (h *home) notRoot() {
	h.t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "gf") // TMPDIR may be root's alone
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { os.RemoveAll(dir) })
	own := *h
	own.program = filepath.Join(dir, "gpufaird")
	if out, err := exec.Command("cp", h.program, own.program).CombinedOutput(); err != nil {
		h.t.Fatalf("copy gpufaird: %v %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	p := &process{h: &own, cmd: own.command(h.t.Context(), "run", "--home", filepath.Join(dir, "home"))}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	p.cmd.Dir = dir
	p.launch()
	if code := p.ends(patience); code != 9 || !strings.Contains(p.err.String(), "takes root") || !strings.Contains(p.err.String(), "sudo gpufaird run") {
		h.t.Errorf("a daemon that is not root ended with %d:\n%s", code, p.err.String())
	}
}

// badOrders are jobs that can't be: each is refused before anything is paid.
func badOrders(p *pair) {
	p.t.Helper()
	before := one[statement.Ledger](p.renter.ok("ledger", "show", "--json"))
	noImage := filepath.Join(p.work, "no-image.tar")
	write(p.t, noImage, "this is no image\n")
	order := func(image, output string, args ...string) []string {
		return append([]string{"run", image, "--output", filepath.Join(p.work, output)}, args...)
	}
	cpu := []string{"-q", "kind=cpu", "--budget", "0.5", "--", "job", "exit", "0"}
	p.renter.refused(125, order(noImage, "n1", cpu...), "no-image.tar", "docker save")
	p.renter.refused(125, order(filepath.Join(p.work, "nowhere.tar"), "n2", cpu...), "nowhere.tar", "does not exist")
	p.renter.refused(125, order(p.image, "out", cpu...), "output folder", "exists")
	p.renter.refused(125, order(p.image, "n3", "-q", "kind=cpu", "--budget", "0.001", "--", "job"), "budget", "raise --budget")
	p.renter.refused(125, order(p.image, "n4", "-q", "kind=cpu pirce<1", "--budget", "1"), `no field "pirce"`)
	p.renter.refused(125, order(p.image, "n5", "--budget", "1"), "no live offer matches")
	if r := p.renter.run(order(p.image, "n6", "-q", "kind=cpu", "--budget", "0.5", "--name", "missing", "--", "nothing-like-it")...); r.code != 127 {
		p.t.Errorf("a command that is not in the image: %d\n%s", r.code, r.err)
	}
	if job := p.job("missing"); job.Reason != "command_missing" || job.Cost != "0" {
		p.t.Errorf("ps of a missing command: %+v", job)
	}
	p.stranger()
	after := one[statement.Ledger](p.renter.ok("ledger", "show", "--json"))
	if len(after.Balances) != 1 || after.Balances[0].IOwe != before.Balances[0].IOwe || after.Balances[0].Held != "0" {
		p.t.Errorf("bad orders cost something: %+v, before %+v", after.Balances, before.Balances)
	}
}

// stranger is a renter whom the owner has not named.
func (p *pair) stranger() {
	p.t.Helper()
	h := &home{t: p.t, program: p.gpufair, dir: shortDir(p.t)}
	write(p.t, filepath.Join(h.dir, "config.toml"), fmt.Sprintf(renterSettings, p2ptest.Loopback(p.t), "10s"))
	defer h.endAgent()
	p.meet(h)
	h.refused(125, []string{
		"run", p.image, "-q", "kind=cpu", "--budget", "0.5", "--output", filepath.Join(p.work, "strange"), "--", "job", "exit", "0",
	}, "serve")
	for _, b := range one[statement.Ledger](h.ok("ledger", "show", "--json")).Balances {
		if b.Held != "0" || b.IOwe != "0" {
			p.t.Errorf("a refused stranger holds or owes: %+v", b)
		}
	}
}
