package kubeapi

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ParseServers parses addresses of API servers, which may also be separated by commas. An address without a scheme means http, for compatibility. All
// must have the same scheme and path, because they are interchangeable. Duplicates are dropped.
func ParseServers(addresses []string) ([]string, error) {
	var out []string
	var first *url.URL
	for address := range strings.SplitSeq(strings.Join(addresses, ","), ",") {
		if address = strings.TrimSpace(address); address == "" {
			continue
		}
		parsed, err := parseServer(address)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", address, err)
		}
		if first == nil {
			first = parsed
		}
		if parsed.Scheme != first.Scheme || parsed.Path != first.Path {
			return nil, fmt.Errorf("%q: scheme and path must be the same as in %q, because each address can replace the other", address, first)
		}
		if !slices.Contains(out, parsed.String()) {
			out = append(out, parsed.String())
		}
	}
	return out, nil
}

func parseServer(address string) (*url.URL, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	parsed, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.New("not an address such as https://10.0.0.1:6443")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return nil, fmt.Errorf("the scheme is http or https, not %q", parsed.Scheme)
	case parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" || parsed.ForceQuery:
		return nil, errors.New("only scheme, host, port and path are allowed")
	}
	if err := checkHost(parsed); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: parsed.Scheme, Host: parsed.Host, Path: strings.TrimRight(parsed.Path, "/")}, nil
}

func checkHost(parsed *url.URL) error {
	host, port := parsed.Hostname(), parsed.Port()
	switch {
	case host == "" || strings.ContainsAny(host, " \t%\"'<>"):
		return errors.New("the host is missing, want an address such as https://10.0.0.1:6443")
	case strings.Contains(host, ":") && net.ParseIP(host) == nil:
		return errors.New("not an IPv6 address")
	case port == "" && strings.HasSuffix(parsed.Host, ":"):
		return errors.New("the port is missing")
	case port == "":
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("the port is a number from 1 to 65535, not %q", port)
	}
	return nil
}
