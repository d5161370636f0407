package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// stamp is set by the linker (-X), from `git describe`; nothing changes it after that.
var stamp string

// Build is what this binary is.
type Build struct {
	Version  string `json:"version"`  // "v0.1.0-12-gabcdef0", or "devel" where nothing was stamped
	Revision string `json:"revision"` // the commit; empty if unknown
	Modified bool   `json:"modified"` // the tree had changes that were not committed
	Time     string `json:"time"`     // of the commit, RFC 3339; empty if unknown
	Go       string `json:"go"`
	Platform string `json:"platform"` // "linux/amd64"
}

// ThisBuild reads the linker's stamp and what the Go tool recorded (debug.ReadBuildInfo).
func ThisBuild() Build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(stamp, info)
}

func buildOf(stamp string, info *debug.BuildInfo) Build {
	b := Build{Version: stamp, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			case "vcs.time":
				b.Time = s.Value
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}

// String is one line: version, commit, Go and platform.
func (b Build) String() string {
	parts := []string{b.Version}
	if b.Revision != "" && !strings.Contains(b.Version, b.Revision[:min(7, len(b.Revision))]) {
		parts = append(parts, b.Revision[:min(12, len(b.Revision))])
	}
	if b.Modified && !strings.Contains(b.Version, "dirty") {
		parts = append(parts, "with local changes")
	}
	return fmt.Sprintf("%s (%s, %s)", strings.Join(parts, " "), b.Go, b.Platform)
}
