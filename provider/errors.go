package provider

import "errors"

// Errors that Runtime, Network and Mounts answer with; they keep their identity over a socket.
var (
	ErrNotFound    = errors.New("not found")
	ErrImage       = errors.New("not an image for this machine")
	ErrCommand     = errors.New("the image has no such command")
	ErrUnavailable = errors.New("runtime does not answer")
	ErrNoSpace     = errors.New("no space left")
	ErrRequest     = errors.New("not a valid request")
	ErrState       = errors.New("the container is in another state")
)

// ErrUnstored says that the owner's pause, or its end, is in force and could not be stored.
var ErrUnstored = errors.New("in force now, but a restart would forget it")
