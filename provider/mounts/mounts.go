// Package mounts makes the folders of a lease: /in, /out, /scratch, the exit record and the state that only the daemon sees. It fulfils
// provider.Mounts with plain folders below one root of its own and refuses to touch anything outside it. It knows no container.
package mounts

import (
	"context"

	"github.com/gpufair/gpufair/provider"
)

// Mounts keeps the folders below one root. It may be used by several goroutines at once.
type Mounts struct{}

var _ provider.Mounts = (*Mounts)(nil)

// Open takes root (an absolute path), making it if need be, with mode 0700: whoever can't enter it can't reach a lease's files,
// whatever modes the job gives them.
func Open(root string) (*Mounts, error) { return nil, nil }

// Close lets go of the root; the folders stay.
func (m *Mounts) Close() error { return nil }

// Make implements provider.Mounts.
func (m *Mounts) Make(ctx context.Context, req provider.MountRequest) (provider.Folders, error) {
	return provider.Folders{}, nil
}

// Usage implements provider.Mounts.
func (m *Mounts) Usage(ctx context.Context, id string) (provider.DiskUsage, error) {
	return provider.DiskUsage{}, nil
}

// Remove implements provider.Mounts.
func (m *Mounts) Remove(ctx context.Context, id string) (bool, error) { return false, nil }

// List implements provider.Mounts.
func (m *Mounts) List(ctx context.Context) ([]string, error) { return nil, nil }
