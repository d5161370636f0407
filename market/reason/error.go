package reason

import "errors"

// Error is a [Reason] as a Go error. Compare codes with [Is]; get the whole reason with [Of].
type Error struct{ Reason }

// Error is the reason as one line, with the advice for whoever was refused.
func (e *Error) Error() string { return e.Reason.Error() }

// Err makes an error of r.
func Err(r Reason) error { return &Error{r} }

// Errorf makes an error of a code with the figures of the case.
func Errorf(code Code, format string, args ...any) error { return Err(New(code, format, args...)) }

// Of finds the reason in err's chain.
func Of(err error) (Reason, bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason, true
	}
	return Reason{}, false
}

// Is reports whether err carries a reason of that code.
func Is(err error, code Code) bool {
	r, ok := Of(err)
	return ok && r.Code == code
}
