package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

// errOrphan says that the parent is gone.
var errOrphan = errors.New("the daemon that asked is gone")

// Serve is the child's main: it answers the one request on in, as lines of JSON on out, and returns. It ends early when in ends, as
// it does when the parent dies, or when ctx does; the caller ties ctx to SIGTERM. A request that can't be fulfilled is answered with
// its failure and is no error here. One goroutine goes on reading in until in ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer, d Driver) error {
	ctx, orphan := context.WithCancelCause(ctx)
	defer orphan(nil)
	reader := bufio.NewReaderSize(in, maxLine)
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	go func() {
		if _, err := io.Copy(io.Discard, reader); err == nil {
			orphan(errOrphan)
		}
	}()
	answer, err := serve(ctx, r, out, d)
	if err != nil {
		answer = event{Failure: failure(err)}
	}
	if err := send(out, answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

func serve(ctx context.Context, r request, out io.Writer, d Driver) (event, error) {
	switch r.Op {
	case opDetect:
		found := d.Detect(ctx)
		return event{GPUs: &found}, nil
	case opMeasureCPU:
		report, err := measure(ctx, r.Profile, out, func() (suite.Device, error) { return openCPU(r.Cores) })
		return event{Report: &report}, err
	case opMeasureGPU:
		report, err := measure(ctx, r.Profile, out, func() (suite.Device, error) { return d.Open(r.UUID) })
		return event{Report: &report}, err
	}
	return event{}, fmt.Errorf("unknown request %q: the daemon and its probe are of different releases; restart the daemon", r.Op)
}

// partial is a device that can't be measured in full.
type partial interface {
	// Skipped are the kernels that it can't run, each with the reason.
	Skipped() []string
	// Unread is what it did not tell during the run, each with what that means for the figures. It is asked after the run.
	Unread() []string
}

func measure(ctx context.Context, profile benchmark.Profile, out io.Writer, open func() (suite.Device, error)) (report benchmark.Report, err error) {
	dev, err := open()
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	report = benchmark.Report{Device: dev.Describe(), Profile: profile, KernelSet: benchmark.KernelSet, Started: time.Now()}
	report.Measurements, err = suite.Run(ctx, dev, profile, func(p suite.Progress) {
		if err := send(out, event{Progress: &p}); err != nil {
			lost(fmt.Errorf("tell progress: %w", err))
		}
	})
	report.Finished = time.Now()
	if p, ok := dev.(partial); ok {
		report.Skipped, report.Unread = p.Skipped(), p.Unread()
	}
	return report, err
}

// openCPU keeps a failed device from being an interface that is not nil.
func openCPU(cores benchmark.Cores) (suite.Device, error) {
	dev, err := suite.OpenCPU(cores)
	if err != nil {
		return nil, err
	}
	return dev, nil
}
