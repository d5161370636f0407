package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/image-spec/identity"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/provider"
)

// A job's root file system is an overlay of the image's unpacked layers under a writable folder of the lease's own, whose quota holds what
// the job changes. containerd only keeps the layers: its own writable snapshots have no quota. For a job in a user namespace each layer
// is first bound with its ids shifted (an idmapped mount), so that nothing of an image is copied, whatever containerd's version.

// rootfs puts the mounts of a job's root together. They are for the shim to mount; release gives back what only its mounting needs.
func (c *Client) rootfs(ctx context.Context, id string, img containerd.Image, at provider.RootFolders, ids []specs.LinuxIDMapping) (root []mount.Mount, release func(), err error) {
	diffs, err := img.RootFS(ctx)
	if err != nil {
		return nil, nil, err
	}
	// It is not in the container's record, since the shim would mount it too: the label keeps it from containerd's garbage collector.
	keep := snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339)})
	view, err := c.client.SnapshotService(snapshotter).View(ctx, id, identity.ChainID(diffs).String(), keep)
	if err != nil {
		return nil, nil, err
	}
	layers, err := layersOf(view)
	if err != nil {
		return nil, nil, err
	}
	if err := unmountLayers(at.Lower); err != nil { // of a call that was cut off
		return nil, nil, err
	}
	release = func() { _ = unmountLayers(at.Lower) } // what stays goes with the lease's folders
	if len(ids) > 0 {
		if layers, err = shift(layers, at.Lower, ids); err != nil {
			release()
			return nil, nil, err
		}
	}
	return []mount.Mount{{
		Type: "overlay", Source: "overlay",
		Options: []string{
			"nodev", "nosuid", "index=off", "lowerdir=" + strings.Join(layers, ":"), "upperdir=" + at.Upper, "workdir=" + at.Work,
		},
	}}, release, nil
}

// layersOf reads the folders of an image's layers, the uppermost first, out of the mounts that show them.
func layersOf(view []mount.Mount) ([]string, error) {
	if len(view) == 1 && view[0].Type == "bind" {
		return []string{view[0].Source}, nil
	}
	if len(view) == 1 && view[0].Type == "overlay" {
		for _, o := range view[0].Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				return strings.Split(dirs, ":"), nil
			}
		}
	}
	return nil, fmt.Errorf("the snapshotter shows an image as %+v, which is no overlay", view)
}

// shift binds each layer below dir, with the ids on disk shown as the job's.
func shift(layers []string, dir string, ids []specs.LinuxIDMapping) ([]string, error) {
	ns, err := userNamespace(ids)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	const attr = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	var out []string
	for i, layer := range layers {
		target := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(target, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := mount.IDMapMountWithAttrs(layer, target, int(ns.Fd()), attr, 0); err != nil {
			return nil, err
		}
		out = append(out, target)
	}
	return out, nil
}

// userNamespace is an open namespace with the mapping, without a process in it.
func userNamespace(ids []specs.LinuxIDMapping) (*os.File, error) {
	var list []string
	for _, m := range ids {
		list = append(list, fmt.Sprintf("%d:%d:%d", m.ContainerID, m.HostID, m.Size))
	}
	text := strings.Join(list, ",")
	return mount.GetUsernsFD(text, text)
}

// unmountLayers undoes shift. A mounted overlay has its own hold on them.
func unmountLayers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		target := filepath.Join(dir, e.Name())
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) { // not mounted
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		if err := os.Remove(target); err != nil {
			return err
		}
	}
	return nil
}

// userNamespaces reports whether this host can show an image's layers with shifted ids: Linux 5.19 or newer, and a file system below
// containerd's folder that takes idmapped mounts. It tries, since neither has a flag to read. An error that may pass is no answer.
func (c *Client) userNamespaces(ctx context.Context) (bool, error) {
	plugins, err := c.client.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter)
	if err != nil {
		return false, err
	}
	if len(plugins.Plugins) != 1 || plugins.Plugins[0].Exports["root"] == "" {
		return false, fmt.Errorf("containerd has no %s snapshotter", snapshotter)
	}
	err = canShift(plugins.Plugins[0].Exports["root"])
	if provider.Passing(err) {
		return false, fmt.Errorf("try user namespaces: %w", err)
	}
	return err == nil, nil
}

// canShift tries an overlay over a shifted layer in the file system of dir.
func canShift(dir string) error {
	tmp, err := os.MkdirTemp("", "gpufair-try")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // nothing is in it but empty folders
	at := func(name string) string { return filepath.Join(tmp, name) }
	for _, name := range []string{"lower", "second", "root"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			return err
		}
	}
	defer func() { _ = unmountLayers(at("lower")) }()
	layers, err := shift([]string{dir}, at("lower"), []specs.LinuxIDMapping{{HostID: 1 << 30, Size: 1 << 16}})
	if err != nil {
		return err
	}
	if err := unix.Mount("overlay", at("root"), "overlay", unix.MS_RDONLY, "lowerdir="+layers[0]+":"+at("second")); err != nil {
		return err
	}
	return unix.Unmount(at("root"), unix.MNT_DETACH)
}
