//go:build linux && cgo

package gpu

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/gpufair/gpufair/benchmark"
)

// sysRoot is the sysfs that is asked; tests have one of their own.
var sysRoot = "/sys"

// sysfs is where Linux shows its devices: "/sys".
type sysfs string

// card reports whether a display controller of NVIDIA is in the machine, with or without a driver.
func (s sysfs) card() bool {
	found, _ := filepath.Glob(filepath.Join(string(s), "bus/pci/devices/*")) // the pattern is sound
	for _, device := range found {
		vendor, _ := os.ReadFile(filepath.Join(device, "vendor")) // one that can't be read is none of NVIDIA's
		class, _ := os.ReadFile(filepath.Join(device, "class"))
		if strings.TrimSpace(string(vendor)) == "0x10de" && strings.HasPrefix(string(class), "0x03") {
			return true
		}
	}
	return false
}

// nouveau reports whether the kernel's own driver is loaded, beside which NVIDIA's can't be.
func (s sysfs) nouveau() bool {
	_, err := os.Stat(filepath.Join(string(s), "module/nouveau"))
	return err == nil
}

// explain says more of a driver that is not there or finds no card, by what is in the machine.
func (s sysfs) explain(p *benchmark.Problem) {
	if p.Code == "no_library" && s.card() {
		p.Code, p.Text = "not_installed", "an NVIDIA card is in this machine, and its driver is not installed"
		p.Advice = "Debian: apt install nvidia-driver libcuda1, then reboot; in a container the host has the driver: pass the card in"
	}
	if p.Code == "no_card" && s.card() {
		p.Code, p.Text = "lost", "an NVIDIA card is in this machine, and its driver does not find it"
		p.Advice = "see dmesg and who has it (lspci -k: vfio-pci keeps it for a VM), check its power leads and riser, then reboot; in a container: pass the card in"
	}
	if (p.Code == "not_installed" || p.Code == "no_driver") && s.nouveau() {
		p.Text += "; nouveau has the card"
		p.Advice = "keep nouveau out (echo blacklist nouveau > /etc/modprobe.d/nouveau.conf; update-initramfs -u), install NVIDIA's driver if it is not there, and reboot"
	}
}

// wsl2 reports whether this Linux is one inside Windows.
func wsl2() bool {
	_, err := os.Stat("/dev/dxg")
	return err == nil
}

// underWindows turns the advice of p, which may be nil, into what mends it in WSL2, where a driver of Linux would shadow that of Windows.
func underWindows(p *benchmark.Problem) {
	if p == nil {
		return
	}
	switch p.Code {
	case "no_library", "not_installed", "no_driver", "version_mismatch", "no_card", "old_driver", "no_cuda", "no_jit", "no_uvm":
		p.Advice = "WSL2 has the driver of Windows: update NVIDIA's there, remove any in Linux, then wsl --update and wsl --shutdown in Windows"
	}
}
