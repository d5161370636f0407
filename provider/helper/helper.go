// Package helper carries Runtime, Network and Mounts over a unix socket, one request and one answer per connection with a file
// descriptor beside the request, so that a small root process can serve a daemon without privileges. It does none of the work itself and
// knows nothing of leases.
//
// A message is its length (u32, big-endian) and that many bytes of JSON. An *os.File argument travels as SCM_RIGHTS with the length.
package helper

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// maxMessage is far over the largest request: a spec whose arguments and environment are at most 512 KiB, doubly encoded.
const maxMessage = 4 << 20

// request is one call.
type request struct {
	Call string          `json:"call"` // "runtime.create"
	Args json.RawMessage `json:"args,omitempty"`
}

// response answers it.
type response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *failure        `json:"error,omitempty"`
}

// failure is an error with its kind.
type failure struct {
	Kind string `json:"kind,omitempty"`
	Text string `json:"text"`
}

// kinds are the errors that keep their identity.
func kinds() map[string]error {
	return map[string]error{
		"not_found": provider.ErrNotFound, "image": provider.ErrImage, "command": provider.ErrCommand,
		"unavailable": provider.ErrUnavailable, "no_space": provider.ErrNoSpace, "request": provider.ErrRequest,
		"state": provider.ErrState, "canceled": context.Canceled, "deadline": context.DeadlineExceeded,
	}
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error()}
	for name, kind := range kinds() {
		if errors.Is(err, kind) {
			f.Kind = name
		}
	}
	return f
}

// remoteError is an error of the other side: its text, and its kind by errors.Is.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

func (f *failure) err() error { return &remoteError{text: f.Text, kind: kinds()[f.Kind]} }

// send writes one message, with a file beside it if there is one.
func send(c *net.UnixConn, v any, file *os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes, %d are allowed", len(body), maxMessage)
	}
	var rights []byte
	if file != nil {
		raw, err := file.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) { rights = unix.UnixRights(int(fd)) }); err != nil {
			return err
		}
		_, _, err = c.WriteMsgUnix(binary.BigEndian.AppendUint32(nil, uint32(len(body))), rights, nil)
		if err != nil {
			return err
		}
		_, err = c.Write(body)
		return err
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// receive reads one message into v, and the file beside it, which the caller closes; nil if there is none.
func receive(c *net.UnixConn, v any) (*os.File, error) {
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(4)) // one descriptor; the kernel closes what does not fit
	n, oobn, _, _, err := c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	file, err := fileOf(oob[:oobn])
	if err != nil {
		return nil, err
	}
	if n == 0 { // a stream's end reads as nothing
		err = io.EOF
	} else {
		_, err = io.ReadFull(c, head[n:])
	}
	size := binary.BigEndian.Uint32(head)
	if err == nil && size > maxMessage {
		err = fmt.Errorf("message of %d bytes, %d are allowed", size, maxMessage)
	}
	if err == nil {
		body := make([]byte, size)
		if _, err = io.ReadFull(c, body); err == nil {
			err = json.Unmarshal(body, v)
		}
	}
	if err != nil && file != nil {
		file.Close()
		file = nil
	}
	return file, err
}

// fileOf takes the descriptor out of a control message.
func fileOf(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	for _, extra := range fds[1:] {
		unix.Close(extra)
	}
	unix.CloseOnExec(fds[0])
	_ = unix.SetNonblock(fds[0], true) // so that a pipe can be given up when its call is cancelled; a file does not mind
	return os.NewFile(uintptr(fds[0]), "request"), nil
}
