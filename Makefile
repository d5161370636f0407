# gpufair: build, test, demo. `make` alone prints what there is.
# Nothing here fetches anything but by apt (make deps) and the Go module proxy.

MODULE  := github.com/gpufair/gpufair
PREFIX  ?= /usr/local
GO      ?= go
PROGRAMS := $(notdir $(wildcard cmd/gpufair*))

# The stamp of the version. Without git (a source archive) the build still works and says "devel".
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
VCS     := $(shell git status --porcelain >/dev/null 2>&1 && echo true || echo false)
# -buildvcs stands here since GOFLAGS in the environment may say otherwise.
BUILD   := -trimpath -buildvcs=$(VCS) -ldflags '-X $(MODULE)/cmd/internal/cli.stamp=$(VERSION)'
PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: help build deps demo test lint cross nat bench gpu-check soak-short soak ptx install clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: $(addprefix bin/,$(PROGRAMS)) ## build the programs into bin/, version stamped

# Only the daemon has cgo (its measuring child speaks NVML); the others are static.
bin/gpufaird: FORCE
	CGO_ENABLED=1 $(GO) build $(BUILD) -o $@ ./cmd/gpufaird

bin/%: FORCE
	CGO_ENABLED=0 $(GO) build $(BUILD) -o $@ ./cmd/$*

FORCE:

deps: ## install what is missing (containerd, runc, gcc, g++, OpenBLAS, e2fsprogs, hledger, beancount, nftables, iproute2) by apt; not root: print the line and fail
	@.ci/deps

demo: deps build ## the whole journey on this machine: two providers, a renter, a real job, a settlement
	@$(GO) run ./cmd/internal/demo $(DEMOFLAGS)

test: deps ## format, vet, lint, walls, and every test with the race detector, the seeds of the fuzz targets among them
	@.ci/test format vet fix tidy staticcheck walls clients race

lint: ## the first stages of `make test` only
	@.ci/test format vet fix tidy staticcheck walls

cross: ## build the renter's program for six platforms into dist/
	@set -e; for p in $(PLATFORMS); do \
		ext=; case $$p in windows/*) ext=.exe;; esac; out=dist/gpufair-$$(echo $$p | tr / -)$$ext; start=$$(date +%s); \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build $(BUILD) -o $$out ./cmd/gpufair; \
		printf '%-32s %4d MiB %4d s\n' $$out $$(($$(wc -c < $$out) >> 20)) $$(($$(date +%s) - start)); \
	done

nat: deps ## trade between machines behind routers of several kinds, in network namespaces; takes root
	@.ci/test nat

bench: ## run the benchmarks and print the table of numbers to reach
	@.ci/bench

# What a machine needs for it is in bin/, so that one without Go and a compiler can be given the folder and run bin/gpucheck.
gpu-check: bin/gpufaird bin/gpucheck bin/gpu.test bin/emulation.so ## check and measure this machine's NVIDIA cards in under 9 minutes, figures into docs/benchmarks; without a card it says so and ends with 0
	@bin/gpucheck $(GPUFLAGS)

bin/gpucheck: FORCE
	CGO_ENABLED=0 $(GO) build $(BUILD) -o $@ ./cmd/internal/gpucheck

bin/gpu.test: FORCE
	CGO_ENABLED=1 $(GO) test -c -o $@ ./benchmark/gpu

bin/emulation.so: $(wildcard benchmark/gpu/kernels/*) benchmark/gpu/testdata/fakecuda.cpp
	@mkdir -p bin
	$(CXX) -DHOST_EMU -O1 -std=c++20 -w -shared -fPIC -o $@ benchmark/gpu/testdata/fakecuda.cpp

soak-short: ## the short form of the long tests: soak tests, property tests with many draws, 5,000 inputs for each fuzz target
	@.ci/test soak properties fuzz

soak: ## the long form of the long tests, some hours: 1,000 kills, 200 power cuts, 5,500 flipped bytes, 10,000 random histories, 100,000 fuzzed inputs
	@.ci/test soak-long properties-long fuzz-long

ptx: ## build the kernels for NVIDIA cards again after a change of their source; takes Debian's clang-19, which nothing else needs
	@benchmark/gpu/kernels/build.sh

install: build ## install the programs under PREFIX (/usr/local), below DESTDIR if that is set
	install -d '$(DESTDIR)$(PREFIX)/bin'
	install -m 0755 $(addprefix bin/,$(PROGRAMS)) '$(DESTDIR)$(PREFIX)/bin'

clean: ## remove what the other targets built
	rm -rf bin dist demo-out
