package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/reach"
)

// The tests' servers have httptest's certificate, which is for example.com and the names below it.
const (
	outer = "registry.example.com" // at 127.0.0.1
	inner = "inner.example.com"    // at 127.0.0.2, as what no job may reach
)

// world is a client whose names lie on loopback, and may be reached but for 127.0.0.2.
type world struct {
	t      *testing.T
	server *httptest.Server
	client *Client
	names  map[string]string
	rules  []reach.Rule
}

func newWorld(t *testing.T, h http.Handler) *world {
	t.Helper()
	w := &world{
		t: t, server: httptest.NewTLSServer(h), names: map[string]string{outer: "127.0.0.1", inner: "127.0.0.2"},
		rules: []reach.Rule{{Name: reach.Private, Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}},
	}
	w.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(w.server.Close)
	w.client = New(Config{
		Policy: func([]netip.Prefix) *reach.Policy { return &reach.Policy{Rules: w.rules} }, // loopback is no more than a rule, which these tests leave out
		Lookup: func(_ context.Context, _, host string) ([]netip.Addr, error) {
			a, err := netip.ParseAddr(w.names[host])
			return []netip.Addr{a}, err
		},
		Roots: w.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs,
	})
	return w
}

func portOf(s *httptest.Server) string {
	return fmt.Sprint(s.Listener.Addr().(*net.TCPAddr).Port)
}

func (w *world) open(path string) *repository {
	w.t.Helper()
	r, err := w.client.Open(outer+":"+portOf(w.server)+"/"+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.(*repository)
}

// fetch gives a whole part.
func (w *world) fetch(p provider.Part) ([]byte, error) {
	w.t.Helper()
	return w.fetchFrom(w.open("a/b"), p)
}

func (w *world) fetchFrom(r *repository, p provider.Part) ([]byte, error) {
	w.t.Helper()
	rc, err := r.Fetch(w.t.Context(), p)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(rc)
}

// below starts a server at 127.0.0.2 that counts its requests.
func (w *world) below() (port string, hits *atomic.Int64) {
	w.t.Helper()
	hits = &atomic.Int64{}
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		w.t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		fmt.Fprint(rw, `{"token":"t"}`)
	}))
	s.Listener.Close()
	s.Listener = l
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	w.t.Cleanup(s.Close)
	return portOf(s), hits
}

func digestOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// TestRegistry pulls an image part by part from a registry that wants a token.
func TestRegistry(t *testing.T) {
	var w *world
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var tokens atomic.Int64
	w = newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Path == "/token":
			if q.URL.Query().Get("scope") != "repository:a/b:pull" || q.URL.Query().Get("service") != "the, service" {
				t.Errorf("asked for a token with %v", q.URL.Query())
			}
			tokens.Add(1)
			fmt.Fprint(rw, `{"access_token":"secret"}`)
		case q.Method == http.MethodGet && q.Header.Get("X-Push") == "" && q.Header.Get("Authorization") != "Bearer secret":
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s:%s/token",service="the, service",scope="x"`, outer, portOf(w.server)))
			rw.WriteHeader(http.StatusUnauthorized)
		default:
			reg.ServeHTTP(rw, q)
		}
	}))
	img, err := random.Image(1<<16, 3)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference("127.0.0.1:" + portOf(w.server) + "/a/b:tag")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithTransport(pushing{w.server.Client().Transport})); err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	d, _ := img.Digest()
	r := w.open("a/b")
	raw, err := w.fetchFrom(r, provider.Part{Digest: d.String(), Manifest: true, Size: 4 << 20})
	if err != nil || digestOf(raw) != d.String() {
		t.Fatalf("manifest: %d bytes, %v", len(raw), err)
	}
	for _, l := range append(m.Layers, m.Config) {
		got, err := w.fetchFrom(r, provider.Part{Digest: l.Digest.String(), Size: l.Size})
		if err != nil || digestOf(got) != l.Digest.String() {
			t.Errorf("%s: %d bytes, %v", l.Digest, len(got), err)
		}
	}
	rest, err := w.fetchFrom(r, provider.Part{Digest: m.Layers[0].Digest.String(), Size: m.Layers[0].Size, Offset: 100})
	if err != nil || int64(len(rest)) != m.Layers[0].Size-100 {
		t.Errorf("what follows byte 100: %d bytes, %v", len(rest), err)
	}
	if tokens.Load() != 1 {
		t.Errorf("%d tokens for one pull", tokens.Load())
	}
	if _, err := w.fetchFrom(r, provider.Part{Digest: digestOf(nil), Size: 5}); !errors.Is(err, provider.ErrRegistry) {
		t.Errorf("what is not there: %v", err)
	}
}

// pushing marks the requests of the test's own push.
type pushing struct{ http.RoundTripper }

func (p pushing) RoundTrip(q *http.Request) (*http.Response, error) {
	q.Header.Set("X-Push", "1")
	return p.RoundTripper.RoundTrip(q)
}

// TestDenied has an address of every rule behind the registry's name: refused by it before anything is dialled, and by none when it and what
// stands behind it are left out.
func TestDenied(t *testing.T) {
	for _, c := range []struct {
		ip, rule string
		other    []string // what would deny it still
	}{
		{"127.0.0.1", reach.Loopback, nil},
		{"::1", reach.Loopback, []string{reach.Embedded, reach.Special}},
		{"::ffff:127.0.0.1", reach.Loopback, nil},
		{"10.0.0.1", reach.Private, nil},
		{"172.16.0.1", reach.Private, nil},
		{"192.168.1.1", reach.Private, nil},
		{"::ffff:192.168.1.1", reach.Private, nil},
		{"fd00:ec2::254", reach.Local, []string{reach.Special}},
		{"100.64.0.1", reach.Shared, nil},
		{"169.254.169.254", reach.LinkLocal, nil},
		{"fe80::1", reach.LinkLocal, []string{reach.Special}},
		{"168.63.129.16", reach.Metadata, nil},
		{"224.0.0.1", reach.Multicast, nil},
		{"ff02::1", reach.Multicast, []string{reach.Special}},
		{"64:ff9b::a00:1", reach.Embedded, []string{reach.Special}},
		{"2002:a00:1::1", reach.Embedded, nil},
		{"2001:0:a00:1::1", reach.Embedded, nil},
		{"::10.0.0.1", reach.Embedded, []string{reach.Special}},
		{"0.0.0.0", reach.Special, nil},
		{"255.255.255.255", reach.Special, nil},
		{"198.18.0.1", reach.Special, nil},
		{"2001:db8::1", reach.Special, nil},
		{"8.8.4.4", reach.Owner, nil},
	} {
		denied := netip.MustParsePrefix("8.8.4.0/24")
		conf := func(left []string, cancel func()) Config {
			return Config{
				Policy: func(deny []netip.Prefix) *reach.Policy {
					p := reach.New(deny)
					p.Host = nil // the machine's own networks: TestOwnNetwork
					p.Rules = slices.DeleteFunc(p.Rules, func(r reach.Rule) bool { return slices.Contains(left, r.Name) })
					return p
				},
				Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
					cancel() // what would be dialled never is
					return []netip.Addr{netip.MustParseAddr(c.ip)}, nil
				},
			}
		}
		r, err := New(conf(nil, func() {})).Open("registry.example.com/a/b", []string{denied.String()})
		if err != nil {
			t.Fatal(err)
		}
		var refused *reach.Refused
		_, err = r.Fetch(t.Context(), provider.Part{Digest: digestOf(nil), Size: 1})
		if !errors.Is(err, provider.ErrDenied) || !errors.As(err, &refused) || refused.Rule != c.rule {
			t.Errorf("%s: %v, want %s", c.ip, err, c.rule)
		}
		ctx, cancel := context.WithCancel(t.Context())
		open, err := New(conf(append(c.other, c.rule), cancel)).Open("registry.example.com/a/b", []string{denied.String()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = open.(*repository).dial(ctx, "tcp", "registry.example.com:443")
		if err == nil || errors.As(err, &refused) && !netip.MustParseAddr(c.ip).IsUnspecified() {
			t.Errorf("%s without its rules: %v", c.ip, err)
		}
		cancel()
	}
}

// TestOwnNetwork denies the machine's own addresses with the policy that the daemon has.
func TestOwnNetwork(t *testing.T) {
	own, err := (&reach.Host{}).Networks()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range own {
		c := New(Config{Policy: reach.New, Lookup: func(context.Context, string, string) ([]netip.Addr, error) { return []netip.Addr{p.Addr()}, nil }})
		r, err := c.Open("registry.example.com/debian", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Fetch(t.Context(), provider.Part{Digest: digestOf(nil), Size: 1}); !errors.Is(err, provider.ErrDenied) {
			t.Errorf("%s: %v", p.Addr(), err)
		}
	}
}

// TestLeadsAway has a registry that leads to 127.0.0.2 by each way that it can: denied and not asked, until the rule is left out.
func TestLeadsAway(t *testing.T) {
	for way, lead := range map[string]func(rw http.ResponseWriter, url string){
		"redirect": func(rw http.ResponseWriter, url string) {
			rw.Header().Set("Location", url)
			rw.WriteHeader(http.StatusTemporaryRedirect)
		},
		"realm": func(rw http.ResponseWriter, url string) {
			rw.Header().Set("WWW-Authenticate", `Bearer realm="`+url+`"`)
			rw.WriteHeader(http.StatusUnauthorized)
		},
	} {
		for _, host := range []string{inner, "127.0.0.2"} {
			var url string
			w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { lead(rw, url) }))
			port, hits := w.below()
			url = "https://" + net.JoinHostPort(host, port) + "/x"
			p := provider.Part{Digest: digestOf(nil), Size: 100}
			if _, err := w.fetch(p); !errors.Is(err, provider.ErrDenied) || hits.Load() != 0 {
				t.Errorf("%s to %s: %v, %d requests", way, host, err, hits.Load())
			}
			if w.rules = nil; host == inner { // the certificate has no such address
				_, _ = w.fetch(p)
				if hits.Load() == 0 {
					t.Errorf("%s to %s without the rule: not asked", way, host)
				}
			}
			url = "http://" + net.JoinHostPort(host, port) + "/x"
			if _, err := w.fetch(p); !errors.Is(err, provider.ErrDenied) {
				t.Errorf("%s to http: %v", way, err)
			}
			url = "https://user:word@" + net.JoinHostPort(host, port) + "/x"
			if _, err := w.fetch(p); !errors.Is(err, provider.ErrDenied) {
				t.Errorf("%s with a login: %v", way, err)
			}
		}
	}
}

// TestRebinding has a name whose address changes after it was judged: what was judged is dialled, and each connection is judged anew.
func TestRebinding(t *testing.T) {
	body := []byte("layer")
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.Write(body) }))
	lookups := 0
	w.client.conf.Lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		lookups++
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, byte(lookups)})}, nil // 127.0.0.1 at first, what is denied then
	}
	r := w.open("a/b")
	p := provider.Part{Digest: digestOf(body), Size: int64(len(body))}
	if got, err := w.fetchFrom(r, p); err != nil || !bytes.Equal(got, body) || lookups != 1 {
		t.Fatalf("%q, %v after %d lookups", got, err, lookups)
	}
	if _, err := w.fetchFrom(r, p); !errors.Is(err, provider.ErrDenied) || lookups != 2 {
		t.Fatalf("rebound: %v after %d lookups", err, lookups)
	}
}

// TestSizes has registries that send another size than they should: refused before the first byte where they say so, and at the last that
// may come where they do not.
func TestSizes(t *testing.T) {
	body := []byte("0123456789")
	var answer func(rw http.ResponseWriter, q *http.Request)
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) { answer(rw, q) }))
	whole := func(rw http.ResponseWriter, _ *http.Request) { rw.Write(body) }
	chunked := func(rw http.ResponseWriter, _ *http.Request) {
		rw.Write(body[:5])
		rw.(http.Flusher).Flush()
		rw.Write(body[5:])
	}
	ranged := func(at string) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, q *http.Request) {
			if !strings.HasPrefix(q.Header.Get("Range"), "bytes=4-") {
				t.Errorf("asked for %q", q.Header.Get("Range"))
			}
			rw.Header().Set("Content-Range", at)
			rw.WriteHeader(http.StatusPartialContent)
			rw.Write(body[4:])
		}
	}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		part   provider.Part
		want   string
		err    error
	}{
		"whole":                  {whole, provider.Part{Size: 10}, "0123456789", nil},
		"says more":              {whole, provider.Part{Size: 9}, "", provider.ErrRegistry},
		"says less":              {whole, provider.Part{Size: 11}, "", provider.ErrRegistry},
		"a small manifest":       {whole, provider.Part{Size: 11, Manifest: true}, "0123456789", nil},
		"a large manifest":       {whole, provider.Part{Size: 9, Manifest: true}, "", provider.ErrRegistry},
		"chunks":                 {chunked, provider.Part{Size: 10}, "0123456789", nil},
		"more chunks":            {chunked, provider.Part{Size: 9}, "", provider.ErrRegistry},
		"the rest":               {ranged("bytes 4-9/10"), provider.Part{Size: 10, Offset: 4}, "456789", nil},
		"the rest without range": {whole, provider.Part{Size: 10, Offset: 4}, "456789", nil},
		"another rest":           {ranged("bytes 5-10/11"), provider.Part{Size: 10, Offset: 4}, "", provider.ErrRegistry},
		"a rest of more":         {ranged("bytes 4-9/10"), provider.Part{Size: 9, Offset: 4}, "", provider.ErrRegistry},
		"nothing":                {http.NotFound, provider.Part{Size: 10}, "", provider.ErrRegistry},
	} {
		answer, c.part.Digest = c.answer, digestOf(body)
		got, err := w.fetch(c.part)
		if !errors.Is(err, c.err) || err == nil && string(got) != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	answer = whole
	if r, err := w.open("a/b").Fetch(t.Context(), provider.Part{Digest: digestOf(body), Size: 9}); !errors.Is(err, provider.ErrRegistry) {
		t.Errorf("what says that it is too large: %v, %v before its first byte", r, err)
	}
	answer = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusTooManyRequests) }
	if _, err := w.fetch(provider.Part{Digest: digestOf(body), Size: 10}); err == nil || errors.Is(err, provider.ErrRegistry) || errors.Is(err, provider.ErrDenied) {
		t.Errorf("a busy registry: %v", err)
	}
}

// TestStall gives up on a registry that stops sending.
func TestStall(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		rw.Header().Set("Content-Length", "10")
		rw.Write([]byte("01234"))
		rw.(http.Flusher).Flush()
		<-q.Context().Done() // until the client is gone
	}))
	r := w.open("a/b")
	r.stall = 100 * time.Millisecond
	if got, err := w.fetchFrom(r, provider.Part{Digest: digestOf(nil), Size: 10}); err == nil || errors.Is(err, provider.ErrRegistry) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestDirect takes no proxy from the environment, follows no circle of redirects, and knows the registry by its name.
func TestDirect(t *testing.T) {
	var circle string
	var asked atomic.Int64
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, q *http.Request) {
		if asked.Add(1); circle != "" {
			http.Redirect(rw, q, circle, http.StatusTemporaryRedirect)
			return
		}
		rw.Write([]byte("x"))
	}))
	p := provider.Part{Digest: digestOf(nil), Size: 1}
	if got, err := w.fetch(p); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
	if w.open("a/b").http.Transport.(secure).next.Proxy != nil { // net/http reads the environment once, whatever a test sets later
		t.Error("it goes over a proxy")
	}
	circle = "/again"
	if _, err := w.fetch(p); !errors.Is(err, provider.ErrRegistry) || asked.Load() != 1+maxRedirects+1 {
		t.Errorf("a circle: %v after %d requests", err, asked.Load())
	}
	other := "registry.example.org"
	w.names[other] = "127.0.0.1"
	r, err := w.client.Open(other+":"+portOf(w.server)+"/a/b", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Fetch(t.Context(), p); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of another name: %v", err)
	}
	for _, bad := range []string{"", "registry.example.com", "registry.example.com/", "/a"} {
		if _, err := w.client.Open(bad, nil); !errors.Is(err, provider.ErrRequest) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
