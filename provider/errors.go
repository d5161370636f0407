package provider

import (
	"context"
	"errors"
	"slices"
	"syscall"
)

// Errors that Runtime, Network, Mounts and Registries answer with; they keep their identity over a socket.
var (
	ErrNotFound    = errors.New("not found")
	ErrImage       = errors.New("not an image for this machine")
	ErrCommand     = errors.New("the image has no such command")
	ErrUnavailable = errors.New("runtime does not answer")
	ErrNoSpace     = errors.New("no space left")
	ErrRequest     = errors.New("not a valid request")
	ErrState       = errors.New("the container is in another state")
	ErrDenied      = errors.New("not to be fetched from")
	ErrRegistry    = errors.New("the registry does not give the image")
)

// ErrUnstored says that the owner's pause, or its end, is in force and could not be stored.
var ErrUnstored = errors.New("in force now, but a restart would forget it")

// passing are what a busy or full host answers with, not one that can't.
var passing = []error{
	syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.EBUSY, syscall.EINTR, syscall.EIO,
	context.Canceled, context.DeadlineExceeded,
}

// Passing reports whether an error may be gone at the next try. Who tries what a host can do, and would do with less protection where it
// can't, takes no such error for an answer.
func Passing(err error) bool {
	return slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) })
}
