package apiserver

import (
	"net/http"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
)

// GetNodeIds answers with the numbers of nodes in the datapath. This node has 0, as in Cilium; it knows no others.
func (a *api) GetNodeIds(w http.ResponseWriter, _ *http.Request) {
	id := models.NodeID{Ips: []string{}}
	for _, addr := range a.localNode(a.DB.ReadTxn()).Addresses {
		id.Ips = append(id.Ips, addr.String())
	}
	answer(w, http.StatusOK, []models.NodeID{id})
}

// GetClusterNodes answers with this node. The client id is the revision of the table, so that nothing need be remembered
// of clients: who comes with the current one has seen everything.
func (a *api) GetClusterNodes(w http.ResponseWriter, _ *http.Request, p models.GetClusterNodesParams) {
	txn := a.DB.ReadTxn()
	revision := int64(a.Ready.LocalNode.Revision(txn)) + 1 // never 0, which asks for all nodes
	status := models.ClusterNodeStatus{ClientID: revision, Self: a.nodeName(txn)}
	if or(p.ClientID) != revision {
		status.NodesAdded = []models.NodeElement{a.nodeElement(txn)}
	}
	answer(w, http.StatusOK, status)
}

func (a *api) nodeName(txn statedb.ReadTxn) string {
	return a.Settings.ClusterName + "/" + a.localNode(txn).Name
}

func (a *api) nodeElement(txn statedb.ReadTxn) models.NodeElement {
	node := a.localNode(txn)
	primary := a.addressing(txn)
	primary.Ipv4.IP, primary.Ipv6.IP = text(node.IPv4.NodeIP), text(node.IPv6.NodeIP)
	return models.NodeElement{
		Name: a.nodeName(txn), PrimaryAddress: primary, SecondaryAddresses: elements(node.Addresses), Source: "local",
	}
}
