package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
)

func (a *app) ipCommand() *cobra.Command {
	group := &cobra.Command{Use: "ip", Short: "Show the identities of addresses"}
	list := a.simple("list", "List the addresses and prefixes whose identity this node knows",
		func(ctx context.Context, c *agentclient.Client) error { return a.ips(ctx, c, "") })
	get := a.withOutput(&cobra.Command{
		Use: "get ADDRESS|PREFIX", Short: "Show one address, or all entries inside a prefix", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				return hinted(a.ips(ctx, c, args[0]), "entry inside "+args[0], "waggle bpf ipcache get shows the one that contains it, waggle ip list")
			})
		},
	})
	group.AddCommand(list, get)
	return group
}

func (a *app) ips(ctx context.Context, c *agentclient.Client, cidr string) error {
	entries, err := c.IPs(ctx, cidr)
	if err != nil {
		return err
	}
	return a.show(entries, func(w io.Writer) {
		rows := make([][]string, 0, len(entries))
		for _, e := range entries {
			rows = append(rows, []string{e.CIDR, strconv.FormatInt(e.Identity, 10), e.Metadata.Source, cmp.Or(e.HostIP, "-"), podName(e.Metadata)})
		}
		table(w, []string{"IP", "IDENTITY", "SOURCE", "HOST", "POD"}, rows)
	})
}

func podName(m models.IPListEntryMetadata) string {
	if m.Name == "" {
		return "-"
	}
	return m.Namespace + "/" + m.Name
}

func (a *app) bpfIPCacheCommand() *cobra.Command {
	group := &cobra.Command{Use: "ipcache", Short: "Show the identities of addresses in the kernel"}
	list := a.simple("list", "List the entries of the maps ipcache and ipcache_prefixes",
		func(ctx context.Context, c *agentclient.Client) error {
			entries, err := ipcacheEntries(ctx, c)
			if err != nil {
				return err
			}
			return a.showIPCache(entries)
		})
	get := a.withOutput(&cobra.Command{
		Use: "get ADDRESS", Short: "Show the entry with the longest prefix that contains an address", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			addr, err := netip.ParseAddr(args[0])
			if err != nil {
				return usage{fmt.Errorf("%q: want an address such as 10.0.0.7 or fd00::7", args[0])}
			}
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				entries, err := ipcacheEntries(ctx, c)
				if err != nil {
					return err
				}
				best := longest(entries, addr)
				if best == nil {
					return fmt.Errorf("no entry contains %s: the kernel assigns it the identity world", addr)
				}
				return a.showIPCache([]ipcacheEntry{*best})
			})
		},
	})
	group.AddCommand(list, get)
	return group
}

// ipcacheEntry is an entry of the ipcache maps in the output of bpf ipcache.
type ipcacheEntry struct {
	Prefix   netip.Prefix `json:"prefix"`
	Identity uint32       `json:"identity"`
	Node     uint16       `json:"node,omitempty"` // id of the remote node that owns the prefix
}

func (a *app) showIPCache(entries []ipcacheEntry) error {
	return a.show(entries, func(w io.Writer) {
		rows := make([][]string, 0, len(entries))
		for _, e := range entries {
			rows = append(rows, []string{e.Prefix.String(), strconv.FormatUint(uint64(e.Identity), 10), nodeOrDash(e.Node)})
		}
		table(w, []string{"PREFIX", "IDENTITY", "NODE ID"}, rows)
	})
}

// ipcacheEntries returns the entries of both maps, sorted.
func ipcacheEntries(ctx context.Context, c *agentclient.Client) ([]ipcacheEntry, error) {
	entries := []ipcacheEntry{}
	for _, name := range []string{"ipcache", "ipcache_prefixes"} {
		m, err := c.Map(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, e := range m.Cache {
			entry, err := readIPCacheEntry(e.Key, e.Value)
			if err != nil {
				return nil, fmt.Errorf("entry %q of map %s: %w", e.Key, name, err)
			}
			entries = append(entries, entry)
		}
	}
	slices.SortFunc(entries, func(x, y ipcacheEntry) int { return x.Prefix.Compare(y.Prefix) })
	return entries, nil
}

// familyBits is the number of key bits before the address.
const familyBits = 32

// readIPCacheEntry parses the agent's text: "prefixlen=56 family=4 addr=10.0.0.0" and "identity=300 node=2 flags=0".
func readIPCacheEntry(key, value string) (e ipcacheEntry, err error) {
	fields := map[string]string{}
	for _, field := range strings.Fields(key + " " + value) {
		name, text, _ := strings.Cut(field, "=")
		fields[name] = text
	}
	addr, err := netip.ParseAddr(fields["addr"])
	if err != nil {
		return e, err
	}
	bits := addr.BitLen()
	if text, found := fields["prefixlen"]; found {
		if bits, err = strconv.Atoi(text); err != nil {
			return e, err
		}
		bits -= familyBits
	}
	if e.Prefix, err = addr.Prefix(bits); err != nil {
		return e, err
	}
	number, err := strconv.ParseUint(fields["identity"], 10, 32)
	if err != nil {
		return e, err
	}
	e.Identity = uint32(number)
	number, err = strconv.ParseUint(fields["node"], 10, 16)
	e.Node = uint16(number)
	return e, err
}

func nodeOrDash(id uint16) string {
	if id == 0 {
		return "-"
	}
	return strconv.Itoa(int(id))
}

// longest returns the entry with the longest matching prefix, as in the datapath; nil if there is none.
func longest(entries []ipcacheEntry, addr netip.Addr) (best *ipcacheEntry) {
	for i, e := range entries {
		if e.Prefix.Contains(addr) && (best == nil || e.Prefix.Bits() > best.Prefix.Bits()) {
			best = &entries[i]
		}
	}
	return best
}
