package verbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/cmd/internal/wire"
	"github.com/gpufair/gpufair/p2p/identity"
)

// files are the contents of a folder's files.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

// TestDryRunOfCutRotation looks at changes of keys that were cut short: --dry-run says so and touches no file, and the run without it finishes.
func TestDryRunOfCutRotation(t *testing.T) {
	for flag, cut := range map[string]func(dir string) error{
		"--device":  func(dir string) error { _, err := identity.Rotate(dir, "", time.Now()); return err },
		"--account": func(dir string) error { _, err := identity.RotateAccount(dir, time.Now()); return err },
	} {
		state := t.TempDir()
		dir := wire.IdentityDir(state)
		if _, _, err := identity.LoadOrCreate(dir, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := cut(dir); err != nil {
			t.Fatal(err)
		}
		before := files(t, dir)
		for _, form := range []string{"--json=false", "--json"} {
			code, _, errs := verbAt(t, state, filepath.Join(state, "none.sock"), "identity", "rotate", flag, "--dry-run", form)
			if code != cli.ExitOK || !strings.Contains(errs, "was cut short") {
				t.Errorf("%s %s: %d %s", flag, form, code, errs)
			}
			after := files(t, dir)
			if len(after) != len(before) {
				t.Errorf("%s: --dry-run left other files: %d, before %d", flag, len(after), len(before))
			}
			for name, was := range before {
				if after[name] != was {
					t.Errorf("%s: --dry-run changed %s", flag, name)
				}
			}
		}
		if code, _, errs := verbAt(t, state, filepath.Join(state, "none.sock"), "identity", "rotate", flag); code != cli.ExitOK {
			t.Errorf("%s: %d %s", flag, code, errs)
		}
		if len(files(t, dir)) != len(before)-1 {
			t.Errorf("%s: the change is not finished", flag)
		}
	}
}
