package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpufair/gpufair/ledger/disk"
	"github.com/gpufair/gpufair/ledger/money"
)

type settings struct {
	Name  string    `toml:"name" comment:"shown to renters"`
	Log   LogConfig `toml:"log"`
	Serve struct {
		Accounts []string   `toml:"accounts" comment:"whom to serve"`
		Price    money.Rate `toml:"price"`
		Term     Duration   `toml:"min_term"`
		Disk     Size       `toml:"disk"`
		Ports    []int      `toml:"ports"`
		Open     bool       `toml:"open"`
	} `toml:"serve"`
	Lots []lot `toml:"lots" comment:"what is offered"`
}

type lot struct {
	Cores string `toml:"cores"`
	Count int    `toml:"count"`
}

func (s settings) Validate() error {
	var errs []error
	if s.Serve.Term.Std() < time.Minute {
		errs = append(errs, KeyErrorf("serve.min_term", "%s is under a minute", s.Serve.Term))
	}
	for i, l := range s.Lots {
		if l.Count > 4 {
			errs = append(errs, KeyErrorf("lots["+string(rune('0'+i))+"].count", "%d is over 4", l.Count))
		}
	}
	return errors.Join(append(errs, s.Log.Validate())...)
}

func defaults() settings {
	s := settings{Name: "here", Log: DefaultLog()}
	s.Serve.Term = Duration(10 * time.Minute)
	s.Serve.Price = 250_000
	s.Serve.Disk = 4 << 30
	s.Serve.Accounts = []string{"old"}
	return s
}

func TestLoadLayers(t *testing.T) {
	s := defaults()
	err := Load(&s, Source{
		Path: "config.toml",
		Data: []byte("name = \"file\"\n[serve]\nprice = \"0.5\"\naccounts = [\"a\"]\nmin_term = \"2h\"\n[[lots]]\ncores = \"0-1\"\n"),
		Env:  []string{"GPUFAIR_SERVE_PRICE=0.75", "GPUFAIR_SERVE_ACCOUNTS=b, c", "GPUFAIR_SERVE_DISK=1GiB", "HOME=/x", "GPUFAIR_NAME=true"},
		Set:  []string{"serve.price=1", "serve.ports=1,2", "serve.open=true", `log.level="debug"`},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Name, want.Log.Level = "true", "debug"
	want.Serve.Price, want.Serve.Term, want.Serve.Disk = 1_000_000, Duration(2*time.Hour), 1<<30
	want.Serve.Accounts, want.Serve.Ports, want.Serve.Open = []string{"b", "c"}, []int{1, 2}, true
	want.Lots = []lot{{Cores: "0-1"}}
	if d := cmp.Diff(want, s); d != "" {
		t.Error(d)
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		file     string
		env, set []string
		want     []string
	}{
		"unknown keys": {
			file: "name = \"x\"\nnmae = 1\n\n[serve]\n  acounts = []\n\n[[lots]]\ncores = \"0\"\n[[lots]]\nkores = \"1\"\n",
			want: []string{
				"c.toml:2:1: nmae: unknown key; did you mean name?", "c.toml:5:3: serve.acounts: unknown key; did you mean serve.accounts?",
				"c.toml:10:1: lots.kores: unknown key; did you mean lots.cores?",
			},
		},
		"key in the wrong table": {file: "min_term = \"1h\"\n", want: []string{"c.toml:1:1: min_term: unknown key; did you mean serve.min_term?"}},
		"nothing near":           {file: "zebra_crossing = 1\n", want: []string{"c.toml:1:1: zebra_crossing: unknown key"}},
		"wrong type":             {file: "[serve]\nopen = \"maybe\"\n", want: []string{"c.toml:2:8: serve.open: must be true or false"}},
		"table for a value":      {file: "[name]\nx = 1\n[serve]\nopen = 0\n", want: []string{"c.toml:1:2: name: must be a text in quotes", "c.toml:4:8: serve.open: must be true or false"}},
		"wrong text":             {file: "[serve]\nmin_term = \"soon\"\n", want: []string{"c.toml:2:12: serve.min_term: duration \"soon\" is no time span such as 90s, 1h30m or 7d"}},
		"wrong money":            {file: "[serve]\nprice = \"0.0000001\"\n", want: []string{"c.toml:2:9: serve.price: "}},
		"amounts without quotes": {
			file: "serve = {price = 1, ports = [3], accounts = [\"x\"]}\n",
			want: []string{"c.toml:1:18: serve.price: must stand in quotes: \"1\""},
		},
		"huge number": {file: "[[lots]]\ncount = 99999999999999999999\n", want: []string{"c.toml:2:9: lots.count: decimal number is too large"}},
		"no TOML":     {file: "name = \n", want: []string{"c.toml:1:8: "}},
		"rule by line": {
			file: "[serve]\nmin_term = \"1s\"\n[[lots]]\ncount = 1\n[[lots]]\ncount = 9\n[log]\nlevel = \"loud\"\n",
			want: []string{"c.toml:2:1: serve.min_term: 1s is under a minute", "c.toml:6:1: lots[1].count: 9 is over 4", "c.toml:8:1: log.level: \"loud\" is none of"},
		},
		"rule of a variable": {env: []string{"GPUFAIR_SERVE_MIN_TERM=1s"}, want: []string{"GPUFAIR_SERVE_MIN_TERM: serve.min_term: 1s is under a minute"}},
		"rule of a flag":     {set: []string{"serve.min_term=1s"}, want: []string{"--set: serve.min_term: 1s is under a minute"}},
		"value of a variable": {
			env:  []string{"GPUFAIR_SERVE_OPEN=perhaps"},
			want: []string{"GPUFAIR_SERVE_OPEN: serve.open: \"perhaps\": "},
		},
		"flags": {
			set: []string{"serve.opne=true", "serve", "lots=3", "serve=1", "lots.cores=1", "serve.ports=x", "serve.ports=99999999999999999999"},
			want: []string{
				"--set: serve.opne: unknown key; did you mean serve.open?", "--set serve: is not key=value", "--set: lots: can only be set in the config file",
				"--set: serve: is a table: give one of its keys, such as serve.accounts", "--set: lots.cores: can only be set in the config file",
				"--set: serve.ports: \"x\": must be a list, each of it a whole number",
				"--set: serve.ports: \"99999999999999999999\": must be a list, each of it a whole number",
			},
		},
		"injection": {set: []string{"name=x\"\nserve.open = true\ny = \""}, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			wantMistakes(t, Source{Path: "c.toml", Data: []byte(c.file), Env: c.env, Set: c.set}, c.want)
		})
	}
}

func wantMistakes(t *testing.T, from Source, want []string) {
	t.Helper()
	s := defaults()
	err := Load(&s, from)
	if len(want) == 0 {
		if err != nil || s.Serve.Open {
			t.Fatalf("got %v, open %v", err, s.Serve.Open)
		}
		return
	}
	var ms Mistakes
	if !errors.As(err, &ms) || len(ms) != len(want) {
		t.Fatalf("got %v, want %d mistakes", err, len(want))
	}
	for i, m := range ms {
		if !strings.HasPrefix(m.String(), want[i]) {
			t.Errorf("got  %s\nwant %s…", m, want[i])
		}
	}
	if CodeOf(err) != ExitConfig {
		t.Errorf("exit code %d", CodeOf(err))
	}
}

// TestEveryMistake wants all that is wrong at once, whatever stands between, in the order of the file.
func TestEveryMistake(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		set  []string
		want []string
	}{
		"all at once": {
			file: "name = 3\n[serve]\nopen = \"maybe\" # so\nports = [\n\"x\",\n]\nprice = \"0,10\"\nmin_term = \"1s\"\n[serv]\nx = 1\n[[lots]]\ncount = \"3\"\n" +
				"[[lots]]\ncount = 9\n[log]\nlevel = \"loud\"\n",
			set: []string{"serve.opne=true"},
			want: []string{
				"c.toml:1:8: name: must be a text in quotes", "c.toml:3:8: serve.open: must be true or false",
				"c.toml:5:1: serve.ports: must be a list, each of it a whole number", "c.toml:7:9: serve.price: ",
				"c.toml:8:1: serve.min_term: 1s is under a minute",
				"c.toml:9:2: serv: unknown key; did you mean serve?", "c.toml:12:9: lots.count: must be a whole number",
				"c.toml:14:1: lots[1].count: 9 is over 4", "c.toml:16:1: log.level: ", "--set: serve.opne: unknown key",
			},
		},
		"no TOML, and what stands around it": {
			file: "name = red\n[serve\nopen = 1\n[log]\nlevel = \"loud\"\n[serve]\nports = [\nopen = true\n",
			want: []string{"c.toml:1:8: ", "c.toml:2:", "c.toml:5:1: log.level: \"loud\" is none of", "c.toml:8:"},
		},
	} {
		t.Run(name, func(t *testing.T) { wantMistakes(t, Source{Path: "c.toml", Data: []byte(c.file), Set: c.set}, c.want) })
	}
}

func TestUnusedVariables(t *testing.T) {
	got := UnusedVariables[settings]([]string{"GPUFAIR_SERVE_PRICE=1", "GPUFAIR_SERVE_PRIZE=1", "GPUFAIR_HOME=/x", "PATH=/bin"})
	if d := cmp.Diff([]string{"GPUFAIR_SERVE_PRIZE"}, got); d != "" {
		t.Error(d)
	}
}

// TestDefaultFile wants the default file to be read back as the defaults, with its comments in it.
func TestDefaultFile(t *testing.T) {
	data, err := DefaultFile(defaults(), "Settings.\n\nSee docs.")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Settings.\n#\n# See docs.\n", "# shown to renters\nname", "# whom to serve\naccounts", "disk = '4GiB'", "min_term = '10m'"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	var got settings
	if err := Load(&got, Source{Path: "d", Data: data}); err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.Serve.Ports, want.Lots = got.Serve.Ports, got.Lots // nil or empty is the same here
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestReadSource(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	if s, err := ReadSource(path, false, nil, nil); err != nil || s.Data != nil {
		t.Errorf("an absent file: %v, %v", s.Data, err)
	}
	if _, err := ReadSource(path, true, nil, nil); CodeOf(err) != ExitConfig {
		t.Errorf("an absent file that was named: %v", err)
	}
	if err := WriteNew(path, []byte("name = 'x'"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteNew(path, []byte("name = 'y'"), 0o600); CodeOf(err) != ExitUsage {
		t.Errorf("a file that exists: %v", err)
	}
	if s, err := ReadSource(path, true, nil, nil); err != nil || string(s.Data) != "name = 'x'" {
		t.Errorf("got %q, %v", s.Data, err)
	}
	if err := os.Truncate(path, maxConfig+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSource(path, true, nil, nil); CodeOf(err) != ExitConfig {
		t.Errorf("a huge file: %v", err)
	}
	if _, err := ReadSource(dir, true, nil, nil); CodeOf(err) != ExitConfig || !errors.Is(err, disk.ErrNotFile) {
		t.Errorf("a folder: %v", err)
	}
	if s, err := ReadSource(os.DevNull, true, nil, nil); err != nil || len(s.Data) > 0 {
		t.Errorf("the null device: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte("name = \"x\"\n[serve]\nmin_term = \"1h\"\n[[lots]]\ncount = 1\n"), "serve.price=1")
	f.Add([]byte("a.\"b c\" = {x = 1}\n[[lots]]\n[[lots]]\n"), "name=\"")
	f.Fuzz(func(_ *testing.T, data []byte, set string) {
		s := defaults()
		_ = Load(&s, Source{Path: "f", Data: data, Set: []string{set}, Env: []string{"GPUFAIR_NAME=" + set}}) // it must not panic
	})
}

func TestNearest(t *testing.T) {
	names := []string{"search", "show", "stop", "serve.accounts"}
	for text, want := range map[string]string{"serach": "search", "sow": "show", "stopp": "stop", "zzz": "", "": "", "x": "", "accounts": "serve.accounts"} {
		if got := Nearest(text, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", text, got, want)
		}
	}
}
