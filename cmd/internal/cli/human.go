package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Bytes is n bytes in binary units: "1.5 GiB".
func Bytes(n uint64) string { return humanize.IBytes(n) }

// ParseBytes reads a size as people write it: "512MiB", "4 GiB", "10GB".
func ParseBytes(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil {
		return 0, fmt.Errorf("size %q is no number with a unit such as 512MiB or 4GiB", Clean(s))
	}
	return n, nil
}

// Span is a duration as people read it, rounded to what matters: "12.3 s", "4 m 12 s", "3 h 5 m", "2 d 4 h".
func Span(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	switch {
	case d < time.Second:
		return fmt.Sprintf("%s%d ms", sign, d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%s%.1f s", sign, d.Truncate(100*time.Millisecond).Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%s%d s", sign, int(d.Seconds()))
	case d < time.Hour:
		return sign + two(int(d.Minutes()), "m", int(d.Seconds())%60, "s")
	case d < 24*time.Hour:
		return sign + two(int(d.Hours()), "h", int(d.Minutes())%60, "m")
	default:
		return sign + two(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
	}
}

func two(a int, unit string, b int, small string) string {
	if b == 0 {
		return fmt.Sprintf("%d %s", a, unit)
	}
	return fmt.Sprintf("%d %s %d %s", a, unit, b, small)
}

// Time is at in the person's zone, with the date unless it is today's; "-" for no time.
func (t *Terminal) Time(at, now time.Time) string {
	if at.IsZero() {
		return "-"
	}
	at, now = at.In(t.Zone), now.In(t.Zone)
	if at.Year() == now.Year() && at.YearDay() == now.YearDay() {
		return at.Format("15:04:05")
	}
	return at.Format("2006-01-02 15:04")
}

// Ago is how long at lies before now: "12 s ago", or "in 3 m" for what is to come.
func Ago(at, now time.Time) string {
	if at.IsZero() {
		return "never"
	}
	if d := now.Sub(at); d >= 0 {
		return Span(d) + " ago"
	}
	return "in " + Span(at.Sub(now))
}

// Duration is a time span in config files and flags: Go's form ("90s", "1h30m") and days ("7d").
type Duration time.Duration

// Std is d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is the form that [Duration.UnmarshalText] reads.
func (d Duration) String() string {
	if day := 24 * time.Hour; d != 0 && time.Duration(d)%day == 0 {
		return fmt.Sprintf("%dd", time.Duration(d)/day)
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText is [Duration.String].
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads "90s", "1h30m" or "7d".
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// ParseDuration reads a duration as [Duration] does.
func ParseDuration(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		v, err := time.ParseDuration(days + "h")
		if err == nil && v < 1<<62/24 && v > -1<<62/24 {
			return 24 * v, nil
		}
	} else if v, err := time.ParseDuration(s); err == nil {
		return v, nil
	}
	return 0, fmt.Errorf("duration %q is no time span such as 90s, 1h30m or 7d", Clean(s))
}

// Size is a number of bytes in config files: "4GiB".
type Size uint64

// String is the size in the largest binary unit that gives a whole number, so that it reads back as the same size.
func (s Size) String() string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for i < len(units)-1 && s != 0 && s%1024 == 0 {
		s, i = s/1024, i+1
	}
	return fmt.Sprintf("%d%s", uint64(s), units[i])
}

// MarshalText is [Size.String].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what [ParseBytes] reads.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := ParseBytes(string(b))
	*s = Size(n)
	return err
}
