package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Dirs are the only places where a program writes. All are absolute.
type Dirs struct {
	Config string // holds config.toml
	State  string // identity, ledger, logs, blobs: what must outlive a restart
	Run    string // sockets and locks: gone after a reboot
}

// Env looks a variable up, as os.Getenv does.
type Env func(name string) string

// HomeVariable puts everything of one program under one directory, as --home does.
const HomeVariable = "GPUFAIR_HOME"

// SystemDirs are the directories of program ("gpufaird", "gpufair") for this process. The first rule that fits wins, for each
// directory:
//
//  1. home, from --home or GPUFAIR_HOME: home, home/state, home/run. Several daemons on one machine each get a home.
//  2. systemd's CONFIGURATION_DIRECTORY, STATE_DIRECTORY and RUNTIME_DIRECTORY.
//  3. root: /etc/<program>, /var/lib/<program>, /run/<program>.
//  4. people: XDG_CONFIG_HOME, XDG_STATE_HOME and XDG_RUNTIME_DIR, or without them ~/.config, ~/.local/state and the state's run folder
//     (XDG Base Directory Specification 0.8). On macOS ~/Library/Application Support, on Windows AppData and LocalAppData, unless an XDG
//     variable is set.
func SystemDirs(program, home string) (Dirs, error) {
	if home == "" {
		home = os.Getenv(HomeVariable)
	}
	if home != "" {
		return HomeDirs(home)
	}
	user := ""
	if os.Geteuid() != 0 {
		var err error
		if user, err = os.UserHomeDir(); err != nil {
			return Dirs{}, Fail(ExitSystem, "find your home directory", err, "set HOME, or give --home DIR")
		}
	}
	return dirs(program, runtime.GOOS, user, os.Getenv)
}

// HomeDirs are the directories under one home.
func HomeDirs(home string) (Dirs, error) {
	abs, err := filepath.Abs(home)
	if err != nil {
		return Dirs{}, Fail(ExitSystem, "use "+home+" as home", err, "give --home an absolute path")
	}
	return Dirs{Config: abs, State: filepath.Join(abs, "state"), Run: filepath.Join(abs, "run")}, nil
}

// dirs fulfils rules 2 to 4; no user is root.
func dirs(program, goos, user string, env Env) (Dirs, error) {
	d := Dirs{}
	switch {
	case user == "":
		d = Dirs{Config: filepath.Join("/etc", program), State: filepath.Join("/var/lib", program), Run: filepath.Join("/run", program)}
	default:
		d = personal(program, goos, user, env)
	}
	for _, unit := range []struct {
		dir      *string
		variable string
	}{{&d.Config, "CONFIGURATION_DIRECTORY"}, {&d.State, "STATE_DIRECTORY"}, {&d.Run, "RUNTIME_DIRECTORY"}} {
		if v := env(unit.variable); filepath.IsAbs(v) {
			*unit.dir = v
		}
	}
	for _, dir := range []string{d.Config, d.State, d.Run} {
		if !filepath.IsAbs(dir) {
			return Dirs{}, Fail(ExitSystem, "choose directories for "+program, fmt.Errorf("%q is not absolute", dir), "give --home DIR")
		}
	}
	return d, nil
}

func personal(program, goos, user string, env Env) Dirs {
	config, state := filepath.Join(user, ".config"), filepath.Join(user, ".local", "state")
	switch goos {
	case "darwin":
		config = filepath.Join(user, "Library", "Application Support")
		state = config
	case "windows":
		config, state = or(env("AppData"), config), or(env("LocalAppData"), state)
	}
	d := Dirs{
		Config: filepath.Join(xdg(env, "XDG_CONFIG_HOME", config), program),
		State:  filepath.Join(xdg(env, "XDG_STATE_HOME", state), program),
	}
	d.Run = filepath.Join(d.State, "run")
	if base := xdg(env, "XDG_RUNTIME_DIR", ""); base != "" {
		d.Run = filepath.Join(base, program)
	}
	return d
}

// xdg is a variable of the XDG specification, which ignores relative paths.
func xdg(env Env, name, def string) string {
	if v := env(name); filepath.IsAbs(v) {
		return v
	}
	return def
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// ConfigFile is where the program's settings are.
func (d Dirs) ConfigFile() string { return filepath.Join(d.Config, "config.toml") }

// maxSocket is the longest path that a unix socket takes on every system: 104 bytes with the final zero on macOS, 108 on Linux.
const maxSocket = 103

// Socket is the path of a unix socket in Run. A path too long for the system is an error here, where it can be explained: bind would
// only say "invalid argument".
func (d Dirs) Socket(name string) (string, error) {
	path := filepath.Join(d.Run, name)
	if len(path) > maxSocket {
		return "", Fail(ExitSystem, "use the socket "+path, fmt.Errorf("its path has %d bytes, more than the %d that a socket's may have", len(path), maxSocket),
			"give --home a shorter path")
	}
	return path, nil
}

// Make makes the three directories, with State and Run for their owner only.
func (d Dirs) Make() error {
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{d.Config, 0o755}, {d.State, 0o700}, {d.Run, 0o700}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return Fail(ExitSystem, "make "+dir.path, err, "run as a user who may write there, or give --home DIR")
		}
	}
	return nil
}
