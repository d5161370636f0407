package renter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/announce"
	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/renter/control/api"
)

// sequences numbers offers for one publisher.
type sequences struct{ last uint64 }

func (s *sequences) ReserveSeq(_ context.Context, n uint64) (uint64, error) {
	first := s.last + 1
	s.last += n
	return first, nil
}

// buys reports whether a run would find so many devices.
func buys(t *testing.T, a *Agent, q string, devices int) bool {
	t.Helper()
	found, err := a.choose(t.Context(), api.RunRequest{Query: q, Devices: devices})
	if (err == nil) != (len(found) > 0) || err != nil && (!errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "no live offer matches")) {
		t.Errorf("%d found, %v", len(found), err)
	}
	return err == nil
}

// shows reports whether a search gives anything.
func shows(t *testing.T, a *Agent, q string, _ int) bool {
	t.Helper()
	res, err := a.Search(t.Context(), api.SearchRequest{Query: q})
	must(t, err)
	for _, o := range res.Offers {
		if !o.Alive {
			t.Error("it was asked, but is not shown as alive")
		}
	}
	return len(res.Offers) > 0
}

// wordOf is an index in which one machine left word.
type wordOf p2p.PeerAddr

func (wordOf) LeaveWord(context.Context) error { return nil }
func (w wordOf) FindWords(context.Context, int) []p2p.PeerAddr {
	return []p2p.PeerAddr{p2p.PeerAddr(w)}
}

// TestSearchAsksTheIndex: the renter is connected to nobody, and finds an offer by the word that its owner left in the index.
func TestSearchAsksTheIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		owner := p2ptest.Device(t)
		theirs, mine := net.Join(owner), net.Join(p2ptest.Device(t))
		board := func(node *p2ptest.Node, x p2p.Index) *announce.Board {
			b, err := book.New(book.Config{})
			must(t, err)
			board, err := announce.New(node, b, announce.Config{Network: testNet, Log: log, Index: x})
			must(t, err)
			running.Go(func() { must(t, board.Run(ctx)) })
			return board
		}
		pub, err := announce.NewPublisher(board(theirs, nil), owner, &sequences{})
		must(t, err)
		running.Go(func() { must(t, pub.Run(ctx)) })
		must(t, pub.Set(markettest.Offer(owner, 1, time.Now())))
		time.Sleep(3 * time.Second)
		synctest.Wait()
		a := &Agent{Deps: Deps{Device: p2ptest.Device(t), Network: mine, Board: board(mine, wordOf{Peer: owner.Peer(), Addrs: theirs.Addrs()}), Log: log}}
		if len(mine.Peers()) > 0 || a.Board.Book().Len() > 0 {
			t.Fatal("the offer is known already: the test shows nothing")
		}
		if !shows(t, a, "kind=cpu price<1", 1) {
			t.Error("search did not find the offer")
		}
		explains(t, a)
	})
}

// explains asks why the offer that the book knows, of four GPUs and a CPU, does not match.
func explains(t *testing.T, a *Agent) {
	t.Helper()
	r, err := a.Why(t.Context(), api.WhyRequest{Query: "kind=any price<0.000001 gpu_ram>=80"})
	must(t, err)
	if r.Known != 2 || r.Matches != 0 || len(r.Nearest) != 2 || r.Conditions[0].Refuses != 2 || r.Conditions[0].Alone != 0 {
		t.Fatalf("%+v", r)
	}
	gpu := r.Nearest[0] // its memory is nearer than none
	if gpu.Offer.Kind != "gpu" || len(gpu.Refused) != 2 || gpu.Refused[0].Code != string(reason.PriceBelow) || gpu.Refused[0].Next == "" ||
		gpu.Refused[1].Code != string(reason.ResourcesExceeded) || r.Nearest[1].Refused[1].Code != string(reason.NotStated) {
		t.Errorf("%+v", r.Nearest)
	}
	if r, err := a.Why(t.Context(), api.WhyRequest{Query: "kind=any free=any", AllowUnknown: true}); err != nil || r.Matches != 2 || len(r.Nearest) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := a.Why(t.Context(), api.WhyRequest{Query: "price"}); !errors.Is(err, ErrRequest) {
		t.Errorf("half a condition: %v", err)
	}
}

// buysNothingOfItself lets the owner's own agent look at an offer of its own account: a channel has two sides.
func buysNothingOfItself(t *testing.T, a *Agent, owner *identity.Device, q string) {
	t.Helper()
	a.Device = owner
	if buys(t, a, q, 1) {
		t.Error("chose an own offer")
	}
	res, err := a.Search(t.Context(), api.SearchRequest{Query: q})
	must(t, err)
	if len(res.Offers) != 1 {
		t.Fatalf("search shows %d offers", len(res.Offers))
	}
	_, err = a.choose(t.Context(), api.RunRequest{Offer: res.Offers[0].ID})
	if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "your own account's") {
		t.Errorf("an own offer by its name: %v", err)
	}
}

// TestFreeAgain: a job has ended, and the news of it has not come yet. Search and run find the device all the same, by asking its machine.
func TestFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := p2ptest.NewNet(t)
		log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		run := func(f func(context.Context) error) {
			running.Go(func() {
				if err := f(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		board := func(node *p2ptest.Node) *announce.Board {
			b, err := book.New(book.Config{})
			must(t, err)
			board, err := announce.New(node, b, announce.Config{Network: testNet, Log: log})
			must(t, err)
			run(board.Run)
			return board
		}
		owner := p2ptest.Device(t)
		renter := p2ptest.Device(t)
		theirs, mine := net.Join(owner), net.Join(renter)
		defer running.Wait()
		defer cancel()
		pub, err := announce.NewPublisher(board(theirs), owner, &sequences{})
		must(t, err)
		run(pub.Run)
		a := &Agent{Deps: Deps{Device: renter, Network: mine, Board: board(mine), Log: log}}
		net.Mesh()
		offer := func(free uint64) {
			must(t, pub.Set(markettest.Offer(owner, 1, time.Now()).WithFree(free)))
			time.Sleep(3 * time.Second)
			synctest.Wait()
		}
		const q = "kind=cpu price<1"
		parsed, order, err := parseSearch(q, "", false)
		must(t, err)
		for name, finds := range map[string]func(*testing.T, *Agent, string, int) bool{"run": buys, "search": shows} {
			net.Faults(owner.Peer(), renter.Peer(), p2ptest.Faults{})
			offer(0)
			if _, ok := a.Board.Book().Get(owner.Peer(), time.Now()); !ok || finds(t, a, q, 1) {
				t.Fatal(name, "finds a device that is taken, or the book knows nothing")
			}
			net.Faults(owner.Peer(), renter.Peer(), p2ptest.Faults{Drop: 1})
			offer(1 << 4)
			if finds(t, a, "kind=cpu price<0.000001", 1) {
				t.Error(name, "finds what does not match")
			}
			if len(a.Board.Book().Search(parsed, order, 1, time.Now())) > 0 {
				t.Fatal("the news has come: the test shows nothing")
			}
			if !finds(t, a, q, 1) {
				t.Error(name, "does not find a free device")
			}
		}
		if buys(t, a, q, 2) {
			t.Error("found two devices where there is one")
		}
		buysNothingOfItself(t, a, owner, q)
	})
}

// TestShortTerm: a term under the offer's shortest is the reason of its refusal, not the budget.
func TestShortTerm(t *testing.T) {
	lot := market.Lot{Price: 3_600_000, MinTerm: 60, MaxTerm: 3600}
	for name, c := range map[string]struct {
		p    planned
		want uint32
		why  string
	}{
		"term":       {planned{req: api.RunRequest{Term: 100}, budget: 1e6}, 100, ""},
		"no term":    {planned{budget: 1e12}, 3600, ""},
		"short term": {planned{req: api.RunRequest{Term: 1}, budget: 1e6}, 0, "60 s, and 1 s were asked for; ask for --term 60s"},
		"budget":     {planned{req: api.RunRequest{Term: 100}, budget: 1}, 0, "raise --budget"},
	} {
		c.p.needs.Devices = 1
		term, err := c.p.term(lot)
		if term != c.want || (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: got %d, %v", name, term, err)
		}
	}
}

// TestAnother: what one owner refuses, another may sell; what is wrong with the renter itself is wrong everywhere.
func TestAnother(t *testing.T) {
	for code, want := range map[reason.Code]bool{
		reason.NotServed: true, reason.CreditLimit: true, reason.StrangersTotal: true, reason.DiskFull: true, reason.DeviceTaken: true,
		reason.HistoryForked: false, reason.Equivocation: false, reason.DelegationPowers: false, reason.Duplicate: false, reason.StoppedRenter: false,
		reason.ImageInvalid: false,
	} {
		if another(reason.Reason{Code: code}) != want {
			t.Errorf("%s: the next is tried: %v", code, !want)
		}
	}
}

// TestRoomy: inputs that no offer's disk holds are refused by their sizes, before they are read or anything is paid.
func TestRoomy(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "deep"), 0o700))
	for _, name := range []string{"a", "deep/b"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		must(t, os.Truncate(filepath.Join(dir, name), 1<<30)) // holes: nothing is written
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(dir, link))
	lot := func(mib uint64) book.Found { return book.Found{Lot: market.Lot{DiskMiB: mib}} }
	for name, c := range map[string]struct {
		input   string
		devices int
		disks   []uint64
		want    []uint64
	}{
		"no input":    {"", 1, []uint64{1}, []uint64{1}},
		"fits":        {dir, 1, []uint64{2048}, []uint64{2048}},
		"does not":    {dir, 1, []uint64{100, 2047}, nil},
		"another":     {dir, 1, []uint64{100, 4096}, []uint64{4096}},
		"one file":    {filepath.Join(dir, "a"), 1, []uint64{1024, 1023}, []uint64{1024}},
		"a link":      {link, 1, []uint64{1024}, nil},
		"two devices": {dir, 2, []uint64{1024}, []uint64{1024}},
	} {
		var offers []book.Found
		for _, d := range c.disks {
			offers = append(offers, lot(d))
		}
		fit, err := roomy(t.Context(), offers, api.RunRequest{Input: c.input, Devices: c.devices})
		var got []uint64
		for _, f := range fit {
			got = append(got, f.Lot.DiskMiB)
		}
		if !slices.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
		if err != nil && (!errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), fmt.Sprintf("has 2048 MiB, and the disk of the offer has %d MiB", slices.Max(c.disks))) ||
			!strings.Contains(Next(err), "disk>2")) {
			t.Errorf("%s: %v, next %s", name, err, Next(err))
		}
	}
	if _, err := roomy(t.Context(), nil, api.RunRequest{Input: filepath.Join(dir, "gone")}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
