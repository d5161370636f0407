package benchmark

import (
	"fmt"
	"time"
)

// Profile is how thorough a run is.
type Profile string

// The profiles.
const (
	Quick    Profile = "quick"    // for listing a device: under a minute
	Standard Profile = "standard" // weekly, while idle: some minutes, with a sustained load
	Soak     Profile = "soak"     // the owner's choice, and the first enrolment: a quarter of an hour
)

// ParseProfile reads the name of a profile.
func ParseProfile(s string) (Profile, error) {
	switch p := Profile(s); p {
	case Quick, Standard, Soak:
		return p, nil
	}
	return "", fmt.Errorf("profile %q: unknown; use quick, standard or soak", s)
}

// Repeats is how many timed intervals a figure gets: at least 10 (spec: gpu, 3).
func (p Profile) Repeats() int {
	switch p {
	case Standard:
		return 20
	case Soak:
		return 40
	default:
		return 10
	}
}

// Sustained is how long the device is held under full load at the end (spec: gpu, 3); 0 for none.
func (p Profile) Sustained() time.Duration {
	switch p {
	case Standard:
		return 120 * time.Second
	case Soak:
		return 600 * time.Second
	default:
		return 0
	}
}

// Limit is the longest a run may take before its process is ended: several times what an unstable machine needs, so that only a
// hang meets it.
func (p Profile) Limit() time.Duration {
	switch p {
	case Standard:
		return 20 * time.Minute
	case Soak:
		return 60 * time.Minute
	default:
		return 5 * time.Minute
	}
}
