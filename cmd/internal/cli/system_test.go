package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestDirs(t *testing.T) {
	for name, c := range map[string]struct {
		goos, user string
		env        map[string]string
		want       Dirs
	}{
		"root":    {"linux", "", map[string]string{"XDG_CONFIG_HOME": "/x"}, Dirs{"/etc/gpufaird", "/var/lib/gpufaird", "/run/gpufaird"}},
		"systemd": {"linux", "", map[string]string{"STATE_DIRECTORY": "/s", "RUNTIME_DIRECTORY": "/r", "CONFIGURATION_DIRECTORY": "/c"}, Dirs{"/c", "/s", "/r"}},
		"person":  {"linux", "/h", nil, Dirs{"/h/.config/gpufaird", "/h/.local/state/gpufaird", "/h/.local/state/gpufaird/run"}},
		"XDG": {
			"linux", "/h",
			map[string]string{"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/run/user/1000"},
			Dirs{"/c/gpufaird", "/s/gpufaird", "/run/user/1000/gpufaird"},
		},
		"relative XDG": {"linux", "/h", map[string]string{"XDG_STATE_HOME": "s"}, Dirs{"/h/.config/gpufaird", "/h/.local/state/gpufaird", "/h/.local/state/gpufaird/run"}},
		"macOS": {
			"darwin", "/Users/a", nil,
			Dirs{
				"/Users/a/Library/Application Support/gpufaird", "/Users/a/Library/Application Support/gpufaird",
				"/Users/a/Library/Application Support/gpufaird/run",
			},
		},
		"Windows": {
			"windows", "/u",
			map[string]string{"AppData": "/u/AppData/Roaming", "LocalAppData": "/u/AppData/Local"},
			Dirs{"/u/AppData/Roaming/gpufaird", "/u/AppData/Local/gpufaird", "/u/AppData/Local/gpufaird/run"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dirs("gpufaird", c.goos, c.user, func(n string) string { return c.env[n] })
			if err != nil || got != c.want {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestHome(t *testing.T) {
	home := t.TempDir()
	t.Setenv(HomeVariable, home)
	d, err := SystemDirs("gpufair", "")
	if err != nil || d != (Dirs{home, filepath.Join(home, "state"), filepath.Join(home, "run")}) {
		t.Fatal(d, err)
	}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	for _, private := range []string{d.State, d.Run} {
		if info, err := os.Stat(private); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", private, info.Mode(), err)
		}
	}
	if d, err = SystemDirs("gpufair", "/other"); err != nil || d.Config != "/other" {
		t.Error("--home does not win:", d, err)
	}
	if _, err := d.Socket("api.sock"); err != nil {
		t.Error(err)
	}
	d.Run = "/" + strings.Repeat("x", maxSocket)
	if _, err := d.Socket("api.sock"); CodeOf(err) != ExitSystem {
		t.Error("a socket's path too long for the system:", err)
	}
	file := filepath.Join(home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (Dirs{Config: file, State: home, Run: home}).Make(); CodeOf(err) != ExitSystem {
		t.Error(err)
	}
}

func TestBuild(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-01T00:00:00Z"},
	}}
	for _, c := range []struct {
		stamp string
		info  *debug.BuildInfo
		want  string
	}{
		{"", nil, "devel ("},
		{"", info, "devel 0123456789ab with local changes ("},
		{"v1.2-3-g0123456-dirty", info, "v1.2-3-g0123456-dirty ("},
		{"", &debug.BuildInfo{Main: debug.Module{Version: "v1.0.0"}}, "v1.0.0 ("},
	} {
		if got := buildOf(c.stamp, c.info).String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("got %q, want %q…", got, c.want)
		}
	}
}

// TestStop sends this process real signals.
func TestStop(t *testing.T) {
	ctx, stop := Stop(t.Context())
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("SIGTERM did not cancel")
	}
}

func TestInterrupts(t *testing.T) {
	ch, stop := Interrupts()
	for want := 1; want <= 2; want++ {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-ch:
			if got.Count != want || got.Signal != os.Interrupt {
				t.Errorf("got %v, want %d", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatal("no signal came")
		}
	}
	stop()
	if _, open := <-ch; open {
		t.Error("a third came without a signal")
	}
	signal.Reset(os.Interrupt, syscall.SIGTERM)
}

// TestThird counts without a listener: the third must end the process even if nobody reads the channel.
func TestThird(t *testing.T) {
	in := make(chan os.Signal)
	abandoned := make(chan struct{})
	out := count(in, func() { close(abandoned) })
	for range 3 {
		in <- os.Interrupt
	}
	<-abandoned
	if a, b := <-out, <-out; a.Count != 1 || b.Count != 2 {
		t.Error(a, b)
	}
}

// journal is a log that keeps what it is told.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

func TestGroupStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGroup(slog.New(slog.DiscardHandler))
		var (
			mu    sync.Mutex
			order []string
		)
		for _, name := range []string{"store", "network", "api"} {
			g.Go(name, func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Second) // a part takes its time; the one before it must wait
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
				return ctx.Err()
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		start := time.Now()
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		if !slices.Equal(order, []string{"api", "network", "store"}) || time.Since(start) != time.Minute+3*time.Second {
			t.Error(order, time.Since(start))
		}
	})
}

func TestGroupEndsWithAPart(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"error":   {errors.New("port is busy"), "api: port is busy"},
		"nothing": {nil, "api: ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewGroup(slog.New(slog.DiscardHandler))
				stopped := false
				g.Go("store", func(ctx context.Context) error { <-ctx.Done(); stopped = true; return nil })
				g.Go("api", func(context.Context) error { return c.err })
				if err := g.Run(t.Context()); err == nil || err.Error() != c.want || !stopped {
					t.Errorf("got %v, store stopped: %v", err, stopped)
				}
			})
		})
	}
}

// TestGroupNamesWhoHangs lets one part ignore its cancel.
func TestGroupNamesWhoHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := NewGroup(slog.New(slog.NewTextHandler(&j, nil)))
		release := make(chan struct{})
		g.Go("store", func(ctx context.Context) error { <-ctx.Done(); return nil })
		g.Go("network", func(context.Context) error { hangs(release); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		err := g.Run(ctx)
		if err == nil || err.Error() != fmt.Sprintf("stop network: still running after %s", Grace) || time.Since(start) != Grace {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
		if log := j.String(); !strings.Contains(log, "part=network") || !strings.Contains(log, "cli.hangs") {
			t.Errorf("no name or no stack in %s", log)
		}
		close(release)
	})
}

//go:noinline
func hangs(release chan struct{}) { <-release }

// TestNotify reads what systemd would.
func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := Ready("quiet"); err != nil {
		t.Error("without systemd:", err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	for _, c := range []struct {
		send func() error
		want string
	}{
		{func() error { return Ready("serving\n2") }, "READY=1\nSTATUS=serving?2"}, {Stopping, "STOPPING=1"}, {Reloading, "RELOADING=1\nMONOTONIC_USEC="},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 256)
		n, err := conn.Read(b)
		if err != nil || !strings.HasPrefix(string(b[:n]), c.want) {
			t.Errorf("got %q, %v; want %q", b[:n], err, c.want)
		}
	}
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watchdog(func(context.Context) error { return nil })(ctx) }()
	b := make([]byte, 64)
	if n, err := conn.Read(b); err != nil || string(b[:n]) != "WATCHDOG=1" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
