package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/local/serve"
	"github.com/gpufair/gpufair/renter"
)

var update = flag.Bool("update", false, "write the description of the local API anew")

// TestDescription compares the checked-in description with what the Go types say: a change of the API shows in a diff.
func TestDescription(t *testing.T) {
	api := serve.NewAPI(http.NewServeMux(), serve.Config{Title: apiTitle, Version: "1"})
	operations(api, &wire.Base{}, &renter.Agent{}, func() {})
	raw, err := json.Marshal(api.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := json.Indent(&got, raw, "", " "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	path := filepath.Join("..", "..", "docs", "openapi", "gpufair.json")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s is not what the API says now: go test ./cmd/gpufair -run TestDescription -update", path)
	}
}
