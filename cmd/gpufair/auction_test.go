package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufair/gpufair/cmd/internal/cli"
	"github.com/gpufair/gpufair/ledger/money"
	"github.com/gpufair/gpufair/market/auction"
	"github.com/gpufair/gpufair/market/markettest"
	"github.com/gpufair/gpufair/market/negotiate"
	"github.com/gpufair/gpufair/p2p/identity"
	"github.com/gpufair/gpufair/p2p/p2ptest"
	"github.com/gpufair/gpufair/p2p/wire"
)

// anAuction is the transcript of two bidders for one GPU; the dearer one wins.
func anAuction(t *testing.T) (transcript auction.Transcript, seller, winner *identity.Device) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Unix(1_800_000_000, 0)
	seller = p2ptest.Device(t)
	a, err := negotiate.NewAuctioneer(seller, auction.Open{
		Offer: markettest.Hash("offer"), Lot: 1, K: 1, MinTerm: 300, MaxTerm: 3600, Unit: money.Credit, Reserve: 200_000, Mode: auction.First,
		Bond: 16_666, Commit: 20, Grace: 3, Reveal: 10, Decline: 60, Rules: auction.RulesVersion, Nonce: markettest.Hash("nonce"),
	}, now)
	must(err)
	open := a.Transcript().Open
	var openings [][]byte
	for i, rate := range []money.Rate{300_000, 350_000} {
		winner = p2ptest.Device(t)
		b := auction.Bid{
			Options: []auction.Option{{Quantity: 1, Rate: rate}}, Unit: money.Credit, Term: 600, Needs: markettest.Hash("needs"),
			Voucher: markettest.Hash("voucher"),
		}
		sealed, err := negotiate.PrepareBid(winner, open, b, wire.Sum("gpufair/test", []byte{byte(i)}), 1, 1_000_000)
		must(err)
		_, _, _, err = a.Admit(sealed.Commit, winner.Delegation(), now)
		must(err)
		raw, err := auction.Opening{Commit: sealed.Commit, Bid: sealed.Bid, Nonce: sealed.Nonce}.Encode()
		must(err)
		openings = append(openings, raw)
	}
	now = now.Add(23 * time.Second)
	_, err = a.Tick(now)
	must(err)
	for _, raw := range openings {
		_, err = a.Opening(raw, now)
		must(err)
	}
	_, err = a.Tick(now)
	must(err)
	return a.Transcript(), seller, winner
}

// anotherSeal is a second Seal of the seller, over a log of one commit less.
func anotherSeal(t *testing.T, seller *identity.Device, good auction.Transcript) []byte {
	t.Helper()
	var log auction.Log
	if _, err := log.Append(good.Leaves[0]); err != nil {
		t.Fatal(err)
	}
	size, root := log.Head()
	return markettest.Seal(t, seller, auction.DomainSeal, auction.Seal{
		Header: seller.Header(auction.Version), Delegation: seller.DelegationHash(), Auction: auction.IDOf(good.Open), Size: size, Root: root,
	})
}

// TestAuctionVerify checks a good transcript, one that lacks the Seal, one with two Seals and a damaged one, in words and in JSON.
func TestAuctionVerify(t *testing.T) {
	good, seller, winner := anAuction(t)
	unsealed, two := good, good
	unsealed.Seals = nil
	two.Seals = append([][]byte{anotherSeal(t, seller, good)}, good.Seals...)
	for name, c := range map[string]struct {
		t      auction.Transcript
		damage bool
		code   cli.ExitCode
		result string
		says   string
	}{
		"good":     {t: good, code: cli.ExitOK, result: "kept", says: "Won: you (leaf 1): 1 GPU for 0.35 CREDIT an hour in all: its own bid."},
		"unsealed": {t: unsealed, code: cli.ExitBehind, result: "incomplete", says: "Missing: the Seal."},
		"broken":   {t: two, code: cli.ExitForged, result: "broken", says: "BROKEN (two seals)"},
		"damaged":  {t: good, damage: true, code: cli.ExitCorrupt, result: "corrupt", says: ""},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := c.t.Encode()
			if err != nil {
				t.Fatal(err)
			}
			if c.damage {
				raw[len(raw)-1] ^= 1
			}
			file := filepath.Join(t.TempDir(), "a.transcript")
			if err := os.WriteFile(file, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			code, out, errs := here(t, "auction", "verify", file, "--as", winner.Account().String())
			if code != c.code || !strings.Contains(out, c.says) || (errs != "") != c.damage {
				t.Errorf("exit %d, want %d: %s\n%s", code, c.code, out, errs)
			}
			code, out, _ = here(t, "auction", "verify", file, "--json")
			var r auctionReport
			if err := json.Unmarshal([]byte(out), &r); err != nil || code != c.code || r.Result != c.result {
				t.Errorf("exit %d, %v: %s", code, err, out)
			}
		})
	}
}

func TestAuctionVerifyNoFile(t *testing.T) {
	for _, name := range []string{os.DevNull, t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		if code, out, errs := here(t, "auction", "verify", name); code != cli.ExitNotFound || out != "" || !strings.Contains(errs, "next:") {
			t.Errorf("%s: exit %d: %s%s", name, code, out, errs)
		}
	}
}
