package renter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/p2p/blob"
	"github.com/gpufair/gpufair/renter/control/api"
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

// roomy are the offers whose disk holds a run's inputs. Only sizes are looked at: reading terabytes to find that they do not fit takes hours.
func roomy(ctx context.Context, offers []book.Found, req api.RunRequest) ([]book.Found, error) {
	if req.Input == "" {
		return offers, nil
	}
	size, err := inputSize(ctx, req.Input)
	if err != nil {
		return nil, &refusal{why: err}
	}
	most := uint64(0)
	fit := slices.DeleteFunc(slices.Clone(offers), func(f book.Found) bool {
		disk := f.Lot.DiskMiB * uint64(max(req.Devices, 1)) // each device brings its own
		most = max(most, disk)
		return (size+1<<20-1)>>20 > disk
	})
	if len(fit) == 0 {
		return nil, &refusal{
			why:  fmt.Errorf("input %s has %d MiB, and the disk of the offer has %d MiB, for the job's files too", req.Input, size>>20, most),
			next: fmt.Sprintf("choose an offer with more: -q 'disk>%d' counts in GiB; or give fewer files", size>>30),
		}
	}
	return fit, nil
}

// inputSize is what the files of an input hold, without reading them. It stops counting where no disk is larger.
func inputSize(ctx context.Context, path string) (size uint64, err error) {
	const enough = 1 << 60
	if path, err = filepath.EvalSymlinks(path); err != nil { // it may be a link itself; those inside are packed as links
		return 0, fmt.Errorf("input: %w", err)
	}
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			size += uint64(info.Size())
		}
		if size > enough {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("input: %w", err)
	}
	return size, nil
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
