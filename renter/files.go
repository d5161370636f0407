package renter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpufair/gpufair/p2p/blob"
)

// files are the image and inputs of one run. Every offer that a run tries is a job of its own, and all of them push the same files; the
// last user closes them. Safe for concurrent use.
type files struct {
	mu     sync.Mutex
	users  int     // guarded by mu
	image  Image   // guarded by mu; nil after a restart until it is needed
	inputs *inputs // guarded by mu
}

// inputs are a packed folder, and the folder itself where it was made for a single file.
type inputs struct {
	*blob.Packed
	made string // removed at the end; empty: the renter's own
}

func (i *inputs) Close() error {
	err := i.Packed.Close()
	if i.made != "" {
		err = errors.Join(err, os.RemoveAll(i.made))
	}
	return err
}

func newFiles() *files { return &files{users: 1} }

// share makes one more user.
func (f *files) share() *files {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users++
	return f
}

// drop takes a user off.
func (f *files) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users > 0 {
		return
	}
	if f.image != nil {
		f.image.Close() // it was only read
	}
	if f.inputs != nil {
		f.inputs.Close()
	}
	f.image, f.inputs = nil, nil
}

// get opens again what a restart closed; it must be what was ordered.
func (f *files) get(ctx context.Context, images Images, rec record) (Image, *inputs, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.image == nil {
		image, err := images.Open(ctx, rec.ImagePath, rec.Platform)
		if err != nil {
			return nil, nil, err
		}
		f.image = image
	}
	if f.inputs == nil && rec.InputPath != "" {
		inputs, err := packInput(ctx, rec.InputPath)
		if err != nil {
			return nil, nil, err
		}
		f.inputs = inputs
	}
	if f.image.Manifest() != rec.Spec.Image {
		return nil, nil, fmt.Errorf("image %s: it changed since the job was ordered: order it again", rec.ImagePath)
	}
	if f.inputs != nil && f.inputs.ID != rec.Spec.Inputs {
		return nil, nil, fmt.Errorf("input %s: it changed since the job was ordered: order it again", rec.InputPath)
	}
	return f.image, f.inputs, nil
}

// packInput packs a folder, or a single file as a folder that holds it.
func packInput(ctx context.Context, path string) (*inputs, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("input %s: it is neither a folder nor a file", path)
	}
	in, dir := &inputs{}, path
	if !info.IsDir() {
		if in.made, err = os.MkdirTemp("", "gpufair-input-"); err != nil {
			return nil, fmt.Errorf("input %s: %w", path, err)
		}
		dir = in.made
		err = copyFile(path, filepath.Join(dir, filepath.Base(path)), info.Mode().Perm())
	}
	if err == nil {
		in.Packed, err = blob.Pack(ctx, dir, blob.PackOptions{})
	}
	if err != nil {
		if in.made != "" {
			err = errors.Join(err, os.RemoveAll(in.made))
		}
		return nil, fmt.Errorf("input %s: %w", path, err)
	}
	return in, nil
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
