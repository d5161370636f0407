package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpufair/gpufair/ledger/disk"
)

// maxConfig is the largest config file that is read: a file of a thousand lots has 200 KiB, and a larger one is something else.
const maxConfig = 1 << 20

// envPrefix begins every variable that overrides a key: serve.accounts is GPUFAIR_SERVE_ACCOUNTS.
const envPrefix = "GPUFAIR_"

// Mistake is one thing that is wrong in the settings.
type Mistake struct {
	Source string `json:"source"`           // the file, the variable or the flag
	Line   int    `json:"line,omitempty"`   // from 1; 0 if it is no file, or the key is not in the file
	Column int    `json:"column,omitempty"` // from 1, in bytes
	Key    string `json:"key,omitempty"`    // dotted: "serve.accounts"
	What   string `json:"what"`
}

// String is one line: "config.toml:12:3: serve.acounts: unknown key; did you mean serve.accounts?".
func (m Mistake) String() string {
	var b strings.Builder
	b.WriteString(m.Source)
	if m.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", m.Line, m.Column)
	}
	if m.Key != "" {
		b.WriteString(": " + m.Key)
	}
	b.WriteString(": " + m.What)
	return b.String()
}

// Mistakes are all that is wrong in the settings.
type Mistakes []Mistake

// Error is one line for each.
func (ms Mistakes) Error() string {
	lines := make([]string, len(ms))
	for i, m := range ms {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// KeyError is what a config's Validate returns of one key, possibly several joined by errors.Join: the loader finds the line.
type KeyError struct {
	Key string // dotted; an element of a list of tables as "lots[1].cores"
	Err error
}

// KeyErrorf makes a [KeyError].
func KeyErrorf(key, format string, args ...any) error {
	return &KeyError{Key: key, Err: fmt.Errorf(format, args...)}
}

// Error is "key: why".
func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }

// Unwrap is the reason.
func (e *KeyError) Unwrap() error { return e.Err }

// Source is where settings come from. Later ones win: the defaults, the file, the environment, --set.
type Source struct {
	Path string   // the file, for messages
	Data []byte   // its bytes; nil if there is none
	Env  []string // "NAME=value", as os.Environ
	Set  []string // "key=value", from --set
}

// ReadSource reads the file at path, which may be absent unless must is set. The null device is an empty file, as everywhere.
func ReadSource(path string, must bool, env, set []string) (Source, error) {
	s := Source{Path: path, Env: env, Set: set}
	if path == os.DevNull {
		return s, nil
	}
	f, err := disk.OpenFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && !must:
		return s, nil
	case errors.Is(err, os.ErrPermission):
		return s, Fail(ExitConfig, "read the settings", err, "make the file readable for this user")
	case err != nil:
		return s, Fail(ExitConfig, "read the settings", err, "write the default file with `config init`, or correct --config")
	}
	defer f.Close()
	if s.Data, err = io.ReadAll(io.LimitReader(f, maxConfig+1)); err != nil {
		return s, Fail(ExitConfig, "read the settings", err, "make the file readable for this user")
	}
	if len(s.Data) > maxConfig {
		s.Data = nil
		return s, Fail(ExitConfig, "read the settings", fmt.Errorf("%s has more than %d bytes", path, maxConfig), "correct --config")
	}
	return s, nil
}

// Load puts the settings of s over the defaults in into, a struct with toml tags. Unknown keys are mistakes. If *T has a
// Validate() error method it is asked last. The error is [Mistakes] with exit code 3.
func Load[T any](into *T, s Source) error { return mistaken(load(into, s, false)) }

// Check is [Load] for whoever starts with the settings or checks them: if *T has a Check() error method, that is asked, too, whether what they
// name is on this machine.
func Check[T any](into *T, s Source) error { return mistaken(load(into, s, true)) }

func mistaken(ms Mistakes) error {
	if len(ms) == 0 {
		return nil
	}
	return Fail(ExitConfig, "the settings have mistakes", indented(ms), "correct the lines above; `config check` looks again, `config init --print` shows every key")
}

// indented puts each mistake on a line of its own.
func indented(ms Mistakes) error { return lines{ms} }

type lines struct{ Mistakes }

func (l lines) Error() string { return "\n" + l.Mistakes.Error() }

func (l lines) Unwrap() error { return l.Mistakes }

func load[T any](into *T, s Source, here bool) Mistakes {
	keys := keysOf(reflect.TypeFor[T]())
	data, ms := sound[T](s.Path, s.Data, keys)
	if err := toml.Unmarshal(data, into); err != nil { // it was read before, mistakes are cut out
		return append(ms, Mistake{Source: s.Path, What: Clean(strings.TrimPrefix(err.Error(), "toml: "))})
	}
	from := map[string]string{} // key to what set it last, if not the file
	for _, k := range keys {
		if !k.leaf {
			continue
		}
		if v, ok := lookup(s.Env, k.env()); ok {
			ms = append(ms, override(into, k, v, k.env(), keys)...)
			from[k.name] = k.env()
		}
	}
	for _, kv := range s.Set {
		name, v, ok := strings.Cut(kv, "=")
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(keys, func(k key) bool { return k.leaf && k.name == name })
		switch {
		case !ok:
			ms = append(ms, Mistake{Source: "--set " + Clean(kv), What: "is not key=value"})
		case i < 0:
			ms = append(ms, Mistake{Source: "--set", Key: Clean(name), What: unsettable(name, keys)})
		default:
			ms = append(ms, override(into, keys[i], v, "--set", keys)...)
			from[name] = "--set"
		}
	}
	v, ok := any(into).(interface{ Validate() error })
	if !ok {
		return ms
	}
	at := positions(s.Data) // ends at what is no TOML
	for name, p := range positions(data) {
		if _, ok := at[name]; !ok {
			at[name] = p
		}
	}
	err := v.Validate()
	if c, ok := any(into).(interface{ Check() error }); ok && here && err == nil && len(ms) == 0 {
		err = c.Check()
	}
	return merge(ms, explain(err, s.Path, at, from))
}

// merge adds what Validate says to the mistakes of reading, but for what it says of a value that could not be read: there it judges the
// default, or none.
func merge(read, judged Mistakes) Mistakes {
	unread := func(j Mistake) bool {
		return slices.ContainsFunc(read, func(r Mistake) bool {
			return r.Source == j.Source && (r.Line > 0 && r.Line == j.Line || r.Key != "" && r.Key == j.Key)
		})
	}
	all := append(read, slices.DeleteFunc(judged, unread)...)
	slices.SortStableFunc(all, func(a, b Mistake) int {
		if a.Line == 0 || b.Line == 0 {
			return b.Line - a.Line // what stands on no line comes last
		}
		return a.Line - b.Line
	})
	return all
}

// explain finds the lines of what Validate says.
func explain(err error, path string, at map[string]place, from map[string]string) Mistakes {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var ms Mistakes
		for _, e := range joined.Unwrap() {
			ms = append(ms, explain(e, path, at, from)...)
		}
		return ms
	}
	var k *KeyError
	if !errors.As(err, &k) {
		return Mistakes{{Source: path, What: err.Error()}}
	}
	m := Mistake{Source: path, Key: k.Key, What: k.Err.Error()}
	if by, ok := from[k.Key]; ok {
		m.Source = by
	} else if p, ok := at[k.Key]; ok {
		m.Line, m.Column = p.line, p.column
	} else {
		m.What += " (the key is not in the file: this is its default)"
	}
	return Mistakes{m}
}

// UnusedVariables are the GPUFAIR_ variables of env that name no key of T: `config check` warns of them. They are no mistake, since
// another of our programs may mean them.
func UnusedVariables[T any](env []string) []string {
	known := []string{HomeVariable}
	for _, k := range keysOf(reflect.TypeFor[T]()) {
		known = append(known, k.env())
	}
	var unused []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, envPrefix) && !slices.Contains(known, name) {
			unused = append(unused, name)
		}
	}
	slices.Sort(unused)
	return unused
}

// DefaultFile is a config file that holds v with the comments of its fields (toml's comment tags), under a comment of its own.
func DefaultFile(v any, header string) ([]byte, error) {
	var b bytes.Buffer
	for line := range strings.SplitSeq(strings.TrimSpace(header), "\n") {
		b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	b.WriteString("\n")
	enc := toml.NewEncoder(&b)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("write the default config: %w", err)
	}
	return b.Bytes(), nil
}

// WriteNew writes a file that must not exist, with its directory.
func WriteNew(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return Fail(ExitSystem, "write "+path, err, "run as a user who may write there, or give --home DIR")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	switch {
	case errors.Is(err, os.ErrExist):
		return Usagef("move it away first, or print the new one beside it with --print: nothing is overwritten", "write %s: it exists", path)
	case err != nil:
		return Fail(ExitSystem, "write "+path, err, "run as a user who may write there, or give --home DIR")
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return Fail(ExitSystem, "write "+path, err, "look at the disk's free space")
	}
	return nil
}
