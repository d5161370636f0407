package helper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

const (
	// readIn is how long a caller may take to send its request, and we to send the answer.
	readIn = 10 * time.Second
	// maxCalls bounds calls at once: a daemon has a Wait per job and few others.
	maxCalls = 512
)

// Server serves the contracts. Its fields are set before Serve.
type Server struct {
	Runtime provider.Runtime
	Network provider.Network
	Mounts  provider.Mounts
	// UIDs are the users that may call, besides root, by the peer credentials of the socket.
	UIDs []uint32
}

// Serve answers on l until ctx is done; then it closes l, cancels what runs, waits for it and returns nil.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel() // before the wait
	slots := make(chan struct{}, maxCalls)
	handlers := s.handlers()
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve helper: %w", err)
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close() // the caller sees a helper that does not answer
			continue
		}
		calls.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			s.answer(ctx, conn, handlers)
		})
	}
}

// answer serves one connection.
func (s *Server) answer(ctx context.Context, conn *net.UnixConn, handlers map[string]handler) {
	if !s.allowed(conn) {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(readIn))
	var req request
	file, err := receive(conn, &req)
	if err != nil {
		return // nobody to answer to
	}
	if file != nil {
		defer file.Close()
	}
	_ = conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the caller sends no more: what can be read is that it has gone
		_, _ = conn.Read(make([]byte, 1))
		cancel()
	}()
	var resp response
	result, err := dispatch(ctx, handlers, req, file)
	if err == nil {
		resp.Result, err = json.Marshal(result)
	}
	if err != nil {
		resp = response{Error: newFailure(err)}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(readIn))
	_ = send(conn, resp, nil) // if it is lost, the caller asks again
}

func dispatch(ctx context.Context, handlers map[string]handler, req request, file *os.File) (any, error) {
	h, ok := handlers[req.Call]
	if !ok {
		return nil, fmt.Errorf("helper call %q: unknown: is the helper older than the daemon?: %w", req.Call, provider.ErrRequest)
	}
	return h(ctx, req.Args, file)
}

// allowed checks who the kernel says is calling.
func (s *Server) allowed(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return err == nil && cerr == nil && (cred.Uid == 0 || slices.Contains(s.UIDs, cred.Uid))
}

// handler does one call.
type handler func(ctx context.Context, args json.RawMessage, file *os.File) (any, error)

// with makes a handler of a method with an argument and a result.
func with[A, R any](do func(context.Context, A) (R, error)) handler {
	return func(ctx context.Context, raw json.RawMessage, _ *os.File) (any, error) {
		var args A
		if err := json.Unmarshal(raw, &args); err != nil {
			return nil, fmt.Errorf("arguments: %w: %w", provider.ErrRequest, err)
		}
		return do(ctx, args)
	}
}

// act is with for a method without a result.
func act[A any](do func(context.Context, A) error) handler {
	return with(func(ctx context.Context, a A) (any, error) { return nil, do(ctx, a) })
}

// get is with for a method without an argument.
func get[R any](do func(context.Context) (R, error)) handler {
	return func(ctx context.Context, _ json.RawMessage, _ *os.File) (any, error) { return do(ctx) }
}

// handlers is every call by its name.
func (s *Server) handlers() map[string]handler {
	imports := func(ctx context.Context, raw json.RawMessage, file *os.File) (any, error) {
		if file == nil {
			return nil, errors.Join(provider.ErrRequest, errors.New("import: no archive came with the request"))
		}
		return with(func(ctx context.Context, r provider.ImportRequest) (provider.ImageInfo, error) {
			return s.Runtime.Import(ctx, r, file)
		})(ctx, raw, nil)
	}
	return map[string]handler{
		"runtime.info":         get(s.Runtime.Info),
		"runtime.import":       imports,
		"runtime.image":        with(s.Runtime.Image),
		"runtime.images":       get(s.Runtime.Images),
		"runtime.remove_image": act(s.Runtime.RemoveImage),
		"runtime.create":       with(s.Runtime.Create),
		"runtime.start":        act(s.Runtime.Start),
		"runtime.signal":       act(s.Runtime.Signal),
		"runtime.freeze":       act(s.Runtime.Freeze),
		"runtime.thaw":         act(s.Runtime.Thaw),
		"runtime.status":       with(s.Runtime.Status),
		"runtime.wait":         with(s.Runtime.Wait),
		"runtime.usage":        with(s.Runtime.Usage),
		"runtime.list":         get(s.Runtime.List),
		"runtime.delete":       act(s.Runtime.Delete),
		"network.wire":         act(s.Network.Wire),
		"network.traffic":      with(s.Network.Traffic),
		"network.unwire":       act(s.Network.Unwire),
		"network.list":         get(s.Network.List),
		"mounts.info":          get(s.Mounts.Info),
		"mounts.free":          get(s.Mounts.Free),
		"mounts.make":          with(s.Mounts.Make),
		"mounts.usage":         with(s.Mounts.Usage),
		"mounts.remove":        with(s.Mounts.Remove),
		"mounts.list":          get(s.Mounts.List),
	}
}
