package api

import (
	"fmt"
	"strings"
)

// Line is the status in one line, for a status bar: "serving · 1 of 2 leased · 0.42 CREDIT today".
func (s Status) Line() string {
	parts := []string{s.State}
	if s.PausedUntil != nil {
		parts[0] += " until " + s.PausedUntil.Local().Format("15:04")
	}
	leased, offered, measuring := 0, 0, 0
	for _, d := range s.Devices {
		switch d.State {
		case DeviceLeased:
			leased++
			offered++
		case DeviceFree:
			offered++
		case DeviceMeasuring:
			measuring++
		}
	}
	switch {
	case measuring > 0:
		parts = append(parts, fmt.Sprintf("measuring %d", measuring))
	case offered > 0:
		parts = append(parts, fmt.Sprintf("%d of %d leased", leased, offered))
	default:
		parts = append(parts, "nothing on offer")
	}
	for _, a := range s.Today {
		parts = append(parts, a.Amount+" "+a.Unit+" today")
	}
	if len(s.Warnings) > 0 {
		parts = append(parts, "! "+s.Warnings[0])
	}
	return strings.Join(parts, " · ")
}
