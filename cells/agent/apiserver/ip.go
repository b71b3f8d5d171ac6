package apiserver

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// GetIP returns the addresses and prefixes with a known identity, including prefixes that policies name.
func (a *api) GetIP(w http.ResponseWriter, _ *http.Request, params models.GetIPParams) {
	var within netip.Prefix
	if params.CIDR != nil && *params.CIDR != "" {
		var err error
		if within, err = prefixOf(*params.CIDR); err != nil {
			fail(w, http.StatusBadRequest, fmt.Errorf("cidr %.50q: want an address or a prefix, as 10.0.0.7 or 10.0.0.0/8", *params.CIDR))
			return
		}
	}
	list := a.ips(a.DB.ReadTxn(), within)
	if len(list) == 0 {
		respond(w, http.StatusNotFound, nil)
		return
	}
	respond(w, http.StatusOK, list)
}

func prefixOf(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Prefix(addr.BitLen())
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// ips lists the entries inside a prefix; an invalid prefix matches everything.
func (a *api) ips(txn statedb.ReadTxn, within netip.Prefix) []models.IPListEntry {
	inside := func(p netip.Prefix) bool {
		return !within.IsValid() || p.Bits() >= within.Bits() && within.Contains(p.Addr())
	}
	pods := a.podsByAddr(txn)
	list := []models.IPListEntry{}
	for row := range a.Policy.IPCache.All(txn) {
		if !inside(row.Prefix()) {
			continue
		}
		entry := a.ipModel(txn, row)
		if row.Prefix().IsSingleIP() {
			entry.Metadata.Namespace, entry.Metadata.Name, _ = strings.Cut(pods[row.Prefix().Addr()], "/")
		}
		list = append(list, entry)
	}
	for row := range a.Policy.NamedCIDRs.All(txn) {
		if inside(row.Prefix) && !row.Retired {
			list = append(list, cidrModel(row))
		}
	}
	return list
}

// podsByAddr returns the pod of each address, on this node and on others.
func (a *api) podsByAddr(txn statedb.ReadTxn) map[netip.Addr]string {
	pods := map[netip.Addr]string{}
	for row := range a.Policy.CiliumEndpoints.All(txn) {
		for _, addr := range row.Addrs() {
			pods[addr] = row.Key()
		}
	}
	for ep := range a.Ready.Endpoints.All(txn) { // local endpoints take precedence over objects
		for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
			pods[addr] = ep.PodName()
		}
	}
	return pods
}

func (a *api) ipModel(txn statedb.ReadTxn, row *ipcache.Entry) models.IPListEntry {
	entry := models.IPListEntry{CIDR: row.Prefix().String(), Identity: int64(row.Identity),
		Metadata: models.IPListEntryMetadata{Source: row.Source.String()}}
	if node, _, found := a.Nodes.Get(txn, nodes.ByName(row.Node())); found {
		entry.HostIP = text(cmp.Or(node.Address(false), node.Address(true)))
	}
	return entry
}

func cidrModel(row *namedcidrs.CIDR) models.IPListEntry {
	return models.IPListEntry{CIDR: row.Prefix.String(), Identity: int64(row.Identity),
		Metadata: models.IPListEntryMetadata{Source: "policy"}}
}
