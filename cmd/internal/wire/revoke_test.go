package wire

import (
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// hears waits until b knows that a delegation is void.
func hears(t *testing.T, b *Base, d identity.Delegation) {
	t.Helper()
	becomes(t, "the revocation is heard of", func() bool { return errors.Is(b.Delegations.Revoked(d), identity.ErrRevoked) })
}

// A revocation made beside a running daemon reaches a peer that is connected, one that joins later, and the device itself, whose doctor
// says so.
func TestRevocationReachesPeers(t *testing.T) {
	host, at := running(t, settings(t))
	guest, by := running(t, settings(t))
	var inv local.Invite
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{}, &inv); err != nil {
		t.Fatal(err)
	}
	if err := by.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
		t.Fatal(err)
	}
	lostDir := t.TempDir() + "/identity"
	request, device, err := identity.Ask(lostDir)
	if err != nil {
		t.Fatal(err)
	}
	if asked, err := identity.ParseRequest(request); err != nil || asked != device {
		t.Fatal(asked, err)
	}
	_, lost, err := identity.Grant(IdentityDir(host.State), device, identity.AllPowers, 1, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := identity.RevokeDevice(IdentityDir(host.State), device, time.Now()); err != nil {
		t.Fatal(err)
	}
	var id local.Identity
	if err := at.Post(t.Context(), "/identity/refresh", struct{}{}, &id); err != nil || len(id.Devices) != 2 || !id.Devices[1].Revoked {
		t.Fatalf("%v %+v", err, id)
	}
	hears(t, host, lost)
	hears(t, guest, lost)
	late, in := running(t, settings(t))
	if err := in.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
		t.Fatal(err)
	}
	hears(t, late, lost)
	if host.Delegations.Self() != nil || guest.Delegations.Self() != nil {
		t.Error("a device that was not meant is revoked")
	}
	if _, _, err := identity.RevokeDevice(IdentityDir(host.State), host.Device.Peer(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := at.Post(t.Context(), "/identity/refresh", struct{}{}, &id); err != nil {
		t.Fatal(err)
	}
	var checks local.Checks
	if err := at.Get(t.Context(), "/doctor", &checks); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, c := range checks.Checks {
		found = found || c.Name == "device" && c.Level == LevelFail
	}
	if !found {
		t.Errorf("doctor does not tell a revoked device: %+v", checks)
	}
}
