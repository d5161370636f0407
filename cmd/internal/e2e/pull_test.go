package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpufair/gpufair/market/reason"
	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/containerd/containerdtest"
	"github.com/gpufair/gpufair/provider/fetch"
	"github.com/gpufair/gpufair/provider/reach"
	"github.com/gpufair/gpufair/renter"
	"github.com/gpufair/gpufair/renter/image"
)

// shelf is a registry on loopback that has one image, by a name that httptest's certificate is for.
type shelf struct {
	server *httptest.Server
	name   string // of the repository
	blobs  atomic.Int64
}

// newShelf serves what an OCI archive holds, at any tag.
func newShelf(t *testing.T, archive []byte) *shelf {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	var index struct {
		Manifests []struct{ MediaType, Digest string }
	}
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatalf("index of the archive: %d manifests, %v", len(index.Manifests), err)
	}
	top := index.Manifests[0]
	s := &shelf{}
	s.server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		rest, ok := strings.CutPrefix(q.URL.Path, "/v2/some/job/")
		kind, what, _ := strings.Cut(rest, "/")
		if kind == "manifests" && !strings.HasPrefix(what, "sha256:") {
			what = top.Digest
		}
		b, have := files["blobs/sha256/"+strings.TrimPrefix(what, "sha256:")]
		switch {
		case q.URL.Path == "/v2/":
		case !ok || !have:
			http.NotFound(rw, q)
		case kind == "manifests":
			rw.Header().Set("Content-Type", top.MediaType)
			rw.Header().Set("Docker-Content-Digest", what)
			rw.Header().Set("Content-Length", fmt.Sprint(len(b)))
			_, _ = rw.Write(b) // a client that went away shows in the test
		default:
			s.blobs.Add(1)
			http.ServeContent(rw, q, "", time.Time{}, bytes.NewReader(b))
		}
	}))
	s.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(s.server.Close)
	s.name = fmt.Sprintf("registry.example.com:%d/some/job", s.server.Listener.Addr().(*net.TCPAddr).Port)
	return s
}

// registries is the owners' client, whose names lie on loopback and for which that is no forbidden place.
func (s *shelf) registries(rules []reach.Rule) provider.Registries {
	return fetch.New(fetch.Config{
		Policy: func([]netip.Prefix) *reach.Policy { return &reach.Policy{Rules: rules} },
		Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
		Roots: s.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
	})
}

// images is the renter's opener.
func (s *shelf) images() image.Opener {
	tr := s.server.Client().Transport.(*http.Transport).Clone()
	tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.server.Listener.Addr().String())
	}
	return image.Opener{Transport: tr}
}

// TestPull runs an image by its name in a registry, which the owner pulls from; a second job of it needs no layer any more; and with the
// daemon's own rules the same registry, on loopback, is out of reach.
func TestPull(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	s := newShelf(t, containerdtest.JobImage(t).Archive(t))
	host, _, _ := strings.Cut(s.name, "/")
	m.images, m.pulls, m.registries = s.images(), []string{host}, s.registries(nil)
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	req := r.order(m, "say", "hello")
	req.Image = renter.FromRegistry + s.name + ":1"
	got, err := r.submit(req)
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := r.output(got.id); !strings.Contains(out, "hello") {
		t.Errorf("the job printed %q", out)
	}
	sameMoney(t, o, r, got.id)
	before := s.blobs.Load()
	req = r.order(m, "say", "again")
	req.Image = renter.FromRegistry + s.name + ":1"
	if _, err = r.submit(req); err != nil {
		t.Fatal(err)
	}
	if n := s.blobs.Load() - before; n != 1 { // the renter reads the config
		t.Errorf("the second job made %d requests for blobs", n)
	}
	req = r.order(m, "say", "never")
	req.Image = renter.FromRegistry + "other.example.com/some/job:1"
	if _, err := r.submit(req); err == nil || !strings.Contains(err.Error(), "pulls from other.example.com") {
		t.Errorf("of a registry that the owner does not name: %v", err)
	}
}

// TestPullDenied has an owner whose client judges as the daemon's does: the lease ends, unpaid.
func TestPullDenied(t *testing.T) {
	t.Parallel()
	m := newFair(t)
	s := newShelf(t, containerdtest.JobImage(t).Archive(t))
	host, _, _ := strings.Cut(s.name, "/")
	m.images, m.pulls, m.registries = s.images(), []string{host}, s.registries(reach.Rules())
	r := m.tenant("renter")
	o := m.owner("owner", r.account())
	r.meet(o.party)
	r.sees(1)
	req := r.order(m, "say", "hello")
	req.Image = renter.FromRegistry + s.name + ":1"
	got, err := r.submit(req)
	if got.last.Job == nil || got.last.Job.Reason != string(reason.PullFailed) || strings.Contains(fmt.Sprint(got.last.Error, err), "127.0.0") {
		t.Errorf("%+v, %v", got.last, err)
	}
	if sum := sameMoney(t, o, r, got.id); sum.Amount != "0" {
		t.Errorf("charged %v", sum.Amount)
	}
}
