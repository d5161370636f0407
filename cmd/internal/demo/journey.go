package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed scene.json
var scene []byte

const (
	renter       = "renter"        // home of the renter's agent
	measureIn    = 5 * time.Minute // 40 s on an idle core
	offersIn     = time.Minute     // until the renter has heard of all providers
	budget       = "0.05"
	jobName      = "picture"
	lookInterval = 2 * time.Minute // for anything that should take seconds
)

// providers are the owners, by the homes of their daemons; each has a core and a price of its own.
func providers() []owner {
	return []owner{{name: "alice", price: "0.40"}, {name: "bob", price: "0.30"}}
}

// owner is a provider of the demo.
type owner struct {
	name, price string // per hour
	core        int
	account     string
	proc        *process
}

// journey is the demo's story and what it has come to.
type journey struct {
	*world
	results string
	owners  []*owner
	account string // the renter's
	job     job
	paidTo  *owner
	amount  string
}

// job is what `gpufair ps --json` prints of a job, as far as the demo reads it.
type job struct {
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	State    string  `json:"state"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	Rate     string  `json:"rate"`
	Unit     string  `json:"unit"`
	Seconds  float64 `json:"seconds"`
	Cost     string  `json:"cost"`
	Results  string  `json:"results"`
	Exit     *struct {
		Code int `json:"code"`
	} `json:"exit"`
}

func (j *journey) run(ctx context.Context) error {
	for _, step := range []struct {
		title string
		f     func(context.Context) error
	}{
		{"two owners and a renter, each with keys, settings and folders of their own", j.begin},
		{"the owners say whom they serve; invite and join", j.meet},
		{"the owners measure what they offer", j.measure},
		{"the renter searches", j.search},
		{"the renter runs a job: find, buy, push, run, follow, bring home", j.rent},
		{"renter and owner settle", j.settle},
		{"both ledgers say the same", j.compare},
	} {
		fmt.Printf("\n== %s\n", step.title)
		if err := step.f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// show runs a command as a person would, and prints it.
func (j *journey) show(ctx context.Context, home, program string, args ...string) error {
	said := make([]string, len(args))
	for i, a := range args {
		if said[i] = strings.ReplaceAll(a, j.dir+"/", ""); strings.ContainsAny(a, " <>=") {
			said[i] = "'" + a + "'"
		}
		if len(said[i]) > 100 {
			said[i] = said[i][:60] + "…"
		}
	}
	fmt.Printf("%s$ %s %s\n", home, program, strings.Join(said, " "))
	cmd := j.command(ctx, home, program, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", program, args[0], err)
	}
	return nil
}

// begin starts containerd, the providers and, by its first command, the renter's agent.
func (j *journey) begin(ctx context.Context) error {
	if err := j.startContainerd(ctx); err != nil {
		return err
	}
	cores, err := allowedCores()
	if err != nil {
		return err
	}
	for i, o := range providers() {
		if i == len(cores) {
			fmt.Println("this machine has one core: there will be one owner")
			break
		}
		o.core = cores[i]
		j.owners = append(j.owners, &o)
		if err := j.configure(&o); err != nil {
			return err
		}
		if o.proc, err = j.start(o.name, filepath.Join(j.bin, "gpufaird"), "run", "--home", j.path(o.name)); err != nil {
			return err
		}
	}
	for _, o := range j.owners {
		err := until(ctx, o.proc, o.name+"'s daemon answers", lookInterval, func() (bool, error) {
			s, err := one[struct{ Account string }](ctx, j.world, o.name, "gpufaird", "status")
			o.account = s.Account
			return err == nil, err
		})
		if err != nil {
			return err
		}
	}
	text := "network = \"demo\"\nlisten = [\"127.0.0.1:0\"]\nmdns = false\n"
	if err := errors.Join(os.Mkdir(j.path(renter), 0o700), os.WriteFile(j.path(renter+"/config.toml"), []byte(text), 0o600)); err != nil {
		return err
	}
	me, err := one[struct{ Account string }](ctx, j.world, renter, "gpufair", "identity", "show")
	j.account = me.Account
	if err != nil {
		return err
	}
	return j.show(ctx, renter, "gpufair", "identity", "show")
}

// configure writes an owner's settings.
func (j *journey) configure(o *owner) error {
	accounts := ""
	if j.account != "" {
		accounts = strconv.Quote(j.account)
	}
	text := fmt.Sprintf(`network = "demo"
listen = ["127.0.0.1:0"]
mdns = false
[serve]
accounts = [%s]
[runtime]
address = %q
namespace = %q
root = %q
[[cpu]]
cores = "%d"
price = %q
memory = "512MiB"
disk = "256MiB"
min_term = "10s"
max_term = "1h"
max_pids = 64
`, accounts, j.socket(), j.namespace(o.name), j.path("runc"), o.core, o.price)
	return errors.Join(os.MkdirAll(j.path(o.name), 0o700), os.WriteFile(j.path(o.name+"/config.toml"), []byte(text), 0o600))
}

// allowedCores are the cores that this process may use, as the kernel numbers them.
func allowedCores() ([]int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	_, list, _ := strings.Cut(string(status), "Cpus_allowed_list:")
	list, _, _ = strings.Cut(list, "\n")
	return parseCores(strings.TrimSpace(list))
}

// parseCores reads a list such as 0-2,5.
func parseCores(list string) ([]int, error) {
	var cores []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("read the list of cores %q: %w", list, err)
		}
		for c := from; c <= to; c++ {
			cores = append(cores, c)
		}
	}
	return cores, nil
}

// meet puts the renter's account into the owners' settings, and connects everybody by one string.
func (j *journey) meet(ctx context.Context) error {
	for _, o := range j.owners {
		if err := j.configure(o); err != nil {
			return err
		}
		fmt.Printf("%s: accounts = [\"%s…\"] under [serve] in config.toml\n", o.name, j.account[:16])
		if err := j.show(ctx, o.name, "gpufaird", "config", "reload"); err != nil {
			return err
		}
	}
	first := j.owners[0]
	text, err := j.ask(ctx, first.name, "gpufaird", "invite")
	if err != nil {
		return err
	}
	fmt.Printf("%s$ gpufaird invite\n%.100s…\n", first.name, text)
	invite := strings.TrimSpace(string(text))
	if err := j.show(ctx, renter, "gpufair", "join", invite); err != nil {
		return err
	}
	for _, o := range j.owners[1:] {
		if err := j.show(ctx, o.name, "gpufaird", "join", invite); err != nil {
			return err
		}
	}
	return nil
}

// measure waits until every owner has measured its core and offers it.
func (j *journey) measure(ctx context.Context) error {
	fmt.Println("this takes about a minute …")
	for _, o := range j.owners {
		err := until(ctx, o.proc, o.name+" offers a core", measureIn, func() (bool, error) {
			s, err := one[struct {
				State    string
				Warnings []string
				Devices  []struct{ State, Detail string }
			}](ctx, j.world, o.name, "gpufaird", "status")
			if err != nil || len(s.Devices) == 0 {
				return false, err
			}
			why := fmt.Errorf("the daemon is %s %v, its core is %s %s", s.State, s.Warnings, s.Devices[0].State, s.Devices[0].Detail)
			return s.State == "serving" && s.Devices[0].State == "free", why
		})
		if err != nil {
			return err
		}
		if err := j.show(ctx, o.name, "gpufaird", "status"); err != nil {
			return err
		}
	}
	return nil
}

// search waits until the renter has heard of all offers, and lists them.
func (j *journey) search(ctx context.Context) error {
	err := until(ctx, j.owners[0].proc, "the renter knows all offers", offersIn, func() (bool, error) {
		found, err := askJSON[struct{ Alive bool }](ctx, j.world, renter, "gpufair", "search", "kind=cpu")
		return len(found) == len(j.owners), orErr(err, fmt.Errorf("%d offers of %d", len(found), len(j.owners)))
	})
	if err != nil {
		return err
	}
	return j.show(ctx, renter, "gpufair", "search", "kind=cpu", "-o", "price")
}

// buildImage builds the job's program and puts it into an image.
func buildImage(ctx context.Context, program, image string) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/internal/demo/render")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the job: %w: %s", err, out)
	}
	return writeImage(image, program, "render")
}

// rent makes an image and runs it.
func (j *journey) rent(ctx context.Context) error {
	err := errors.Join(
		buildImage(ctx, j.path("render"), j.path("render.tar")), os.Mkdir(j.path("scene"), 0o700),
		os.WriteFile(j.path("scene/scene.json"), scene, 0o600), os.MkdirAll(filepath.Dir(j.results), 0o755),
	)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	err = j.show(ctx, renter, "gpufair", "run", j.path("render.tar"), "-q", "kind=cpu", "--name", jobName, "--budget", budget,
		"--input", j.path("scene"), "--output", j.results, "--yes", "--", "/bin/render", "/in/scene.json", "/out")
	if err != nil {
		return err
	}
	jobs, err := askJSON[job](ctx, j.world, renter, "gpufair", "ps", "--all")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(jobs, func(v job) bool { return v.Name == jobName })
	if i < 0 {
		return fmt.Errorf("gpufair ps --all does not list the job %q", jobName)
	}
	j.job = jobs[i]
	if i = slices.IndexFunc(j.owners, func(o *owner) bool { return o.account == j.job.Provider }); i < 0 {
		return fmt.Errorf("the job ran at %s, which is none of the owners", j.job.Provider)
	}
	j.paidTo = j.owners[i]
	if info, err := os.Stat(filepath.Join(j.results, "picture.png")); err != nil || info.Size() == 0 {
		return fmt.Errorf("the picture did not come home: %w", orErr(err, errors.New("it is empty")))
	}
	return j.wiped(ctx)
}

// wiped waits until the owner's machine has nothing of the job any more.
func (j *journey) wiped(ctx context.Context) error {
	return until(ctx, j.paidTo.proc, "the owner has wiped the job", lookInterval, func() (bool, error) {
		l, err := one[struct {
			State string
			Wiped bool
		}](ctx, j.world, j.paidTo.name, "gpufaird", "leases", "show", j.job.ID)
		return err == nil && l.Wiped, orErr(err, fmt.Errorf("the lease is %s", l.State))
	})
}

// payment is a settlement as `settle --json` prints it.
type payment struct {
	ID, State, Amount, Unit, Reference string
	Signed                             []string
}

// settle records the renter's payment, which the owner confirms.
func (j *journey) settle(ctx context.Context) error {
	fmt.Printf("(the renter has paid %s by whatever means they agreed on, with the reference demo-1)\n", j.paidTo.name)
	reference := []string{"settle", j.paidTo.account, "--reference", "demo-1"}
	if err := j.show(ctx, renter, "gpufair", reference...); err != nil {
		return err
	}
	find := func(home, program string) (payment, error) {
		all, err := askJSON[payment](ctx, j.world, home, program, "settle", "list")
		if i := slices.IndexFunc(all, func(p payment) bool { return p.Reference == "demo-1" }); i >= 0 {
			return all[i], nil
		}
		return payment{}, orErr(err, errors.New("no settlement with that reference"))
	}
	p, err := find(j.paidTo.name, "gpufaird")
	if err != nil {
		return err
	}
	if p.State != "signed" {
		if err := j.show(ctx, j.paidTo.name, "gpufaird", "settle", "accept", p.ID); err != nil {
			return err
		}
	}
	return until(ctx, j.paidTo.proc, "both have signed the settlement", lookInterval, func() (bool, error) {
		mine, err := find(renter, "gpufair")
		theirs, err2 := find(j.paidTo.name, "gpufaird")
		why := errors.Join(err, err2)
		if why == nil && (mine.Amount != theirs.Amount || mine.ID != theirs.ID) {
			why = fmt.Errorf("renter %s, owner %s", mine.Amount, theirs.Amount)
		}
		ok := why == nil && mine.State == "signed" && theirs.State == "signed" && len(mine.Signed) == 2 && len(theirs.Signed) == 2
		return ok, orErr(why, fmt.Errorf("renter: %s by %d, owner: %s by %d", mine.State, len(mine.Signed), theirs.State, len(theirs.Signed)))
	})
}

// compare holds the two ledgers against each other.
func (j *journey) compare(ctx context.Context) error {
	type side struct {
		home, program string
	}
	type statement struct {
		Amount, Unit, Voucher, Receipt string
		Signed                         []string
		Settled                        bool
	}
	type balance struct {
		Account, Settled string
		OwedToMe         string `json:"owed_to_me"`
		IOwe             string `json:"i_owe"`
	}
	var all []statement
	var settled []string
	for _, s := range []side{{renter, "gpufair"}, {j.paidTo.name, "gpufaird"}} {
		st, err := one[statement](ctx, j.world, s.home, s.program, "ledger", "statement", j.job.ID)
		if err != nil {
			return err
		}
		books, err := one[struct{ Balances []balance }](ctx, j.world, s.home, s.program, "ledger", "show")
		if err != nil {
			return err
		}
		for _, v := range []string{"ledger statement " + j.job.ID[:12], "ledger verify"} {
			if err := j.show(ctx, s.home, s.program, strings.Fields(v)...); err != nil {
				return err
			}
		}
		all = append(all, st)
		for _, b := range books.Balances {
			if b.Account == j.account || b.Account == j.paidTo.account {
				settled = append(settled, b.Settled+" settled, open "+b.OwedToMe+" and "+b.IOwe)
			}
		}
	}
	mine, theirs := all[0], all[1]
	switch {
	case mine.Amount != theirs.Amount || mine.Unit != theirs.Unit || mine.Voucher != theirs.Voucher || mine.Receipt != theirs.Receipt:
		return fmt.Errorf("the ledgers differ: renter %+v, owner %+v", mine, theirs)
	case mine.Amount != j.job.Cost:
		return fmt.Errorf("the job cost %s, the ledgers say %s", j.job.Cost, mine.Amount)
	case len(mine.Signed) != 2 || len(theirs.Signed) != 2:
		return fmt.Errorf("both signatures are wanted, but the renter has %v and the owner %v", mine.Signed, theirs.Signed)
	case !mine.Settled || !theirs.Settled:
		return fmt.Errorf("the settlement is signed, but the lease counts as settled at the renter: %v, at the owner: %v", mine.Settled, theirs.Settled)
	case len(settled) != 2 || settled[0] != settled[1]:
		return fmt.Errorf("the balances differ: %q", settled)
	}
	j.amount = mine.Amount + " " + mine.Unit
	fmt.Printf("renter and %s: %s, with the same voucher and receipt, signed by both, settled\n", j.paidTo.name, j.amount)
	return nil
}

// summary tells what happened, in a few lines.
func (j *journey) summary(all time.Duration) {
	where, err := filepath.Abs(j.results)
	if err != nil {
		where = j.results
	}
	fmt.Printf(`
== done in %.0f s
  who        a renter rented core %d of %s (%s), the cheapest of %d offer(s)
  what       a container with a path tracer; it ran %.1f s and ended by itself
  how much   %s at %s %s an hour; both ledgers say so, with the signatures of both
  paid       settled with reference demo-1, signed by both
  results    %s
  left over  nothing that runs or is mounted; a few empty lock files in /run/lock/gpufair, until the next boot
`, all.Seconds(), j.paidTo.core, j.paidTo.name, j.job.Model, len(j.owners), j.job.Seconds, j.amount, j.job.Rate, j.job.Unit,
		filepath.Join(where, "picture.png"))
}
