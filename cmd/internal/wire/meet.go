package wire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/p2p"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/local"
	"github.com/gpufair/gpufair/p2p/local/serve"
)

// joinWithin bounds a join: dials of several addresses and a snapshot of all offers.
const joinWithin = 45 * time.Second

// meeting fulfils serve.Meeting.
type meeting struct {
	b      *Base
	checks func(context.Context) []local.Check
}

var _ serve.Meeting = meeting{}

// Identity says who this daemon is.
func (m meeting) Identity(context.Context) (local.Identity, error) {
	id, err := Describe(m.b.Device, IdentityDir(m.b.State))
	id.Network, id.Addrs = m.b.name, m.b.Network.Addrs()
	return id, err
}

// Describe says who a device is. Network and addresses are a running daemon's to know.
func Describe(dev *identity.Device, dir string) (local.Identity, error) {
	d, err := identity.OpenDelegation(dev.Delegation())
	if err != nil {
		return local.Identity{}, fmt.Errorf("own delegation: %w", err)
	}
	v := local.Identity{
		Account: dev.Account().String(), Peer: dev.Peer().String(), Powers: d.Powers.String(), Serial: d.Serial, Cap: capText(d), Dir: dir,
		Addrs: []string{}, Devices: []local.AccountDevice{},
	}
	if v.AccountKey, err = identity.HasAccountKey(dir); err != nil {
		return v, err
	}
	known, err := identity.Devices(dir)
	for _, k := range known {
		v.Devices = append(v.Devices, DescribeDevice(k))
	}
	return v, err
}

// DescribeDevice says what is known of a device of the account.
func DescribeDevice(k identity.Known) local.AccountDevice {
	v := local.AccountDevice{Peer: k.Device.String(), This: k.This, Revoked: k.Revoked()}
	if d := k.Delegation; d != nil {
		v.Serial, v.Powers, v.Cap = d.Serial, d.Powers.String(), capText(*d)
	}
	if r := k.Revocation; r != nil {
		since := time.UnixMilli(r.Time).UTC()
		v.Since = &since
	}
	return v
}

func capText(d identity.Delegation) string { return min(money.Micro(d.Cap), money.Max).String() }

// Peers lists the connected peers.
func (m meeting) Peers(context.Context) (local.Peers, error) {
	out := local.Peers{Peers: []local.Peer{}, Skew: m.b.Board.Skew().String()}
	for _, p := range m.b.Network.Peers() {
		v := local.Peer{
			Peer: p.Peer.String(), Addr: p.Addr, Transport: p.Transport, Reach: string(p.Reach), Inbound: p.Inbound, Since: p.Since,
			RTTMillis: float64(p.RTT) / float64(time.Millisecond), Agent: p.Agent, Traffic: []local.Traffic{},
		}
		for _, c := range p.Traffic {
			v.Traffic = append(v.Traffic, local.Traffic(c))
		}
		if account, ok := m.account(p.Peer); ok {
			v.Account = account.String()
		}
		out.Peers = append(out.Peers, v)
	}
	return out, nil
}

// account is for whom a peer acts, if it has shown that.
func (m meeting) account(peer identity.PeerID) (identity.AccountID, bool) {
	if account, ok := m.b.Delegations.Account(peer); ok {
		return account, true
	}
	e, ok := m.b.Board.Book().Get(peer, time.Now())
	return e.Account, ok
}

// Invite makes the string that another daemon joins with.
func (m meeting) Invite(_ context.Context, req local.InviteRequest) (local.Invite, error) {
	if req.Credit != "" {
		amount, err := money.Parse(req.Credit)
		if err != nil {
			return local.Invite{}, serve.Fail(http.StatusUnprocessableEntity, err, "give --credit as a decimal, such as 2.5")
		}
		req.Credit = amount.String() + " " + string(m.b.Unit)
	}
	text, err := p2p.NewInvite(m.b.Device, m.b.name, m.b.Network.Addrs(), req.Credit)
	if err != nil {
		return local.Invite{}, serve.Fail(http.StatusConflict, err, "set an address that others can reach under `listen`")
	}
	return local.Invite{Invite: text}, nil
}

// Join connects to whoever made an invite, asks who that is, and learns the offers that it knows.
func (m meeting) Join(ctx context.Context, in local.Invite) (local.Joined, error) {
	ctx, cancel := context.WithTimeout(ctx, joinWithin)
	defer cancel()
	inv, err := p2p.ParseInvite(in.Invite)
	switch {
	case err != nil:
		return local.Joined{}, serve.Fail(http.StatusUnprocessableEntity, err, "ask the inviter for the line again: `gpufaird invite` prints it")
	case inv.Network != m.b.name:
		return local.Joined{}, serve.Fail(http.StatusConflict, fmt.Errorf("join: the invite is for the network %q, this daemon is on %q", inv.Network, m.b.name),
			fmt.Sprintf("set network = %q in the settings and restart, or ask for an invite to %q", inv.Network, m.b.name))
	case inv.Device == m.b.Device.Peer():
		return local.Joined{}, serve.Fail(http.StatusConflict, errors.New("join: this invite is this daemon's own"), "give it to the other side")
	}
	if err := m.b.Network.Connect(ctx, inv.PeerAddr()); err != nil {
		return local.Joined{}, serve.Fail(http.StatusBadGateway, fmt.Errorf("join %s: %w", inv.Device.Short(), err),
			"is the inviter's daemon running, and may its port be reached from here?")
	}
	d, err := m.b.Delegations.Lookup(ctx, inv.Device, inv.Delegation)
	if err == nil && (d.Account != inv.Account || d.Device != inv.Device) {
		err = fmt.Errorf("%w: the invite names account %s, the proof is for %s", identity.ErrPower, inv.Account.Short(), d.Account.Short())
	}
	if err != nil {
		return local.Joined{}, serve.Fail(http.StatusBadGateway, fmt.Errorf("join %s: %w", inv.Device.Short(), err), "ask the inviter for a new invite")
	}
	if err := m.b.Network.Keep(inv.PeerAddr()); err != nil {
		return local.Joined{}, serve.Fail(http.StatusUnprocessableEntity, fmt.Errorf("join %s: %w", inv.Device.Short(), err), "ask the inviter for a new invite")
	}
	if _, err := m.b.Board.Sync(ctx, inv.Device); err != nil {
		m.b.Log.Warn("offers of the inviter not read; gossip brings them", "peer", inv.Device.Short(), "err", err)
	}
	return local.Joined{
		Peer: inv.Device.String(), Account: inv.Account.String(), Network: inv.Network, Offers: m.b.Board.Book().Len(),
	}, nil
}

// Doctor checks what a daemon needs.
func (m meeting) Doctor(ctx context.Context) (local.Checks, error) {
	checks := append(append(StaticChecks(m.b.State), m.b.checkRevoked()...), m.b.liveChecks()...)
	if m.checks != nil {
		checks = append(checks, m.checks(ctx)...)
	}
	return local.Checks{Checks: checks}, nil
}

// gauges are the daemon's own metrics; an agent adds its own to b.Metrics.
func (b *Base) gauges() {
	gauge := func(name, help string, f func() float64) {
		b.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "gpufair", Name: name, Help: help}, f))
	}
	gauge("peers", "Connected peers.", func() float64 { return float64(len(b.Network.Peers())) })
	gauge("offers", "Live offers in the book.", func() float64 { return float64(b.Board.Book().Len()) })
	gauge("clock_offset_seconds", "This clock against the median of the peers'; positive is ahead.",
		func() float64 { return b.Board.Skew().Offset.Seconds() })
}
