package benchmark

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/wire"
)

// DomainPassport is the domain of [Passport].
const DomainPassport identity.Domain = "gpufair/passport/1"

// KernelSet is the version of the kernels and of the rules of measuring. It rises when figures of before and after can't be compared.
const KernelSet = 1

// Limits of a passport.
const (
	MaxPassport     = 16 << 10            // bytes of a sealed passport: 1024 cores take 3 KiB, 32 measurements 4 KiB
	MaxMeasurements = 32                  // twice what an offer carries
	MaxText         = 128                 // bytes of each text in it
	PassportLife    = 30 * 24 * time.Hour // after that a device is measured again (spec: gpu, 3)
	MaxSkew         = 5 * time.Minute     // that a passport may come from the future, since clocks differ
)

var (
	// ErrPassport says that a passport contradicts itself or its limits.
	ErrPassport = errors.New("impossible passport")
	// ErrExpired says that a passport is older than its life.
	ErrExpired = errors.New("passport expired")
	// ErrFuture says that a passport was made later than now: one of the two clocks is wrong.
	ErrFuture = errors.New("passport from the future")
	// ErrFalse says that a figure is above what any such device can reach.
	ErrFalse = errors.New("false claim")
	// ErrChanged says that a passport was made for another state of the device: it must be measured again.
	ErrChanged = errors.New("device changed since it was measured")
)

// Report is the outcome of a run, before anyone signs it.
type Report struct {
	Device       Device        `json:"device"`
	Profile      Profile       `json:"profile"`
	KernelSet    uint16        `json:"kernel_set"`
	Started      time.Time     `json:"started"`
	Finished     time.Time     `json:"finished"`
	Measurements []Measurement `json:"measurements"`
	Skipped      []string      `json:"skipped,omitempty"` // what was not measured, each with the reason
	Unread       []string      `json:"unread,omitempty"`  // what a card did not tell meanwhile, each with what that means for the figures
}

// Passport is a provider's signed word on what one device was measured to do. Offers carry its hash; it is fetched on demand.
type Passport struct {
	identity.Header
	Delegation   wire.Hash     `cbor:"4,keyasint"`
	DeviceHash   wire.Hash     `cbor:"5,keyasint"` // of the measured device's UUID; the header's Device is who signs
	Kind         Kind          `cbor:"6,keyasint"`
	Model        string        `cbor:"7,keyasint"`
	Cores        Cores         `cbor:"8,keyasint,omitempty"` // of a CPU device
	KernelSet    uint16        `cbor:"9,keyasint"`
	Driver       string        `cbor:"10,keyasint,omitempty"` // of a card
	OS           string        `cbor:"11,keyasint"`           // "linux 6.18.44 amd64"
	Profile      Profile       `cbor:"12,keyasint"`
	Started      int64         `cbor:"13,keyasint"` // Unix milliseconds
	Finished     int64         `cbor:"14,keyasint"` // Unix milliseconds
	Expires      int64         `cbor:"15,keyasint"` // Unix milliseconds; at most PassportLife after Finished
	Measurements []Measurement `cbor:"16,keyasint"`
}

// Passport makes the record of r to be sealed with [identity.Device.Seal] and [DomainPassport]. header and delegation are the
// signer's ([identity.Device.Header] of version 1, [identity.Device.DelegationHash]).
func (r Report) Passport(header identity.Header, delegation wire.Hash) Passport {
	return Passport{
		Header: header, Delegation: delegation, DeviceHash: r.Device.Hash, Kind: r.Device.Kind, Model: r.Device.Model, Cores: r.Device.Cores,
		KernelSet: r.KernelSet, Driver: r.Device.Driver, OS: r.Device.OS, Profile: r.Profile,
		Started: r.Started.UnixMilli(), Finished: r.Finished.UnixMilli(), Expires: r.Finished.Add(PassportLife).UnixMilli(),
		Measurements: r.Measurements,
	}
}

// OpenPassport checks a sealed passport: its signature, limits and caps. Whether it is still valid is for [Passport.Valid], and
// whether the account let the device sign it for [identity.Delegation.Allows].
func OpenPassport(raw []byte) (Passport, error) {
	if len(raw) > MaxPassport {
		return Passport{}, fmt.Errorf("open passport of %d bytes: %w (limit %d)", len(raw), wire.ErrTooLarge, MaxPassport)
	}
	p, err := identity.OpenAdvert[Passport](DomainPassport, 1, raw)
	if err != nil {
		return Passport{}, err
	}
	if err := p.Validate(); err != nil {
		return Passport{}, err
	}
	return p, nil
}

// Figures are the passport's figures as offers carry them.
func (p Passport) Figures() []Figure {
	out := make([]Figure, len(p.Measurements))
	for i, m := range p.Measurements {
		out[i] = m.Value()
	}
	return out
}

// Valid checks p as it stands at now: what [Passport.Validate] checks, and its times.
func (p Passport) Valid(now time.Time) error {
	if err := p.Validate(); err != nil {
		return err
	}
	ms := now.UnixMilli()
	switch {
	case p.Finished > ms+MaxSkew.Milliseconds():
		return fmt.Errorf("%w: made %s after now; compare the clocks of both machines", ErrFuture, time.Duration(p.Finished-ms)*time.Millisecond)
	case p.Expires <= ms:
		return fmt.Errorf("%w on %s; run gpufaird benchmark to measure the device again", ErrExpired,
			time.UnixMilli(p.Expires).UTC().Format(time.DateOnly))
	}
	return nil
}

// Validate checks everything about p that needs no clock: limits, order of times, and that no figure is above its cap.
func (p Passport) Validate() error {
	if err := p.shape(); err != nil {
		return fmt.Errorf("%w: %w", ErrPassport, err)
	}
	seen := make(map[FigureID]bool, len(p.Measurements))
	for _, m := range p.Measurements {
		s := m.Stats
		switch {
		case seen[m.Figure]:
			return fmt.Errorf("%w: figure %s twice", ErrPassport, m.Figure)
		case len(m.KernelName) > MaxText || len(m.Size) > MaxText:
			return fmt.Errorf("%w: figure %s: a text over %d bytes", ErrPassport, m.Figure, MaxText)
		case s.N == 0 || s.P5 > s.Median || s.Median > s.P95:
			return fmt.Errorf("%w: figure %s: statistics out of order", ErrPassport, m.Figure)
		}
		seen[m.Figure] = true
		if limit, ok := Cap(p.Kind, len(p.Cores), m.Figure); ok && s.P95 > limit {
			return fmt.Errorf("%w: %s: no %s of %d cores passes %s", ErrFalse, Figure{ID: m.Figure, Value: s.P95}, p.Kind, len(p.Cores),
				Figure{ID: m.Figure, Value: limit})
		}
	}
	return nil
}

func (p Passport) shape() error {
	for _, s := range []string{p.Model, p.Driver, p.OS, string(p.Profile)} {
		if len(s) > MaxText {
			return fmt.Errorf("a text of %d bytes, at most %d are allowed", len(s), MaxText)
		}
	}
	switch p.Kind {
	case KindCPU:
		if err := p.Cores.Validate(); err != nil {
			return err
		}
	case KindGPU:
		if len(p.Cores) != 0 {
			return errors.New("a GPU with a list of CPU cores")
		}
	default:
		return fmt.Errorf("kind %.20q, want gpu or cpu", string(p.Kind))
	}
	switch {
	case p.DeviceHash.IsZero():
		return errors.New("no device")
	case len(p.Measurements) == 0 || len(p.Measurements) > MaxMeasurements:
		return fmt.Errorf("%d measurements, want 1 to %d", len(p.Measurements), MaxMeasurements)
	case p.Started <= 0 || p.Started > p.Finished || p.Finished >= p.Expires:
		return errors.New("times out of order")
	case p.Expires-p.Finished > PassportLife.Milliseconds():
		return fmt.Errorf("lives longer than %d days", PassportLife/(24*time.Hour))
	}
	return nil
}

// Describes checks that p was made for d as it is now, by these kernels. After a change of the device, its driver or the kernel set
// the figures are void (spec: gpu, 3).
func (p Passport) Describes(d Device) error {
	change := func(what, was, is string) error {
		return fmt.Errorf("%w: its %s was %q and is %q; run gpufaird benchmark", ErrChanged, what, was, is)
	}
	switch {
	case p.DeviceHash != d.Hash:
		return change("id", p.DeviceHash.Short(), d.Hash.Short())
	case p.Model != d.Model:
		return change("model", p.Model, d.Model)
	case p.Driver != d.Driver:
		return change("driver", p.Driver, d.Driver)
	case p.KernelSet != KernelSet:
		return change("kernel set", fmt.Sprint(p.KernelSet), fmt.Sprint(KernelSet))
	}
	return nil
}
