package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Ready tells systemd (Type=notify) that the daemon serves; without systemd it does nothing. A status line may be empty.
func Ready(status string) error { return notify(daemon.SdNotifyReady, status) }

// Stopping tells systemd that the daemon is on its way out.
func Stopping() error { return notify(daemon.SdNotifyStopping, "") }

// Reloading tells systemd that the daemon reads its settings again; call [Ready] after it.
func Reloading() error {
	return notify(daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec(), "")
}

func notify(state, status string) error {
	if status != "" {
		state += "\nSTATUS=" + Clean(status)
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// Watchdog is a part for a [Group]: it feeds systemd's watchdog, if the unit has one, at half its interval for as long as alive says
// so.
func Watchdog(alive func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		interval, err := daemon.SdWatchdogEnabled(false)
		if err != nil || interval == 0 {
			<-ctx.Done()
			return nil
		}
		tick := time.NewTicker(interval / 2)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			if err := alive(ctx); err == nil {
				_ = notify(daemon.SdNotifyWatchdog, "") // a lost beat is what the watchdog is for
			}
		}
	}
}
