package containerd

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/gpufair/gpufair/provider"
)

// LoggerVerb is the first argument of the logger program; the second is a provider.LogRequest as JSON, for provider/access.RunLogger.
const LoggerVerb = "job-log"

// loggerURI is what containerd's shim makes the logger's command line of: the query's one key and value are its two arguments.
func loggerURI(program string, req provider.LogRequest) (*url.URL, error) {
	if !filepath.IsAbs(req.Path) {
		return nil, fmt.Errorf("log path %q is not absolute: %w", req.Path, provider.ErrRequest)
	}
	if req.MaxBytes <= 0 {
		return nil, fmt.Errorf("log cap of %d bytes: %w", req.MaxBytes, provider.ErrRequest)
	}
	arg, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "binary", Path: program, RawQuery: url.Values{LoggerVerb: {string(arg)}}.Encode()}, nil
}
