package cli

import "testing"

func TestCount(t *testing.T) {
	for want, got := range map[string]string{
		"0 offers": Count(0, "offer"), "1 core": Count(uint32(1), "core"), "2 cores": Count(2, "core"), "1 entry": Count(uint64(1), "entry"),
		"3 entries": Count(3, "entry"), "2 relays": Count(2, "relay"), "2 addresses": Count(2, "address"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
