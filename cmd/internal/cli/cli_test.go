package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func buffers(in string) (*Terminal, *bytes.Buffer, *bytes.Buffer) {
	var out, err bytes.Buffer
	return Pipe(strings.NewReader(in), &out, &err), &out, &err
}

func TestTable(t *testing.T) {
	term, out, _ := buffers("")
	tab := term.Table("NAME", ">PRICE", "STATE")
	tab.Row("a", "0.5", Cell{"running", Good})
	tab.Row("größer", 12, "x\x1b[31m\ny")
	if err := tab.Print(); err != nil {
		t.Fatal(err)
	}
	want := "NAME    PRICE  STATE\na         0.5  running\ngrößer     12  x?[31m?y\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
	out.Reset()
	term.Color = true
	if err := tab.Print(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "\x1b[32mrunning\x1b[0m") {
		t.Errorf("no colour in %q", out)
	}
	plain := regexp.MustCompile(`\x1b\[\d+m`).ReplaceAllString(out.String(), "")
	if d := cmp.Diff(want, plain); d != "" {
		t.Error("colour moves columns:", d)
	}
}

func TestPairsAndJSON(t *testing.T) {
	term, out, _ := buffers("")
	if err := term.Pairs([2]string{"id", "x"}, [2]string{"terms", "one\ntwo"}); err != nil {
		t.Fatal(err)
	}
	if err := term.PrintJSON(map[string]string{"a": "<b>"}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("id     x\nterms  one\n       two\n{\"a\":\"<b>\"}\n", out.String()); d != "" {
		t.Error(d)
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("search: %w", Fail(ExitNoDaemon, "reach the agent", cause, "start it with `gpufair agent`\nor look at its log"))
	for name, c := range map[string]struct {
		err  error
		code ExitCode
		text string
	}{
		"nil":       {nil, ExitOK, ""},
		"plain":     {cause, ExitFailure, "gpufair: connection refused\n"},
		"advice":    {err, ExitNoDaemon, "gpufair: search: reach the agent: connection refused\n  next: start it with `gpufair agent`\n        or look at its log\n"},
		"cancelled": {fmt.Errorf("run: %w", context.Canceled), ExitInterrupted, "gpufair: run: context canceled\n"},
		"job":       {Status(42), 42, ""},
		"no code":   {&Error{What: "x"}, ExitFailure, "gpufair: x\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			PrintError(&b, "gpufair", c.err, false)
			if CodeOf(c.err) != c.code || b.String() != c.text {
				t.Errorf("got %d, %q; want %d, %q", CodeOf(c.err), b.String(), c.code, c.text)
			}
		})
	}
	var b bytes.Buffer
	PrintError(&b, "gpufair", err, true)
	var got map[string]any
	if e := json.Unmarshal(b.Bytes(), &got); e != nil || got["code"] != 4.0 || got["next"] == "" || !strings.HasPrefix(got["error"].(string), "search:") {
		t.Errorf("JSON %s: %v", b.String(), e)
	}
}

// TestExitCodesDocumented holds docs/cli.md's table against the constants.
func TestExitCodesDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[ExitCode]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`).FindAllStringSubmatch(string(doc), -1) {
		n, _ := strconv.Atoi(m[1])
		documented[ExitCode(n)] = m[2]
	}
	if d := cmp.Diff(exitMeanings, documented); d != "" {
		t.Error(d)
	}
}

func TestHuman(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", 1250 * time.Millisecond: "1.2 s", 59*time.Second + 999*time.Millisecond: "59 s",
		time.Minute: "1 m", 252 * time.Second: "4 m 12 s", 185 * time.Minute: "3 h 5 m", 52 * time.Hour: "2 d 4 h", -3 * time.Second: "-3.0 s",
	} {
		if got := Span(d); got != want {
			t.Errorf("Span(%d) = %q, want %q", d, got, want)
		}
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	term := Pipe(nil, nil, nil)
	term.Zone = time.FixedZone("x", 2*3600)
	if got := term.Time(now.Add(-time.Hour), now); got != "13:00:00" {
		t.Error(got)
	}
	if got := term.Time(now.Add(-13*time.Hour), now); got != "01:00:00" {
		t.Error(got)
	}
	if got := term.Time(now.Add(-15*time.Hour), now); got != "2026-02-28 23:00" {
		t.Error(got)
	}
	if got := Ago(now, now.Add(90*time.Second)) + Ago(now.Add(time.Hour), now) + Ago(time.Time{}, now); got != "1 m 30 s ago"+"in 1 h"+"never" {
		t.Error(got)
	}
	if got := Bytes(3 << 29); got != "1.5 GiB" {
		t.Error(got)
	}
}

func TestDurationAndSize(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "0s": 0, "1.5d": 36 * time.Hour} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.Std() != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
		var again Duration
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Errorf("%q reads back as %v, %v", d, again, err)
		}
	}
	for _, bad := range []string{"", "d", "7", "99999999999d", "NaNd", "1w"} {
		if _, err := ParseDuration(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	for _, n := range []Size{0, 1, 1023, 1024, 1536, 4 << 30, 1<<40 + 1} {
		var again Size
		if err := again.UnmarshalText([]byte(n.String())); err != nil || again != n {
			t.Errorf("%s reads back as %d, %v", n, again, err)
		}
	}
	if _, err := ParseBytes("many"); err == nil {
		t.Error("\"many\" is a size")
	}
}

func TestPrompts(t *testing.T) {
	ctx := t.Context()
	term, _, errs := buffers("yes\nblue\n\n")
	if _, err := term.Ask(ctx, "Budget", "1", "--budget"); CodeOf(err) != ExitUsage || !strings.Contains(err.(*Error).Next, "--budget") {
		t.Errorf("without a terminal: %v", err)
	}
	if _, err := term.Confirm(ctx, "Sure?", "--yes"); CodeOf(err) != ExitUsage {
		t.Errorf("without a terminal: %v", err)
	}
	if _, err := term.Secret(ctx, "Phrase", "--phrase-file"); CodeOf(err) != ExitUsage {
		t.Errorf("without a terminal: %v", err)
	}
	if errs.Len() > 0 {
		t.Errorf("asked nobody: %q", errs)
	}
	term.InTTY = true
	if ok, err := term.Confirm(ctx, "Sure?", "--yes"); !ok || err != nil {
		t.Error(ok, err)
	}
	if s, err := term.Ask(ctx, "Colour", "red", "--colour"); s != "blue" || err != nil {
		t.Error(s, err)
	}
	if s, err := term.Ask(ctx, "Colour", "red", "--colour"); s != "red" || err != nil {
		t.Error(s, err)
	}
	if _, err := term.Ask(ctx, "Colour", "red", "--colour"); err == nil {
		t.Error("an ended input answered")
	}
	if !strings.Contains(errs.String(), "Sure? (y/n) [n]: Colour [red]: ") {
		t.Errorf("asked %q", errs)
	}
}

func TestAskCancelled(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	term := Pipe(r, &bytes.Buffer{}, &bytes.Buffer{})
	term.InTTY = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := term.Ask(ctx, "Budget", "", "--budget"); CodeOf(err) != ExitInterrupted {
		t.Errorf("got %v", err)
	}
	w.Close() // ends the reader that is left
}

func TestLogger(t *testing.T) {
	term, _, errs := buffers("")
	log, level, err := term.Logger(LogConfig{Level: "warn", Format: LogJSON})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hidden")
	level.Set(-4)
	log.Debug("seen", "lease", "x")
	var got map[string]any
	if err := json.Unmarshal(errs.Bytes(), &got); err != nil || got["lease"] != "x" {
		t.Errorf("%q: %v", errs, err)
	}
	errs.Reset()
	term.ErrTTY = true
	if log, _, err = term.Logger(DefaultLog()); err != nil {
		t.Fatal(err)
	}
	log.Info("hello")
	if !strings.Contains(errs.String(), "\x1b[") {
		t.Errorf("no colour on a terminal: %q", errs)
	}
	for _, bad := range []LogConfig{{"loud", LogText}, {"info", "xml"}, {"info+1", LogText}} {
		if _, _, err := term.Logger(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}

func TestProgress(t *testing.T) {
	term, out, errs := buffers("")
	p := term.Progress("push", 100)
	p.Add(50)
	p.Done()
	(*Progress)(nil).Add(1)
	(*Progress)(nil).Done()
	if out.Len()+errs.Len() > 0 {
		t.Error("a bar without a terminal")
	}
	term.ErrTTY = true
	p = term.Progress("push", 100)
	at := time.Now()
	p.begun, p.now = at, func() time.Time { return at.Add(progressAfter - 1) }
	p.Add(10)
	if errs.Len() > 0 {
		t.Errorf("a bar within the first second: %q", errs)
	}
	p.now = func() time.Time { return at.Add(progressAfter) }
	if _, err := p.Write(make([]byte, 40)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(errs.String(), "push") || !strings.Contains(errs.String(), "50%") {
		t.Errorf("no bar after a second: %q", errs)
	}
	p.Total(200)
	p.Done()
	p.Done()
	p.Add(1)
}

func TestProgram(t *testing.T) {
	run := func(args ...string) (ExitCode, string, string) {
		term, out, errs := buffers("")
		p := NewProgram(term, "gpufair", "rent GPUs", "Rents GPUs.")
		show := &cobra.Command{Use: "show", RunE: func(*cobra.Command, []string) error { return p.PrintJSON(p.Home) }}
		show.Flags().String("budget", "", "")
		show.Flags().Int("tail", 0, "")
		stop := &cobra.Command{Use: "stop LEASE", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error { return nil }}
		code := p.Main(t.Context(), p.Root(show, stop, ConfigCommand(p, defaults, "Settings of gpufair.")), args)
		return code, out.String(), errs.String()
	}
	home := t.TempDir()
	for name, c := range map[string]struct {
		args     []string
		code     ExitCode
		out, err string
	}{
		"help":            {nil, ExitOK, "Rents GPUs.", ""},
		"run":             {[]string{"show", "--home", "x"}, ExitOK, "\"x\"\n", ""},
		"unknown command": {[]string{"shwo"}, ExitUsage, "", "gpufair: unknown command \"shwo\" of gpufair\n  next: did you mean `gpufair show`?\n"},
		"far command":     {[]string{"zebra"}, ExitUsage, "", "gpufair --help lists what there is"},
		"unknown flag":    {[]string{"show", "--bugdet=1"}, ExitUsage, "", "next: did you mean --budget?\n"},
		"shared flag":     {[]string{"show", "--hoem=1"}, ExitUsage, "", "next: did you mean --home?\n"},
		"far flag":        {[]string{"show", "--zebra"}, ExitUsage, "", "next: gpufair show --help lists the flags\n"},
		"argument":        {[]string{"show", "x"}, ExitUsage, "", "takes no argument, but got \"x\""},
		"flag's value":    {[]string{"show", "--tail", "x"}, ExitUsage, "", "gpufair: gpufair show: --tail \"x\": want a whole number\n  next: "},
		"too few":         {[]string{"stop"}, ExitUsage, "", "gpufair: gpufair stop: got 0 arguments, which does not fit\n  next: gpufair stop LEASE"},
		"subcommand":      {[]string{"config", "chekc"}, ExitUsage, "", "did you mean `gpufair config check`?"},
		"version":         {[]string{"--version"}, ExitOK, "gpufair ", ""},
		"version JSON":    {[]string{"version", "--json"}, ExitOK, "\"platform\":", ""},
		"config path":     {[]string{"config", "path", "--home", home}, ExitOK, home + "/config.toml\n", ""},
		"config absent":   {[]string{"config", "check", "--home", home}, ExitOK, "", "the defaults hold"},
		"config show":     {[]string{"config", "show", "--home", home, "--set", "serve.price=3", "--json"}, ExitOK, "\"price\":\"3\"", ""},
		"config print":    {[]string{"config", "init", "--print"}, ExitOK, "# Settings of gpufair.", ""},
		"config named":    {[]string{"config", "check", "--config", home + "/gone"}, ExitConfig, "", "config init"},
		"config mistake":  {[]string{"config", "check", "--home", home, "--set", "serve.min_term=1s"}, ExitConfig, "", "--set: serve.min_term: 1s is under a minute"},
		"error JSON":      {[]string{"config", "check", "--json", "--set", "x=1", "--home", home}, ExitConfig, "", "\"code\":3"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := run(c.args...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.err) || (c.out == "") != (out == "") || (c.err == "") != (errs == "") {
				t.Errorf("got %d\nout %q\nerr %q", code, out, errs)
			}
		})
	}
	if code, _, errs := run("config", "init", "--home", home); code != ExitOK {
		t.Error(errs)
	}
	if code, _, errs := run("config", "init", "--home", home); code != ExitUsage || !strings.Contains(errs, "nothing is overwritten") {
		t.Error(code, errs)
	}
	if code, _, errs := run("config", "check", "--home", home); code != ExitOK || !strings.Contains(errs, "is fine") {
		t.Error(code, errs)
	}
}
