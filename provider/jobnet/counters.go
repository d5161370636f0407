package jobnet

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// counters are what a lease's egress has come to. They lie in a file that the child maps and everybody reads: they outlive the child and
// whoever started it, and cost it no call.
type counters struct {
	version uint64 // countersVersion
	in      uint64 // bytes that came for the job: payload of TCP and UDP, answers about names among it
	out     uint64 // bytes that the job sent, questions for names among them
	flows   uint64 // connections that were let out
	refused uint64 // connections that were not, by a rule
	over    uint64 // connections that were not, for a limit: rate of flows, flows at once, bytes, or a log that can't be written
	pid     uint64 // of the job whose denial was proven; 0 until then
	capped  uint64 // 1: the byte cap was reached
}

const (
	countersVersion = 1
	countersSize    = int64(unsafe.Sizeof(counters{}))
)

// mapCounters maps the file of counters. It stays mapped until unmap.
func mapCounters(f *os.File) (*counters, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, int(countersSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the counters: %w", err)
	}
	return (*counters)(unsafe.Pointer(unsafe.SliceData(b))), nil
}

func (c *counters) unmap() {
	_ = unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(c)), countersSize)) // it was mapped
}

// makeCounters opens a lease's file of counters, and makes it if it is not there. What an earlier start of the same lease counted stays, so
// that its byte cap is the lease's.
func makeCounters(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(countersSize); err != nil {
		f.Close()
		return nil, err
	}
	c, err := mapCounters(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	defer c.unmap()
	if atomic.LoadUint64(&c.version) != countersVersion {
		*c = counters{version: countersVersion}
	}
	return f, nil
}

// traffic reads a file of counters.
func traffic(path string) (provider.Traffic, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return provider.Traffic{}, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != countersSize {
		return provider.Traffic{}, errors.Join(err, errors.New("the file of counters is not whole"))
	}
	c, err := mapCounters(f)
	if err != nil {
		return provider.Traffic{}, err
	}
	defer c.unmap()
	return provider.Traffic{
		In: atomic.LoadUint64(&c.in), Out: atomic.LoadUint64(&c.out), Flows: atomic.LoadUint64(&c.flows),
		Refused: atomic.LoadUint64(&c.refused), Over: atomic.LoadUint64(&c.over), Capped: atomic.LoadUint64(&c.capped) == 1,
	}, nil
}
