package fetch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gpufair/gpufair/provider"
)

// authorize gets the token that a registry gives to anybody (distribution spec, token authentication). Who the realm is the registry says,
// so that it is judged like the registry itself.
func (r *repository) authorize(ctx context.Context, challenge string) error {
	params, ok := bearer(challenge)
	realm, err := url.Parse(params["realm"])
	if !ok || err != nil || realm.Host == "" {
		return fmt.Errorf("%w: it wants a kind of login that nobody has here", provider.ErrRegistry)
	}
	values := realm.Query()
	values.Set("scope", "repository:"+r.path+":pull")
	if params["service"] != "" {
		values.Set("service", params["service"])
	}
	realm.RawQuery = values.Encode()
	ctx, cancel := context.WithTimeout(ctx, stallIn)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	if err != nil {
		return fmt.Errorf("%w: realm: %w", provider.ErrRegistry, err)
	}
	q.Header.Set("User-Agent", "gpufair")
	resp, err := r.http.Do(q)
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests || code >= 500:
		return fmt.Errorf("token: it answers %s", resp.Status)
	case code != http.StatusOK:
		return fmt.Errorf("%w: token: it answers %s to who has no account there", provider.ErrRegistry, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxToken+1))
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	var answer struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if len(raw) > maxToken || json.Unmarshal(raw, &answer) != nil || answer.Token+answer.Access == "" {
		return fmt.Errorf("%w: its realm gives no token", provider.ErrRegistry)
	}
	if r.token = answer.Token; r.token == "" {
		r.token = answer.Access
	}
	return nil
}

// bearer reads the parameters of a challenge: Bearer realm="https://…",service="…".
func bearer(challenge string) (map[string]string, bool) {
	scheme, rest, _ := strings.Cut(challenge, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return nil, false
	}
	params := map[string]string{}
	for rest != "" {
		var key, value string
		var quoted bool
		key, rest, _ = strings.Cut(rest, "=")
		if rest, quoted = strings.CutPrefix(rest, `"`); quoted {
			value, rest, _ = strings.Cut(rest, `"`)
			_, rest, _ = strings.Cut(rest, ",")
		} else {
			value, rest, _ = strings.Cut(rest, ",")
		}
		params[strings.ToLower(strings.TrimSpace(key))] = value
	}
	return params, true
}
