package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// The descriptors that containerd's shim starts a binary logger with (containerd, core/runtime/v2/logging).
const (
	fdStdout = 3
	fdStderr = 4
	fdReady  = 5 // a byte here says that the logger reads
)

// RunLogger is the program beside each job: started by the runtime, it copies the job's output into its log until the job closes it,
// outliving runtime and daemon. arg is a provider.LogRequest as JSON. It is the whole of its process: it takes over descriptors 3 to 5 and
// ignores SIGTERM, which comes when the job is over with output still in the pipes.
func RunLogger(arg string) error {
	signal.Ignore(syscall.SIGTERM)
	return runLogger(arg, os.NewFile(fdStdout, "stdout"), os.NewFile(fdStderr, "stderr"), os.NewFile(fdReady, "ready"))
}

func runLogger(arg string, stdout, stderr, ready *os.File) error {
	var req struct {
		Path     string `json:"path"`
		MaxBytes int64  `json:"max_bytes"`
	}
	if err := json.Unmarshal([]byte(arg), &req); err != nil {
		return fmt.Errorf("job log: read argument: %w", err)
	}
	w, err := Create(req.Path, req.MaxBytes)
	if err != nil {
		return err
	}
	if _, err := ready.Write([]byte{0}); err != nil {
		return fmt.Errorf("job log %s: tell the runtime: %w", req.Path, err)
	}
	if err := ready.Close(); err != nil {
		return fmt.Errorf("job log %s: tell the runtime: %w", req.Path, err)
	}
	var streams sync.WaitGroup
	var outErr, errErr error
	streams.Go(func() { outErr = w.Copy(Stdout, stdout) })
	streams.Go(func() { errErr = w.Copy(Stderr, stderr) })
	streams.Wait()
	return errors.Join(outErr, errErr, w.Close(time.Now()))
}
