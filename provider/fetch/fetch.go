// Package fetch is the one HTTP client that works at a stranger's bidding: it gets parts of images from registries over the owner's network.
// Every connection, to the registry, to the realm of its tokens or to where a redirect leads, goes over TLS to an address that was looked up
// here, judged as a job's connections are (provider/reach) and dialled as it was judged. It knows no lease, no settings and no container.
package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gpufair/gpufair/provider"
	"github.com/gpufair/gpufair/provider/reach"
)

// Limits of what a registry may make of a request.
const (
	maxRedirects = 5        // a registry redirects once, to its store
	maxAddrs     = 4        // of one name that are tried
	maxToken     = 64 << 10 // bytes of the answer with a token: some KiB
	maxHeader    = 64 << 10 // bytes of a response's headers
	stallIn      = 30 * time.Second
)

// Config is how addresses are judged and found.
type Config struct {
	// Policy judges addresses, given what the owner denies besides: reach.New.
	Policy func(deny []netip.Prefix) *reach.Policy
	// Lookup is net.Resolver.LookupNetIP; nil: the one in Go.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// Roots are the authorities that vouch for servers; nil: the system's.
	Roots *x509.CertPool
}

// Client fulfils provider.Registries. Safe for concurrent use.
type Client struct{ conf Config }

var _ provider.Registries = (*Client)(nil)

// New makes a client; it connects to nothing.
func New(c Config) *Client { return &Client{c} }

// Open implements provider.Registries.
func (c *Client) Open(name string, deny []string) (provider.Repository, error) {
	host, path, ok := strings.Cut(name, "/")
	if !ok || host == "" || path == "" {
		return nil, fmt.Errorf("repository %.80q: %w: want registry/name", name, provider.ErrRequest)
	}
	if host == hub {
		host = hubAPI
	}
	nets := make([]netip.Prefix, len(deny))
	for i, d := range deny {
		var err error
		if nets[i], err = netip.ParsePrefix(d); err != nil {
			return nil, fmt.Errorf("network %.80q: %w", d, provider.ErrRequest)
		}
	}
	r := &repository{host: host, path: path, stall: stallIn, names: reach.Resolver{Policy: c.conf.Policy(nets), Lookup: c.conf.Lookup}}
	r.http = &http.Client{
		Transport: secure{&http.Transport{
			Proxy: nil, // of the environment: it would dial for us what it likes
			// A connection per request, so that none outlives the judgement of its address.
			DialContext: r.dial, DisableKeepAlives: true,
			DisableCompression: true, MaxResponseHeaderBytes: maxHeader, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: stallIn,
			TLSClientConfig: &tls.Config{RootCAs: c.conf.Roots, MinVersion: tls.VersionTLS12},
		}},
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("%w: it redirects more than %d times", provider.ErrRegistry, maxRedirects)
			}
			return nil
		},
	}
	return r, nil
}

// secure lets only https pass, redirects and realms too.
type secure struct{ next *http.Transport }

func (s secure) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Scheme != "https" || q.URL.User != nil {
		return nil, fmt.Errorf("%w: it leads to a URL that is not plain https", provider.ErrDenied)
	}
	return s.next.RoundTrip(q)
}

// repository is one repository for one pull. One goroutine uses it.
type repository struct {
	host, path string
	names      reach.Resolver
	http       *http.Client
	stall      time.Duration // without a byte: given up
	token      string        // of the registry, for anybody; empty: none was asked for yet
}

// dial looks a name up, once, and connects to an address that may be reached.
func (r *repository) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", digits, err)
	}
	ips, err := r.names.Allowed(ctx, "ip", host, uint16(port))
	if err != nil {
		return nil, err
	}
	var last error
	for _, ip := range ips[:min(len(ips), maxAddrs)] {
		c, err := reach.Dial(ctx, r.names.Policy, network, netip.AddrPortFrom(ip, uint16(port)))
		if err == nil {
			return c, nil
		}
		last = err
	}
	return nil, last
}

// Fetch implements provider.Repository.
func (r *repository) Fetch(ctx context.Context, p provider.Part) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	resp, err := r.get(ctx, p)
	if err == nil {
		var body io.ReadCloser
		if body, err = r.checked(resp, p, cancel); err == nil {
			return body, nil
		}
		resp.Body.Close()
	}
	cancel()
	var refused *reach.Refused
	if errors.As(err, &refused) {
		err = fmt.Errorf("%w: %w", provider.ErrDenied, err)
	}
	return nil, fmt.Errorf("fetch %s of %s/%s: %w", p.Digest, r.host, r.path, err)
}

// manifests are the kinds of manifests that an image may have.
const manifests = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// get asks for a part, with a token if the registry wants one.
func (r *repository) get(ctx context.Context, p provider.Part) (*http.Response, error) {
	kind, accept := "blobs", "application/octet-stream, */*"
	if p.Manifest {
		kind, accept = "manifests", manifests
	}
	for asked := false; ; asked = true {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.host+"/v2/"+r.path+"/"+kind+"/"+p.Digest, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", provider.ErrRequest, err)
		}
		q.Header.Set("Accept", accept)
		q.Header.Set("User-Agent", "gpufair")
		if p.Offset > 0 {
			q.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", p.Offset, p.Size-1))
		}
		if r.token != "" {
			q.Header.Set("Authorization", "Bearer "+r.token)
		}
		resp, err := r.http.Do(q)
		if err != nil || resp.StatusCode != http.StatusUnauthorized || asked {
			return resp, err
		}
		resp.Body.Close()
		if err := r.authorize(ctx, resp.Header.Get("WWW-Authenticate")); err != nil {
			return nil, err
		}
	}
}

// checked is a response's body, of no more bytes than the part has. What says another size is refused before its first byte.
func (r *repository) checked(resp *http.Response, p provider.Part, cancel context.CancelFunc) (io.ReadCloser, error) {
	size, skip := p.Size-p.Offset, int64(0)
	switch code := resp.StatusCode; {
	case code == http.StatusPartialContent:
		var from int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &from); err != nil || from != p.Offset {
			return nil, fmt.Errorf("%w: asked for what follows byte %d, it answers with %.80q", provider.ErrRegistry, p.Offset, resp.Header.Get("Content-Range"))
		}
	case code == http.StatusOK:
		size, skip = p.Size, p.Offset // it knows no ranges
	case code == http.StatusTooManyRequests || code >= 500:
		return nil, fmt.Errorf("it answers %s", resp.Status)
	default:
		return nil, fmt.Errorf("%w: it answers %s to who has no account there", provider.ErrRegistry, resp.Status)
	}
	if n := resp.ContentLength; n > size || n >= 0 && n < size && !p.Manifest {
		return nil, fmt.Errorf("%w: it sends %d bytes, %d were to come", provider.ErrRegistry, n, size)
	}
	b := &body{r: resp.Body, left: size, cancel: cancel, within: r.stall, stall: time.AfterFunc(r.stall, cancel)}
	if _, err := io.CopyN(io.Discard, b, skip); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// body reads at most so many bytes, and gives up on a server that sends nothing for some time.
type body struct {
	r      io.ReadCloser
	left   int64
	cancel context.CancelFunc
	within time.Duration
	stall  *time.Timer
}

func (b *body) Read(p []byte) (int, error) {
	b.stall.Reset(b.within)
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: it sends more bytes than were to come", provider.ErrRegistry)
	}
	return n, err
}

func (b *body) Close() error {
	b.stall.Stop()
	b.cancel()
	return b.r.Close()
}
