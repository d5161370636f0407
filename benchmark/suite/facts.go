package suite

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpufair/gpufair/benchmark"
)

// DetectCPU says what Linux says of the processor and of the cores this process may use.
func DetectCPU() (benchmark.CPU, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return benchmark.CPU{}, fmt.Errorf("detect cpu: %w", err)
	}
	var cores benchmark.Cores
	for c := range uint32(benchmark.MaxCores) {
		if set.IsSet(int(c)) {
			cores = append(cores, c)
		}
	}
	mem, err := meminfo("MemTotal")
	if err != nil {
		return benchmark.CPU{}, fmt.Errorf("detect cpu: %w", err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return benchmark.CPU{}, fmt.Errorf("detect cpu: %w", err)
	}
	return benchmark.CPU{
		Model: cpuModel(), Cores: cores, MemoryMiB: mem >> 20, CacheMiB: lastLevelCache(cores) >> 20,
		OS: fmt.Sprintf("linux %s %s", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH),
	}, nil
}

// ReadMachineID reads this machine's id. A machine without one is told how to get it.
func ReadMachineID() (benchmark.MachineID, error) {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(strings.TrimSpace(string(b))) == 0 {
			continue
		}
		if err != nil {
			return benchmark.MachineID{}, fmt.Errorf("machine id: %w", err)
		}
		id, err := benchmark.ParseMachineID(string(b))
		if err != nil {
			return id, fmt.Errorf("%s: %w", path, err)
		}
		return id, nil
	}
	return benchmark.MachineID{}, errors.New("machine id: /etc/machine-id is missing or empty; run systemd-machine-id-setup as root")
}

// cpuModel is the processor's name. Where /proc/cpuinfo has none (ARM), the board's name stands for it.
func cpuModel() string {
	if v, err := field("/proc/cpuinfo", "model name"); err == nil {
		return v
	}
	if b, err := os.ReadFile("/sys/firmware/devicetree/base/model"); err == nil {
		return strings.TrimRight(string(b), "\x00\n")
	}
	return runtime.GOARCH + " processor"
}

// ClockMHz is how fast cores run now, as the mean of them; 0 where the machine does not tell, as many virtual ones.
func ClockMHz(cores benchmark.Cores) (uint32, error) {
	var sum, n uint64
	for _, c := range cores {
		b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", c))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("clock of core %d: %w", c, err)
		}
		khz, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
		if err != nil {
			return 0, fmt.Errorf("clock of core %d: %w", c, err)
		}
		sum, n = sum+khz/1000, n+1
	}
	if n == 0 {
		return 0, nil
	}
	return uint32(sum / n), nil
}

// meminfo is a line of /proc/meminfo in bytes.
func meminfo(key string) (uint64, error) {
	v, err := field("/proc/meminfo", key)
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseUint(strings.TrimSuffix(v, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %s: %w", key, err)
	}
	return kib << 10, nil
}

// field is the value of the first "key : value" line of a file of /proc.
func field(path, key string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		k, v, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return "", fmt.Errorf("%s: no line %q", path, key)
}

// threads lists the threads of this process.
func threads() ([]int, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	tids := make([]int, 0, len(entries))
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			return nil, fmt.Errorf("/proc/self/task: %w", err)
		}
		tids = append(tids, tid)
	}
	return tids, nil
}

// unknownCache stands for caches that a machine does not describe, as some ARM boards and virtual machines.
const unknownCache = 32 << 20

// lastLevelCache is the size of all last-level caches of cores together, in bytes: a chip may have several.
func lastLevelCache(cores benchmark.Cores) uint64 {
	shared := map[string]uint64{} // by the cores that share it
	for _, c := range cores {
		level, key, size := 0, "", uint64(0)
		dirs, err := filepath.Glob(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/cache/index*", c))
		if err != nil {
			return unknownCache
		}
		for _, dir := range dirs {
			l, err := strconv.Atoi(sysText(dir, "level"))
			if err != nil || l <= level {
				continue
			}
			if kib, err := strconv.ParseUint(strings.TrimSuffix(sysText(dir, "size"), "K"), 10, 64); err == nil {
				level, key, size = l, sysText(dir, "shared_cpu_list"), kib<<10
			}
		}
		if level == 0 {
			return unknownCache
		}
		shared[key] = size
	}
	sum := uint64(0)
	for _, size := range shared {
		sum += size
	}
	return sum
}

// sysText is the text of a file of /sys; "" if it can't be read.
func sysText(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
