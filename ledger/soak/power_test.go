//go:build linux

package soak

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// volume is an ext4 file system in an image file, mounted.
type volume struct{ image, at, loop string }

// volumes says why there are none here, or "".
func volumes() string {
	if os.Geteuid() != 0 {
		return "only root can mount an image"
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err.Error()
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return err.Error()
	}
	return ""
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// mount mounts an image on a folder of the test's, and unmounts it when the test ends. The loop device goes with the mount. Nothing is
// written back by itself while a test lasts, so what is on the image is there because somebody waited for it, or by chance.
func mount(t *testing.T, image string) *volume {
	t.Helper()
	v := &volume{image: image, at: t.TempDir()}
	must(t, command("mount", "-o", "loop,commit=300", image, v.at))
	t.Cleanup(func() { must(t, v.unmount()) })
	table, err := os.ReadFile("/proc/mounts")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 1 && f[1] == v.at {
			v.loop = filepath.Base(f[0])
		}
	}
	if v.loop == "" {
		t.Fatal("mounted, but not in the table of mounts")
	}
	return v
}

func (v *volume) unmount() error {
	if v.loop == "" {
		return nil
	}
	v.loop = ""
	return command("umount", v.at)
}

// counters are the device's: as long as they stand still, nothing is written to the image.
func (v *volume) counters(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("/sys/block/" + v.loop + "/stat")
	must(t, err)
	return b
}

// snapshot copies the image as it is at one instant: the copy is made again if anything was written meanwhile.
func (v *volume) snapshot(t *testing.T, to string) {
	t.Helper()
	for range 100 {
		before := v.counters(t)
		must(t, copySparse(v.image, to))
		if bytes.Equal(before, v.counters(t)) {
			return
		}
	}
	t.Fatal("the image never stood still")
}

// The power goes while a provider and a renter write: both are stopped, the image is copied as it is on the device, and the copy is
// mounted, with the file system's own recovery. All that either said to be durable is there. Every tenth time life goes on from the copy.
func TestSoakPowerCuts(t *testing.T) {
	n, r, done := suite(t, 5, 200)
	if n == 0 {
		return
	}
	if why := volumes(); why != "" {
		notRun(t, "power cuts need loop devices: "+why)
		return
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 192<<20))
	must(t, command("mkfs.ext4", "-q", "-F", image))
	disk, to := mount(t, image), newPromised()
	p := newPair(t, dir, disk.at)
	socket := filepath.Join(dir, "s")
	provider, renter := start(t, "provider", p.provider, socket, to), start(t, "renter", p.renter, socket, to)
	vouchers := 0
	for cut := range n {
		to.await(1+r.IntN(80), provider, renter)
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Microsecond) // between two lines
		for _, c := range []*process{provider, renter} {
			must(t, c.cmd.Process.Signal(syscall.SIGSTOP))
		}
		copied := filepath.Join(dir, fmt.Sprintf("cut%d", cut))
		disk.snapshot(t, copied)
		onward := cut%10 == 9
		if onward {
			for _, c := range []*process{provider, renter} {
				c.kill(t)
			}
		}
		after := mount(t, copied)
		vouchers = newPair(t, dir, after.at).check(t, to)
		if !onward {
			must(t, after.unmount())
			must(t, os.Remove(copied))
			for _, c := range []*process{provider, renter} {
				must(t, c.cmd.Process.Signal(syscall.SIGCONT))
			}
			continue
		}
		must(t, disk.unmount())
		must(t, os.Remove(disk.image))
		disk = after
		p = newPair(t, dir, disk.at)
		provider, renter = start(t, "provider", p.provider, socket, to), start(t, "renter", p.renter, socket, to)
	}
	provider.kill(t)
	renter.kill(t)
	if vouchers == 0 {
		t.Fatal("nothing was done")
	}
	done("cuts=%d vouchers=%d lost=0", n, vouchers)
}
