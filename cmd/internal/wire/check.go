package wire

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/badger"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// Levels of a finding.
const (
	LevelOK   = "ok"
	LevelNote = "note"
	LevelWarn = "warn"
	LevelFail = "fail"
)

// Check makes a finding that asks for nothing.
func Check(name, format string, args ...any) local.Check {
	return local.Check{Name: name, Level: LevelOK, Detail: fmt.Sprintf(format, args...)}
}

// Finding makes a finding with what to do about it.
func Finding(level, name, detail, next string) local.Check {
	return local.Check{Name: name, Level: level, Detail: detail, Next: next}
}

const (
	lowDisk = 2 << 30     // an image and its results fit; the store itself stops at badger.DefaultFreeFloor
	wantUDP = 7 * 1 << 20 // bytes that quic-go asks the kernel for (quic-go wiki, UDP Buffer Sizes: 7.5 MB)
)

// StaticChecks are the findings about a daemon's state folder and machine that need no running daemon.
func StaticChecks(state string) []local.Check {
	return append([]local.Check{checkIdentity(IdentityDir(state)), checkDisk(state)}, checkUDP()...)
}

func checkIdentity(dir string) local.Check {
	dev, err := identity.Load(dir)
	switch {
	case errors.Is(err, identity.ErrNoIdentity):
		return Finding(LevelNote, "identity", "none yet in "+dir, "it is made at the first start; `identity import` restores one from its recovery phrase")
	case err != nil:
		return Finding(LevelFail, "identity", err.Error(), "the text says which file; keep a copy before you change anything")
	}
	return Check("identity", "account %s, keys in %s readable by their owner only", dev.Account().Short(), dir)
}

func checkDisk(state string) local.Check {
	dir := state
	for dir != filepath.Dir(dir) { // the nearest folder that is there
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	free, err := freeSpace(dir)
	switch {
	case err != nil:
		return Finding(LevelWarn, "disk", fmt.Sprintf("free space of %s: %v", dir, err), "")
	case free < badger.DefaultFreeFloor:
		return Finding(LevelFail, "disk", fmt.Sprintf("%s free at %s: under %s nothing is written any more", cli.Bytes(free), dir,
			cli.Bytes(badger.DefaultFreeFloor)), "free some space")
	case free < lowDisk:
		return Finding(LevelWarn, "disk", fmt.Sprintf("%s free at %s", cli.Bytes(free), dir), "images and results need room: free some space")
	}
	return Check("disk", "%s free at %s", cli.Bytes(free), dir)
}

// checkUDP looks at the buffers that QUIC may have; only Linux tells.
func checkUDP() []local.Check {
	if runtime.GOOS != "linux" {
		return nil
	}
	small := []string{}
	for _, name := range []string{"rmem_max", "wmem_max"} {
		var n uint64
		b, err := os.ReadFile("/proc/sys/net/core/" + name)
		if err != nil {
			continue // a container may hide it
		}
		if _, err := fmt.Sscan(string(b), &n); err == nil && n < wantUDP {
			small = append(small, fmt.Sprintf("net.core.%s = %d", name, n))
		}
	}
	if len(small) == 0 {
		return []local.Check{Check("udp buffers", "large enough for QUIC")}
	}
	return []local.Check{Finding(LevelNote, "udp buffers", strings.Join(small, ", ")+": QUIC is slower than it could be",
		"sysctl -w net.core.rmem_max=7500000 net.core.wmem_max=7500000")}
}

// liveChecks are the findings that only a running daemon knows.
func (b *Base) liveChecks() []local.Check {
	var out []local.Check
	if err := b.Books.ReadOnly(); err != nil {
		out = append(out, Finding(LevelFail, "ledger", err.Error(), "run `ledger verify`: it says which entry is wrong"))
	} else {
		out = append(out, Check("ledger", "open for writing"))
	}
	skew := b.Board.Skew()
	switch {
	case skew.Wrong():
		out = append(out, Finding(LevelFail, "clock", skew.String()+": offers are dropped", "set the clock: timedatectl set-ntp true"))
	case skew.Peers > 0:
		out = append(out, Check("clock", "agrees with %s", cli.Count(skew.Peers, "peer")))
	default:
		out = append(out, Check("clock", "no peer has told its time yet"))
	}
	if n := len(b.Network.Peers()); n == 0 {
		out = append(out, Finding(LevelWarn, "peers", "connected to nobody", "join somebody's network: `join STRING` with what their `invite` printed"))
	} else {
		out = append(out, Check("peers", "%d connected", n))
	}
	out = append(out, b.reachChecks()...)
	return append(out, Check("addresses", "%s", strings.Join(b.Network.Addrs(), ", ")))
}
