// Command demo walks the whole journey on one machine, with the commands and settings that a person has: two providers with a core each and
// a renter, a private containerd, a real job, a settlement. It owns what it starts and removes it again; it refuses to know any package of
// gpufair: what it shows, anybody can type.
//
//	go run ./cmd/internal/demo [-out FOLDER] [-bin FOLDER]     # from the repository's root, as root, after make build
//	go run ./cmd/internal/demo -image render.tar               # only the image of its job, for a job by hand
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// limit is how long the whole demo may take: two minutes on two idle cores, and some patience with a busy machine.
const limit = 15 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "folder of gpufair, gpufaird and gpufair-init")
	out := flag.String("out", "demo-out", "folder for the results; each demo makes one in it")
	image := flag.String("image", "", "only write the job's image to this file, for a job by hand")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took more than %v", limit))
	defer cancel()
	err := begin(ctx, *bin, *out, *image)
	if err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo:", err)
	}
	switch {
	case errors.Is(err, errInterrupted):
		os.Exit(130)
	case err != nil:
		os.Exit(1)
	}
}

// errInterrupted says that a person stopped the demo.
var errInterrupted = errors.New("interrupted; what it had started was stopped and removed")

// begin does what the flags ask for.
func begin(ctx context.Context, bin, out, image string) error {
	if image == "" {
		return demo(ctx, bin, out)
	}
	dir, err := os.MkdirTemp("", "gpufair-demo-")
	if err != nil {
		return err
	}
	return errors.Join(buildImage(ctx, filepath.Join(dir, "render"), image), os.RemoveAll(dir))
}

// demo runs the journey, says how it went and cleans up, whatever happens.
func demo(ctx context.Context, bin, out string) error {
	started := time.Now()
	w, err := newWorld(bin)
	if err != nil {
		return err
	}
	results := filepath.Join(out, started.Format("20060102-150405"))
	j := &journey{world: w, results: results}
	err = j.run(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("%w (%w)", err, cause)
		w.showLogs()
	case cause != nil:
		err = errInterrupted
	default:
		w.showLogs()
	}
	left := w.close(err == nil)
	switch {
	case err != nil && left != nil:
		return fmt.Errorf("%w\ndemo: cleaning up: %w", err, left)
	case err != nil:
		return err
	case left != nil:
		return fmt.Errorf("cleaning up: %w", left)
	}
	j.summary(time.Since(started))
	return nil
}
