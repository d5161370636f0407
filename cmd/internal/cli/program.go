package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Program is one of our binaries: its name, and the flags that all its commands share.
type Program struct {
	*Terminal
	Name  string // "gpufaird": also the name of its directories
	Short string // one line
	Long  string // what --help teaches

	Home       string   // --home
	ConfigPath string   // --config
	Set        []string // --set key=value
}

// NewProgram makes a program on t. Its commands' constructors take it and read the flags when they run.
func NewProgram(t *Terminal, name, short, long string) *Program {
	return &Program{Terminal: t, Name: name, Short: short, Long: long}
}

// Dirs are the program's directories, by the rules of [SystemDirs].
func (p *Program) Dirs() (Dirs, error) { return SystemDirs(p.Name, p.Home) }

// ConfigFile is the path of the settings: --config, or config.toml in the config directory.
func (p *Program) ConfigFile() (string, error) {
	if p.ConfigPath != "" {
		return p.ConfigPath, nil
	}
	d, err := p.Dirs()
	return d.ConfigFile(), err
}

// Source reads where the program's settings come from. A file that --config names must exist.
func (p *Program) Source() (Source, error) {
	path, err := p.ConfigFile()
	if err != nil {
		return Source{}, err
	}
	return ReadSource(path, p.ConfigPath != "", os.Environ(), p.Set)
}

// LoadConfig loads the program's settings over the defaults in into: file, environment, --set.
func LoadConfig[T any](p *Program, into *T) error {
	s, err := p.Source()
	if err != nil {
		return err
	}
	return Load(into, s)
}

// CheckConfig is [LoadConfig] for whoever starts with the settings: see [Check].
func CheckConfig[T any](p *Program, into *T) error {
	s, err := p.Source()
	if err != nil {
		return err
	}
	return Check(into, s)
}

// Root is the program's root command with what all programs share: --json, --home, --config, --set, --version, `version`, shell
// completion, and mistakes that are answered with the nearest right word.
func (p *Program) Root(commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use: p.Name, Short: p.Short, Long: p.Long, Version: ThisBuild().String(),
		SilenceErrors: true, SilenceUsage: true,
		RunE: group,
	}
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.BoolVar(&p.JSON, "json", false, "print results as JSON, one object a line")
	f.StringVar(&p.Home, "home", "", "keep config.toml, state and sockets under this `directory` ("+HomeVariable+")")
	f.StringVar(&p.ConfigPath, "config", "", "read the settings from this `file`")
	f.StringArrayVar(&p.Set, "set", nil, "override one `key=value` of the settings; may be repeated")
	root.AddCommand(commands...)
	root.AddCommand(p.versionCommand())
	prepare(root)
	return root
}

// prepare gives every command that only holds others an answer, and every command without an argument rule the rule "none".
func prepare(c *cobra.Command) {
	if c.HasSubCommands() && c.Run == nil && c.RunE == nil {
		c.RunE = group
	}
	if c.Args == nil {
		c.Args = noArgs
		if c.HasSubCommands() {
			c.Args = knownCommand
		}
	}
	c.Args = worded(c.Args)
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

// worded gives a rule's refusal our words and the usage line, unless it has words of its own: cobra's rules say "accepts 1 arg(s)".
func worded(rule cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		err := rule(c, args)
		var own *Error
		if err == nil || errors.As(err, &own) {
			return err
		}
		return Usagef(c.UseLine(), "%s: got %s, which does not fit", c.CommandPath(), Count(len(args), "argument"))
	}
}

// group is what a command that only holds others does: teach.
func group(c *cobra.Command, _ []string) error { return c.Help() }

func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Usagef(c.CommandPath()+" --help", "%s takes no argument, but got %q", c.CommandPath(), Clean(args[0]))
}

func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := make([]string, 0, len(c.Commands()))
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, append(sub.Aliases, sub.Name())...)
		}
	}
	next := c.CommandPath() + " --help lists what there is"
	if n := Nearest(args[0], names); n != "" {
		next = "did you mean `" + c.CommandPath() + " " + n + "`?"
	}
	return Usagef(next, "unknown command %q of %s", Clean(args[0]), c.CommandPath())
}

func flagError(c *cobra.Command, err error) error {
	next := c.CommandPath() + " --help lists the flags"
	var missing *pflag.NotExistError
	if errors.As(err, &missing) {
		var names []string
		add := func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		}
		c.Flags().VisitAll(add)
		c.InheritedFlags().VisitAll(add)
		if n := Nearest(missing.GetSpecifiedName(), names); n != "" {
			next = "did you mean --" + n + "?"
		}
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		f := wrong.GetFlag()
		if want := flagWants(f.Value.Type()); want != "" {
			return Usagef(next, "%s: --%s %q: want %s", c.CommandPath(), f.Name, Clean(wrong.GetValue()), want)
		}
	}
	return Usagef(next, "%s: %s", c.CommandPath(), Clean(err.Error()))
}

// flagWants is what the value of a flag of one of pflag's types must be, for people; "" if its own error says it.
func flagWants(typ string) string {
	switch typ {
	case "int", "int8", "int16", "int32", "int64", "count":
		return "a whole number"
	case "uint", "uint8", "uint16", "uint32", "uint64":
		return "a whole number, 0 or more"
	case "float32", "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "duration":
		return "a time such as 90s, 30m or 8h"
	}
	return ""
}

func (p *Program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print what this binary is",
		RunE: func(*cobra.Command, []string) error {
			b := ThisBuild()
			if p.JSON {
				return p.PrintJSON(b)
			}
			_, err := fmt.Fprintf(p.Out, "%s %s\n", p.Name, b)
			return err
		},
	}
}

// Main runs root with args, prints the error that it ends with, and gives the exit code for os.Exit.
func (p *Program) Main(ctx context.Context, root *cobra.Command, args []string) ExitCode {
	root.SetArgs(args)
	err := root.ExecuteContext(p.With(ctx))
	PrintError(p.Err, p.Name, err, p.JSON)
	return CodeOf(err)
}

// ConfigCommand is the `config` verb: init, check, show and path. T is the program's settings, defaults makes them.
func ConfigCommand[T any](p *Program, defaults func() T, header string) *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "write, check and show the settings",
		Long: "The settings are one commented TOML file. Later ones win: the defaults, the file, variables GPUFAIR_<KEY> (dots are underscores),\n" +
			"--set key=value. An unknown key is an error, so that a slip of the pen never goes unseen.",
		Example: fmt.Sprintf("  %[1]s config init\n  %[1]s config check\n  %[1]s --set log.level=debug config show", p.Name),
	}
	c.AddCommand(configInit(p, defaults, header), configCheck(p, defaults), configShow(p, defaults), &cobra.Command{
		Use: "path", Short: "print where the file is", Example: fmt.Sprintf("  %s config path", p.Name),
		RunE: func(*cobra.Command, []string) error {
			path, err := p.ConfigFile()
			if err != nil {
				return err
			}
			if p.JSON {
				return p.PrintJSON(map[string]string{"path": path})
			}
			_, err = fmt.Fprintln(p.Out, path)
			return err
		},
	})
	return c
}

func configInit[T any](p *Program, defaults func() T, header string) *cobra.Command {
	var print bool
	c := &cobra.Command{
		Use: "init", Short: "write the commented default file; an existing one is never overwritten",
		Example: fmt.Sprintf("  %[1]s config init\n  %[1]s config init --print", p.Name),
		RunE: func(*cobra.Command, []string) error {
			data, err := DefaultFile(defaults(), header)
			if err != nil {
				return err
			}
			if print {
				_, err := p.Out.Write(data)
				return err
			}
			path, err := p.ConfigFile()
			if err != nil {
				return err
			}
			if err := WriteNew(path, data, 0o644); err != nil {
				return err
			}
			p.Note("wrote %s", path)
			return nil
		},
	}
	c.Flags().BoolVar(&print, "print", false, "print it instead")
	return c
}

func configCheck[T any](p *Program, defaults func() T) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "explain every mistake in the settings by line", Example: fmt.Sprintf("  %[1]s config check && echo fine", p.Name),
		RunE: func(*cobra.Command, []string) error {
			s, err := p.Source()
			if err != nil {
				return err
			}
			if names := UnusedVariables[T](s.Env); len(names) > 0 {
				p.Note("these variables name no key of %s: %s", p.Name, strings.Join(names, ", "))
			}
			v := defaults()
			if err := Check(&v, s); err != nil {
				return err
			}
			switch {
			case p.JSON:
				return p.PrintJSON(map[string]any{"path": s.Path, "exists": s.Data != nil, "ok": true})
			case s.Data == nil:
				p.Note("%s does not exist: the defaults hold", s.Path)
			default:
				p.Note("%s is fine", s.Path)
			}
			return nil
		},
	}
}

func configShow[T any](p *Program, defaults func() T) *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "print the settings that hold, after file, variables and --set",
		Example: fmt.Sprintf("  %[1]s config show\n  %[1]s config show --json", p.Name),
		RunE: func(*cobra.Command, []string) error {
			v := defaults()
			if err := LoadConfig(p, &v); err != nil {
				return err
			}
			data, err := DefaultFile(v, "The settings that hold now.")
			if err != nil {
				return err
			}
			if p.JSON { // by way of TOML, so that the names are those of the file
				var tree map[string]any
				if err := toml.Unmarshal(data, &tree); err != nil {
					return fmt.Errorf("show the settings: %w", err)
				}
				return p.PrintJSON(tree)
			}
			_, err = p.Out.Write(data)
			return err
		},
	}
}
