package wire

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger"
	"github.com/gpufair/gpufair/ledger/books"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
)

// runOnce opens and runs a daemon, calls f, and stops it.
func runOnce(t *testing.T, c Config, f func(*Base, *local.Client)) {
	t.Helper()
	b, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	b.Register(Agent{PeerOf: nobody})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	f(b, local.NewClient(b.Socket))
	cancel()
	if err := errors.Join(<-done, b.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestRotateDevice changes a stopped daemon's device key: what hangs on the old one is seen while no daemon can start; after it the same
// ledger goes on, and a peer hears that the old device is revoked.
func TestRotateDevice(t *testing.T) {
	host, at := running(t, settings(t))
	var inv local.Invite
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{}, &inv); err != nil {
		t.Fatal(err)
	}
	c := settings(t)
	c.State = c.Dirs.State
	var old *identity.Device
	var root string
	runOnce(t, c, func(b *Base, _ *local.Client) {
		old = b.Device
		o := books.Opening{Channel: b.Books.Channel(host.Device.Account(), money.Credit), Lane: ledger.Lane{1}, Rate: 1, Devices: 1, Hold: 10}
		err := b.Books.Update(t.Context(), func(tx *books.Tx) error { _, err := tx.Promise(o); return err })
		if err != nil {
			t.Fatal(err)
		}
		v, err := b.Books.Verify(t.Context())
		if err != nil || v.Entries != 1 {
			t.Fatal(v, err)
		}
		root = v.Root
		err = WhileStopped(t.Context(), c.State, "look", func(books.Hanging) error { t.Error("looked while the daemon runs"); return nil })
		if cli.CodeOf(err) != cli.ExitRefused {
			t.Errorf("while the daemon runs: %v", err)
		}
	})
	err := WhileStopped(t.Context(), c.State, "look", func(h books.Hanging) error {
		if h != (books.Hanging{Running: 1}) {
			t.Errorf("hanging: %+v", h)
		}
		if b, err := Open(t.Context(), c); err == nil {
			t.Error("a daemon started meanwhile")
			return b.Close()
		}
		_, err := identity.Rotate(IdentityDir(c.State), "", time.Now()) // a kill before the last step: the start does it
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	void, err := identity.OpenDelegation(old.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	runOnce(t, c, func(b *Base, by *local.Client) {
		if b.Device.Peer() == old.Peer() || b.Device.Account() != old.Account() {
			t.Errorf("it runs as device %s of %s", b.Device.Peer(), b.Device.Account())
		}
		if err := b.Books.ReadOnly(); err != nil {
			t.Errorf("the ledger under the new device: %v", err)
		}
		if v, err := b.Books.Verify(t.Context()); err != nil || v.Result != books.ResultOK || v.Entries != 1 || v.Root != root {
			t.Errorf("the ledger under the new device: %+v %v", v, err)
		}
		if err := by.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
			t.Fatal(err)
		}
		hears(t, host, void)
	})
	if _, err := identity.NextDevice(IdentityDir(c.State)); err != nil {
		t.Error(err)
	}
	// A next key that waits changes nothing.
	runOnce(t, c, func(b *Base, _ *local.Client) {
		if err := errors.Join(b.Books.ReadOnly(), b.Delegations.Self()); err != nil {
			t.Error(err)
		}
	})
}

// Where there never was a ledger, nothing hangs on the device.
func TestNothingHangsWithoutLedger(t *testing.T) {
	called := false
	err := WhileStopped(t.Context(), t.TempDir(), "look", func(h books.Hanging) error {
		called = h.None()
		return nil
	})
	if err != nil || !called {
		t.Error(called, err)
	}
}

// TestRotateAccount changes the account's key of a stopped daemon: it goes on as the same account and the same device, and a peer that it meets
// takes nothing under the old key any more.
func TestRotateAccount(t *testing.T) {
	host, at := running(t, settings(t))
	var inv local.Invite
	if err := at.Post(t.Context(), "/invite", local.InviteRequest{}, &inv); err != nil {
		t.Fatal(err)
	}
	c := settings(t)
	c.State = c.Dirs.State
	var was *identity.Device
	runOnce(t, c, func(b *Base, by *local.Client) {
		was = b.Device
		if err := by.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := identity.RotateAccount(IdentityDir(c.State), time.Now()); err != nil { // a kill before the last step: the start does it
		t.Fatal(err)
	}
	old, err := identity.OpenDelegation(was.Delegation())
	if err != nil {
		t.Fatal(err)
	}
	runOnce(t, c, func(b *Base, by *local.Client) {
		if b.Device.Account() != was.Account() || b.Device.Peer() != was.Peer() || b.Device.DelegationHash() == was.DelegationHash() {
			t.Errorf("it runs as device %s of account %s", b.Device.Peer(), b.Device.Account())
		}
		if err := by.Post(t.Context(), "/join", inv, &local.Joined{}); err != nil {
			t.Fatal(err)
		}
		becomes(t, "the peer hears of the new key", func() bool { return errors.Is(host.Delegations.Revoked(old), identity.ErrReplaced) })
		now, err := identity.OpenDelegation(b.Device.Delegation())
		if err = errors.Join(err, host.Delegations.Revoked(now), b.Delegations.Self(), b.Books.ReadOnly()); err != nil {
			t.Error(err)
		}
	})
}
