package work

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gpufair/gpufair/market"
	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Limits of a spec's parts.
const (
	maxName     = 512     // bytes of an image's name
	maxSource   = 255     // bytes of a repository with its registry: what registries take
	maxPath     = 4096    // bytes, as Linux has it
	maxUser     = 128     // bytes of user:group
	maxLabels   = 64      // labels
	maxLabel    = 256     // bytes of a label's key or value
	MaxStopWait = 30      // seconds from SIGTERM to SIGKILL
	maxMiB      = 1 << 26 // of memory or disk: 64 TiB
)

// DefaultStopWait is what a spec's StopWait of 0 means, in seconds.
const DefaultStopWait = 10

// Reserved starts the names of environment variables that the provider sets.
const Reserved = "GPUFAIR_"

// ErrInvalid says that a spec, needs or an ask is outside its limits. The text says which part, for the one who wrote it.
var ErrInvalid = errors.New("invalid job")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	// source is registry/name as the OCI distribution spec has names, with a registry that looks like a host.
	source   = regexp.MustCompile(`^([a-z0-9-]+\.)+[a-z0-9-]+(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
)

// Validate checks the limits of a spec, on both sides: the renter before it pays, the provider before it prepares.
func (s Spec) Validate() error {
	switch {
	case s.Image.IsZero():
		return invalid("no image")
	case len(s.Name) > maxName || !plain(s.Name):
		return invalid("image name: want at most %d bytes of text", maxName)
	case s.Source != "" && (len(s.Source) > maxSource || !source.MatchString(s.Source)):
		return invalid("source %.80q: want a repository with its registry, such as registry.example.com/debian", s.Source)
	case len(s.Command) > MaxArgs:
		return invalid("%d words in the command, want at most %d", len(s.Command), MaxArgs)
	case len(s.Command) > 0 && s.Command[0] == "":
		return invalid("the command starts with an empty word")
	case len(s.Env) > MaxEnv:
		return invalid("%d environment variables, want at most %d", len(s.Env), MaxEnv)
	case s.Dir != "" && (!path.IsAbs(s.Dir) || len(s.Dir) > maxPath || path.Clean(s.Dir) != s.Dir || !plain(s.Dir)):
		return invalid("working directory %.64q: want an absolute path without . or ..", s.Dir)
	case s.User != "" && (len(s.User) > maxUser || !userName.MatchString(s.User)):
		return invalid("user %.64q: want a name or number, or user:group", s.User)
	case len(s.Labels) > maxLabels:
		return invalid("%d labels, want at most %d", len(s.Labels), maxLabels)
	case s.StopWait > MaxStopWait:
		return invalid("%d s from SIGTERM to SIGKILL, want at most %d", s.StopWait, MaxStopWait)
	}
	for i, a := range s.Command {
		if !noNUL(a) {
			return invalid("word %d of the command has a zero byte or is not UTF-8", i+1)
		}
	}
	if err := checkEnv(s.Env); err != nil {
		return err
	}
	for k, v := range s.Labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel || !plain(k) || !plain(v) {
			return invalid("label %.64q: want a key and at most %d bytes of text each", k, maxLabel)
		}
	}
	b, err := wire.Marshal(s)
	if err != nil {
		return err
	}
	if len(b) > MaxSpec {
		return invalid("%d bytes in all, want at most %d: pass large data as inputs", len(b), MaxSpec)
	}
	return nil
}

func checkEnv(env []string) error {
	seen := make(map[string]bool, len(env))
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		switch {
		case !ok || !envName.MatchString(name):
			return invalid("environment variable %.64q: want NAME=value", e)
		case strings.HasPrefix(name, Reserved):
			return invalid("environment variable %s: names that start with %s are the provider's to set", name, Reserved)
		case seen[name]:
			return invalid("environment variable %s is set twice", name)
		case !noNUL(value):
			return invalid("environment variable %s has a zero byte or is not UTF-8", name)
		}
		seen[name] = true
	}
	return nil
}

func noNUL(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// plain reports whether s may be shown: text without control characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// Hash names the spec: equal specs have equal hashes.
func (s Spec) Hash() (wire.Hash, error) {
	b, err := wire.Marshal(s)
	if err != nil {
		return wire.Hash{}, err
	}
	return wire.Sum("gpufair/spec/1", b), nil
}

// Validate checks the limits of needs.
func (n Needs) Validate() error {
	switch {
	case n.Kind != market.KindGPU && n.Kind != market.KindCPU:
		return invalid("kind %.16q, want gpu or cpu", string(n.Kind))
	case n.Devices == 0 || n.Devices > market.MaxSlots:
		return invalid("%d devices, want 1 to %d", n.Devices, market.MaxSlots)
	case max(n.MemoryMiB, n.DiskMiB) > maxMiB:
		return invalid("more than 64 TiB of memory or disk")
	}
	return nil
}

// Hash is what an Accept names the needs by.
func (n Needs) Hash() (wire.Hash, error) {
	b, err := wire.Marshal(n)
	if err != nil {
		return wire.Hash{}, err
	}
	return wire.Sum("gpufair/needs/1", b), nil
}

// Fit checks that quantity devices of a lot serve the needs. Memory comes with each device, disk with the lot. The error is a
// [reason.Error].
func (n Needs) Fit(l market.Lot, quantity uint32) error {
	switch {
	case n.Kind != l.Kind:
		return reason.Errorf(reason.ResourcesExceeded, "the job needs a %s, the lot is a %s", n.Kind, l.Kind)
	case n.Devices != quantity:
		return reason.Errorf(reason.ResourcesExceeded, "the job needs %d devices, the order is for %d", n.Devices, quantity)
	case n.MemoryMiB > l.MemoryMiB*uint64(quantity):
		return reason.Errorf(reason.ResourcesExceeded, "the job needs %d MiB of memory, %d devices come with %d", n.MemoryMiB, quantity, l.MemoryMiB*uint64(quantity))
	case n.DiskMiB > l.DiskMiB:
		return reason.Errorf(reason.ResourcesExceeded, "the job needs %d MiB of disk, the lot has %d", n.DiskMiB, l.DiskMiB)
	}
	return nil
}

// Signals lists what a renter may send to its job. SIGSTOP is not among them: pausing is the provider's, since it stops the meter.
func Signals() []string {
	return []string{
		"SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGKILL", "SIGWINCH", "SIGCONT", "SIGALRM",
	}
}

// ValidSignal reports whether a renter may send the signal of that name.
func ValidSignal(name string) bool { return slices.Contains(Signals(), name) }

// Validate checks that an ask holds what its action needs, within limits. Whether the lease is the peer's, and in a state for it, is
// for the provider.
func (a Ask) Validate() error {
	switch {
	case wire.Hash(a.Lease).IsZero():
		return invalid("ask without a lease")
	case (a.Action == ActReady && len(a.Signed) > market.MaxReady) || (a.Action == ActRelease || a.Action == ActAllow) && len(a.Signed) > market.MaxRelease:
		return invalid("a signed record of %d bytes", len(a.Signed))
	}
	switch a.Action {
	case ActReady, ActRelease, ActAllow:
		if len(a.Signed) == 0 {
			return invalid("the signed record is missing")
		}
	case ActPrepare:
		if a.Spec == nil {
			return invalid("the spec is missing")
		}
		return a.Spec.Validate()
	case ActSignal:
		if !ValidSignal(a.Signal) {
			return invalid("signal %.16q: want one of %s", a.Signal, strings.Join(Signals(), " "))
		}
	case ActStart, ActStop, ActStatus, ActFetched, ActSync:
	default:
		return invalid("action %d is of another release", a.Action)
	}
	return nil
}
