package proof

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/gpufair/gpufair/ledger/history"
	"github.com/gpufair/gpufair/ledger/statement"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// Fork is the proof that a device signed two histories of one ledger: two heads of one size with different roots.
type Fork struct {
	Device     identity.PeerID
	Delegation []byte    // as signed, by the account for which the device acts; may be missing
	Notes      [2][]byte // signed notes
}

const (
	forkMagic = "gpufair-fork/1\n"
	maxFork   = 8 << 10 // bytes: two notes of 1 KiB and a delegation
)

// separator stands before each of the notes, on a line of its own: no line of a note is like it.
var separator = []byte("---\n")

// IsFork reports whether bytes begin as a fork's file.
func IsFork(raw []byte) bool { return bytes.HasPrefix(raw, []byte(forkMagic)) }

// open checks both notes, and gives their checkpoints and the key by which anybody can.
func (f Fork) open() (heads [2]history.Checkpoint, key string, err error) {
	if heads[0], heads[1], err = history.Fork(f.Notes[0], f.Notes[1], f.Device); err != nil {
		return heads, "", fmt.Errorf("proof against device %s: %w", f.Device, err)
	}
	key, err = heads[0].Origin.VerifierKey()
	return heads, key, err
}

// Encode gives the fork's file: text, in which the two notes stand as they were signed, so that any program for signed notes can check
// them by the key that the file names.
func (f Fork) Encode() ([]byte, error) {
	_, key, err := f.open()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%sdevice %s\nkey %s\ndelegation %s\n", forkMagic, f.Device, key, base64.StdEncoding.EncodeToString(f.Delegation))
	for _, n := range f.Notes {
		b.Write(separator)
		b.Write(n)
	}
	return b.Bytes(), nil
}

// DecodeFork reads what [Fork.Encode] gave, and nothing else; that it proves what it says is checked, too. Errors wrap ErrFile or those of
// [history.Fork].
func DecodeFork(raw []byte) (f Fork, err error) {
	if len(raw) > maxFork || !IsFork(raw) {
		return f, fmt.Errorf("%w: it does not begin with %q, or is longer than %d bytes", ErrFile, forkMagic[:len(forkMagic)-1], maxFork)
	}
	parts := bytes.Split(raw, append([]byte("\n"), separator...))
	if len(parts) != 3 {
		return f, fmt.Errorf("%w: want two notes, each after a line of ---", ErrFile)
	}
	values := map[string]string{}
	for line := range strings.SplitSeq(string(parts[0]), "\n") {
		name, value, _ := strings.Cut(line, " ")
		values[name] = value
	}
	if f.Device, err = identity.ParsePeer(values["device"]); err != nil {
		return f, fmt.Errorf("%w: %w", ErrFile, err)
	}
	if f.Delegation, err = base64.StdEncoding.DecodeString(values["delegation"]); err != nil {
		return f, fmt.Errorf("%w: delegation: %w", ErrFile, err)
	}
	f.Notes = [2][]byte{append(bytes.Clone(parts[1]), '\n'), parts[2]}
	again, err := f.Encode()
	if err == nil && !bytes.Equal(again, raw) {
		err = fmt.Errorf("%w: it is not in its one form", ErrFile)
	}
	return f, err
}

// CheckFork checks a fork's file with nothing but its bytes: forged says that the device it names signed two histories, and corrupt that
// the file shows nothing against anybody, whatever is wrong with it. It never fails.
func CheckFork(raw []byte) statement.ForkProof {
	f, err := DecodeFork(raw)
	heads, key, wrong := f.open()
	if err := cmp.Or(err, wrong); err != nil {
		return statement.ForkProof{Result: Corrupt, Detail: "the file accuses nobody: " + err.Error()}
	}
	out := statement.ForkProof{
		Result: Forged, Device: f.Device.String(), Origin: heads[0].Origin.String(), Entries: heads[0].Size, Key: key,
		Roots:  []string{wire.Hash(heads[0].Root).String(), wire.Hash(heads[1].Root).String()},
		Detail: fmt.Sprintf("device %s signed two histories of its ledger: at %d entries it has two roots", f.Device, heads[0].Size),
	}
	if d, err := identity.OpenDelegation(f.Delegation); err == nil && d.Device == f.Device {
		out.Account = d.Account.String()
	}
	return out
}
