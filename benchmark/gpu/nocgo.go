//go:build !linux || !cgo

package gpu

import (
	"github.com/gpufair/gpufair/benchmark"
	"github.com/gpufair/gpufair/benchmark/suite"
)

func without() *benchmark.Problem {
	return &benchmark.Problem{
		Code: "no_nvml", Text: "this gpufaird was built without NVIDIA support", Advice: "build it with CGO_ENABLED=1 and a C compiler (make build)",
	}
}

func detect() benchmark.GPUs { return benchmark.GPUs{Problem: without()} }

func open(string) (suite.Device, error) { return nil, without() }
