package apiserver

import (
	"net/http"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// GetNodeIds returns the ids and addresses of nodes, this node first. Its id is 0, as in Cilium. The id of a removed node has no addresses.
func (a *api) GetNodeIds(w http.ResponseWriter, _ *http.Request) {
	txn := a.DB.ReadTxn()
	local := models.NodeID{Ips: []string{}}
	for _, addr := range a.localNode(txn).Addresses {
		local.Ips = append(local.Ips, addr.String())
	}
	ids := []models.NodeID{local}
	for row := range a.NodeIDs.All(txn) {
		id := models.NodeID{ID: int64(row.ID), Ips: []string{}}
		if node, _, found := a.Nodes.Get(txn, nodes.ByName(row.Name)); found && row.Released.IsZero() {
			for _, addr := range node.Addresses {
				if text := addr.Addr.String(); !slices.Contains(id.Ips, text) {
					id.Ips = append(id.Ips, text)
				}
			}
		}
		ids = append(ids, id)
	}
	respond(w, http.StatusOK, ids)
}

// GetClusterNodes returns the nodes that were added, changed or removed since the last request of the client.
func (a *api) GetClusterNodes(w http.ResponseWriter, _ *http.Request, p models.GetClusterNodesParams) {
	txn := a.DB.ReadTxn()
	id, added, removed := a.NodeClients.news(or(p.ClientID), statedb.Collect(a.Nodes.All(txn)))
	respond(w, http.StatusOK, models.ClusterNodeStatus{ClientID: id, Self: a.nodeName(txn),
		NodesAdded: a.nodeElements(txn, added), NodesRemoved: a.nodeElements(txn, removed)})
}

func (a *api) nodeName(txn statedb.ReadTxn) string {
	return a.Settings.ClusterName + "/" + a.localNode(txn).Name
}

func (a *api) nodeElements(txn statedb.ReadTxn, rows []*nodes.Node) (elements []models.NodeElement) {
	for _, row := range rows {
		if row.Source == nodes.Local {
			elements = append(elements, a.selfElement(txn))
		} else {
			elements = append(elements, a.nodeElement(row))
		}
	}
	return elements
}

// selfElement describes this node with all of its addresses.
func (a *api) selfElement(txn statedb.ReadTxn) models.NodeElement {
	node := a.localNode(txn)
	primary := a.addressing(txn)
	primary.Ipv4.IP, primary.Ipv6.IP = text(node.IPv4.NodeIP), text(node.IPv6.NodeIP)
	return models.NodeElement{
		Name: a.nodeName(txn), PrimaryAddress: primary, SecondaryAddresses: elements(node.Addresses), Source: string(nodes.Local),
		HealthEndpointAddress: models.NodeAddressing{
			Ipv4: models.NodeAddressingElement{Enabled: a.Settings.EnableIPv4, IP: text(node.IPv4.Health)},
			Ipv6: models.NodeAddressingElement{Enabled: a.Settings.EnableIPv6, IP: text(node.IPv6.Health)}},
	}
}

// nodeElement describes another node.
func (a *api) nodeElement(row *nodes.Node) models.NodeElement {
	addressing := func(address func(ipv6 bool) netip.Addr, ranges bool) models.NodeAddressing {
		family := func(enabled, ipv6 bool) models.NodeAddressingElement {
			e := models.NodeAddressingElement{Enabled: enabled, IP: text(address(ipv6))}
			if i := slices.IndexFunc(row.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 }); ranges && i >= 0 {
				e.AllocRange = row.CIDRs[i].String()
			}
			return e
		}
		return models.NodeAddressing{Ipv4: family(a.Settings.EnableIPv4, false), Ipv6: family(a.Settings.EnableIPv6, true)}
	}
	e := models.NodeElement{Name: a.Settings.ClusterName + "/" + row.Name, Source: string(row.Source),
		PrimaryAddress:        addressing(row.Address, true),
		HealthEndpointAddress: addressing(func(ipv6 bool) netip.Addr { return row.Typed(nodes.HealthIP, ipv6) }, false)}
	for _, addr := range row.Addresses {
		if addr.Type != nodes.HealthIP && addr.Addr != row.Address(addr.Addr.Is6()) {
			e.SecondaryAddresses = append(e.SecondaryAddresses, models.NodeAddressingElement{Enabled: true, IP: addr.Addr.String(), AddressType: addr.Type})
		}
	}
	return e
}
