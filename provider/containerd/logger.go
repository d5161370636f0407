package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/runtime/v2/logging"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/access"
)

// LoggerVerb is the hidden verb that the logger program is started with, followed by one argument for [LoggerMain].
const LoggerVerb = "job-log"

// loggerURI is what containerd's shim makes the logger's command line of: the query's one key and value are its two arguments.
func loggerURI(program string, req provider.LogRequest) (*url.URL, error) {
	if !filepath.IsAbs(req.Path) {
		return nil, fmt.Errorf("log path %q is not absolute: %w", req.Path, provider.ErrRequest)
	}
	if req.MaxBytes < access.MinLog {
		return nil, fmt.Errorf("log cap of %d bytes is below %d: %w", req.MaxBytes, access.MinLog, provider.ErrRequest)
	}
	arg, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "binary", Path: program, RawQuery: url.Values{LoggerVerb: {string(arg)}}.Encode()}, nil
}

// LoggerMain is the logger beside each job: started by containerd's shim with arg, it copies the job's output into its log until the job
// closes it, outliving containerd and the provider's daemon. It exits the process and does not return. Its own errors go to the shim's log.
func LoggerMain(arg string) {
	logging.Run(func(_ context.Context, c *logging.Config, ready func() error) error { return runLogger(arg, c, ready) })
}

// runLogger ends with the job's output only: the shim's SIGTERM comes when the job is over, with output still in the pipes.
func runLogger(arg string, c *logging.Config, ready func() error) error {
	var req provider.LogRequest
	if err := json.Unmarshal([]byte(arg), &req); err != nil {
		return fmt.Errorf("log of job %s: read argument: %w", c.ID, err)
	}
	w, err := access.Create(req.Path, req.MaxBytes)
	if err != nil {
		return fmt.Errorf("log of job %s: %w", c.ID, err)
	}
	if err := ready(); err != nil {
		return fmt.Errorf("log of job %s: tell the shim: %w", c.ID, err)
	}
	var streams sync.WaitGroup
	report := func(err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "log of job %s: output dropped: %v\n", c.ID, err)
		}
	}
	streams.Go(func() { report(w.Copy(access.Stdout, c.Stdout)) })
	streams.Go(func() { report(w.Copy(access.Stderr, c.Stderr)) })
	streams.Wait()
	return w.Close(time.Now())
}
