package cli

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/lmittmann/tint"
)

// Log formats, for a config file or --log-format.
const (
	LogAuto = "auto" // coloured on a terminal, text otherwise
	LogText = "text"
	LogJSON = "json"
)

// LogConfig is how a program logs.
type LogConfig struct {
	Level  string `toml:"level" comment:"debug, info, warn or error"`
	Format string `toml:"format" comment:"auto: coloured on a terminal and text otherwise; text; json"`
}

// DefaultLog is info, in the form that fits where stderr goes.
func DefaultLog() LogConfig { return LogConfig{Level: "info", Format: LogAuto} }

// Validate checks level and format.
func (c LogConfig) Validate() error {
	if _, err := c.level(); err != nil {
		return err
	}
	switch c.Format {
	case LogAuto, LogText, LogJSON:
		return nil
	default:
		return KeyErrorf("log.format", "%q is none of auto, text, json", Clean(c.Format))
	}
}

func (c LogConfig) level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.Level)); err != nil || strings.ContainsAny(c.Level, "+-") {
		return 0, KeyErrorf("log.level", "%q is none of debug, info, warn, error", Clean(c.Level))
	}
	return l, nil
}

// Logger makes the program's logger, which writes to stderr. The level variable can be changed while it runs.
func (t *Terminal) Logger(c LogConfig) (*slog.Logger, *slog.LevelVar, error) {
	if err := c.Validate(); err != nil {
		return nil, nil, fmt.Errorf("set up logging: %w", err)
	}
	level := new(slog.LevelVar)
	l, err := c.level()
	if err != nil {
		return nil, nil, fmt.Errorf("set up logging: %w", err)
	}
	level.Set(l)
	var h slog.Handler
	switch {
	case c.Format == LogJSON:
		h = slog.NewJSONHandler(t.Err, &slog.HandlerOptions{Level: level})
	case c.Format == LogAuto && t.ErrTTY:
		h = tint.NewTextHandler(t.Err, &tint.Options{Level: level, TimeFormat: "15:04:05.000"})
	default:
		h = slog.NewTextHandler(t.Err, &slog.HandlerOptions{Level: level})
	}
	return slog.New(h), level, nil
}
