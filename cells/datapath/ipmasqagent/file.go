package ipmasqagent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/tables/masquerade"
)

// defaults are the excluded prefixes without a configuration: the private and reserved prefixes of the ip-masq-agent's default.
var defaults = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
	"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"}

const (
	linkLocalIPv4 = "169.254.0.0/16"
	linkLocalIPv6 = "fe80::/10"
)

// maxFile is the maximum size of the file, in bytes. The map's capacity of 16384 prefixes needs less.
const maxFile = 1 << 20

// configuration is the content of the file, in YAML or JSON.
type configuration struct {
	NonMasqueradeCIDRs []string `json:"nonMasqueradeCIDRs"`
	MasqLinkLocal      bool     `json:"masqLinkLocal"`
	MasqLinkLocalIPv6  bool     `json:"masqLinkLocalIPv6"`
	ResyncInterval     any      `json:"resyncInterval"` // accepted without an effect
}

// read returns the rows of the file. found is false if the file does not exist; the rows are then the defaults.
func read(path string) (rows map[netip.Prefix]masquerade.IPMasq, found bool, err error) {
	content, err := contentOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		rows, err = parse(nil)
		return rows, false, err
	}
	if err != nil {
		return nil, true, fmt.Errorf("read the configuration of the ip-masq-agent: %w", err)
	}
	if rows, err = parse(content); err != nil {
		return nil, true, fmt.Errorf("configuration of the ip-masq-agent %s: %w", path, err)
	}
	return rows, true, nil
}

func contentOf(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(content) > maxFile {
		err = fmt.Errorf("read %s: it has more than %d bytes", path, maxFile)
	}
	return content, err
}

// parse returns the rows of a file's content. Without content they are the defaults.
func parse(content []byte) (map[netip.Prefix]masquerade.IPMasq, error) {
	var c configuration
	if err := yaml.UnmarshalStrict(content, &c); err != nil {
		return nil, fmt.Errorf("want nonMasqueradeCIDRs, masqLinkLocal and masqLinkLocalIPv6 in YAML or JSON: %w", err)
	}
	rows := map[netip.Prefix]masquerade.IPMasq{}
	list, from := c.NonMasqueradeCIDRs, masquerade.FromFile
	if document := map[string]any{}; yaml.Unmarshal(content, &document) != nil || len(document) == 0 {
		list, from = defaults, masquerade.FromDefault
	}
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("nonMasqueradeCIDRs: %.100q: want a prefix such as 10.0.0.0/8", text)
		}
		rows[p.Masked()] = masquerade.IPMasq{Prefix: p.Masked(), From: from}
	}
	for _, l := range []struct {
		masqueraded bool
		prefix      string
	}{{c.MasqLinkLocal, linkLocalIPv4}, {c.MasqLinkLocalIPv6, linkLocalIPv6}} {
		p := netip.MustParsePrefix(l.prefix)
		if _, there := rows[p]; !there && !l.masqueraded {
			rows[p] = masquerade.IPMasq{Prefix: p, From: masquerade.FromLinkLocal}
		}
	}
	return rows, nil
}
