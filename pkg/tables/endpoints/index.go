package endpoints

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"github.com/waggle-net/waggle/pkg/indexes"
)

var idIndex = indexes.Unique("id", indexes.Uint16, func(e *Endpoint) uint16 { return e.ID })

var attachmentIndex = indexes.OmitZero(indexes.Unique("attachment", indexes.String, (*Endpoint).AttachmentID))
var containerIndex = indexes.OmitZero(indexes.Shared("container", indexes.String, func(e *Endpoint) string { return e.ContainerID }))
var podIndex = indexes.OmitZero(indexes.Shared("pod", indexes.String, (*Endpoint).PodName))
var hostInterfaceIndex = indexes.OmitZero(indexes.Shared("host-interface", indexes.String, func(e *Endpoint) string { return e.HostIfName }))

var addressIndex = statedb.Index[*Endpoint, netip.Addr]{
	Name: "address",
	FromObject: func(e *Endpoint) index.KeySet {
		var keys []index.Key
		for _, a := range []netip.Addr{e.IPv4, e.IPv6} {
			if a.IsValid() {
				keys = append(keys, index.NetIPAddr(a))
			}
		}
		return index.NewKeySet(keys...)
	},
	FromKey:    index.NetIPAddr,
	FromString: index.NetIPAddrString,
	Unique:     true,
}

// Queries.
var (
	ByID         = idIndex.Query         // local id
	ByAttachment = attachmentIndex.Query // "<container id>:<interface>"
	ByContainer  = containerIndex.Query  // container id; all its attachments
	ByPod        = podIndex.Query        // "namespace/pod"; old and new sandboxes may overlap
	ByAddress    = addressIndex.Query    // IPv4 or IPv6
	// ByHostInterface finds rows by the name of the host end. A row whose link was deleted may share the name with a newer row.
	ByHostInterface = hostInterfaceIndex.Query
)

// NewTable makes the table "endpoints".
func NewTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	return statedb.NewTable(db, "endpoints", idIndex, attachmentIndex, containerIndex, podIndex, addressIndex,
		hostInterfaceIndex)
}
