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
func Serve(ctx context.Context, in io.Reader, out io.Writer, gpus GPUDetector) error {
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
	answer, err := serve(ctx, r, out, gpus)
	if err != nil {
		answer = event{Failure: failure(err)}
	}
	if err := send(out, answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

func serve(ctx context.Context, r request, out io.Writer, gpus GPUDetector) (event, error) {
	switch r.Op {
	case opDetect:
		found := gpus(ctx)
		return event{GPUs: &found}, nil
	case opMeasureCPU:
		report, err := measureCPU(ctx, r, out)
		return event{Report: &report}, err
	}
	return event{}, fmt.Errorf("unknown request %q: the daemon and its probe are of different releases; restart the daemon", r.Op)
}

func measureCPU(ctx context.Context, r request, out io.Writer) (report benchmark.Report, err error) {
	dev, err := suite.OpenCPU(r.Cores)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	report = benchmark.Report{Device: dev.Describe(), Profile: r.Profile, KernelSet: benchmark.KernelSet, Started: time.Now()}
	report.Measurements, err = suite.Run(ctx, dev, r.Profile, func(p suite.Progress) {
		if err := send(out, event{Progress: &p}); err != nil {
			lost(fmt.Errorf("tell progress: %w", err))
		}
	})
	report.Finished = time.Now()
	return report, err
}
