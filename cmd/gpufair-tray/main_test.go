package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/provider/control/api"
)

// standIn answers as a daemon whose status is s, and as often as s has values to a watcher; it gives the socket.
func standIn(t *testing.T, s ...api.Status) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gft") // short: a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "api.sock")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(s[0]) })
	mux.HandleFunc("GET /v1/watch", func(w http.ResponseWriter, _ *http.Request) {
		for _, one := range s {
			_ = json.NewEncoder(w).Encode(one)
		}
	})
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(ln) }() // it ends with Close
	t.Cleanup(func() { srv.Close() })
	return socket
}

func tray(t *testing.T, args ...string) (code cli.ExitCode, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	p := cli.NewProgram(cli.Pipe(strings.NewReader(""), &out, &errs), "gpufair-tray", "", "")
	code = p.Main(t.Context(), root(p), args)
	return code, out.String(), errs.String()
}

func TestTray(t *testing.T) {
	free := api.Status{
		State: api.Serving, Devices: []api.Device{{State: api.DeviceFree}, {State: api.DeviceLeased}},
		Today: []api.Amount{{Unit: "CREDIT", Amount: "0.42"}},
	}
	stuck := api.Status{State: api.Stuck, Warnings: []string{"nothing is offered:\x1b[31m why"}}
	up, down := standIn(t, free, stuck), standIn(t, stuck)
	for name, c := range map[string]struct {
		args []string
		code cli.ExitCode
		out  string
		err  string
	}{
		"line":  {[]string{"--line", "--socket", up}, cli.ExitOK, "serving · 1 of 2 leased · 0.42 CREDIT today\n", ""},
		"bare":  {[]string{"--socket", up}, cli.ExitOK, "serving · 1 of 2 leased · 0.42 CREDIT today\n", ""},
		"stuck": {[]string{"--socket", down}, cli.ExitUnhealthy, "stuck · nothing on offer · ! nothing is offered:?[31m why\n", ""},
		"watch": {[]string{"--watch", "--socket", up}, cli.ExitOK, "serving · 1 of 2 leased · 0.42 CREDIT today\nstuck · nothing on offer · ! nothing is offered:?[31m why\n", ""},
		"none":  {[]string{"--socket", up + "x"}, cli.ExitNoDaemon, "", "gpufaird run"},
		"home":  {[]string{"--home", filepath.Dir(up)}, cli.ExitNoDaemon, "", "run/api.sock"},
		"flag":  {[]string{"--lin"}, cli.ExitUsage, "", "did you mean --line"},
		"both":  {[]string{"--line", "--json", "--socket", up}, cli.ExitUsage, "", "exclude each other"},
		"extra": {[]string{"status"}, cli.ExitUsage, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := tray(t, c.args...)
			if code != c.code || out != c.out || !strings.Contains(errs, c.err) {
				t.Errorf("%v ended with %d and\n%q\n%s", c.args, code, out, errs)
			}
		})
	}
	code, out, _ := tray(t, "--json", "--socket", up)
	var got api.Status
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.ExitOK || got.State != api.Serving {
		t.Errorf("--json: %d %v %s", code, err, out)
	}
}
