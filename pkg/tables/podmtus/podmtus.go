// Package podmtus holds the MTU of the links and default routes of running pods.
package podmtus

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// State relates the MTU of the pod to the MTU of the node.
type State string

const (
	Follows State = "follows" // link and default routes have the MTU of the row in mtus
	ByHand  State = "by-hand" // the pod has an MTU that the agent never set, and keeps it
	Waiting State = "waiting" // the change cannot be completed yet; Detail names the missing condition
	Gone    State = "gone"    // the network namespace no longer exists, or its path is not known
	Failed  State = "failed"  // the last attempt failed and is repeated
)

// PodMTU is the row of one endpoint. Rows are compared with ==.
type PodMTU struct {
	ID          uint16 `json:"id"`          // of the endpoint
	Pod         string `json:"pod"`         // "namespace/name"; empty for a container that is not a pod
	HostIfIndex int    `json:"hostIfIndex"` // of the host end of the link
	// HostMTU is the MTU in bytes that the agent set on the host end of the link, recorded before the link is changed; 0 without one.
	HostMTU   int    `json:"hostMTU"`
	DeviceMTU int    `json:"deviceMTU"` // bytes, of the row in mtus at the last attempt
	RouteMTU  int    `json:"routeMTU"`  // the same of default routes
	State     State  `json:"state"`
	Detail    string `json:"detail"` // empty if State says enough
}

// TableHeader implements statedb.TableWritable.
func (PodMTU) TableHeader() []string {
	return []string{"ID", "Pod", "DeviceMTU", "RouteMTU", "State", "Detail"}
}

// TableRow implements statedb.TableWritable.
func (p PodMTU) TableRow() []string {
	pod := p.Pod
	if pod == "" {
		pod = "-"
	}
	return []string{strconv.Itoa(int(p.ID)), pod, strconv.Itoa(p.DeviceMTU), strconv.Itoa(p.RouteMTU), string(p.State), p.Detail}
}

var idIndex = indexes.Unique("id", indexes.Uint16, func(p PodMTU) uint16 { return p.ID })

// ByID finds the row of an endpoint.
var ByID = idIndex.Query

// NewTable makes the table "pod-mtus".
func NewTable(db *statedb.DB) (statedb.RWTable[PodMTU], error) {
	return statedb.NewTable(db, "pod-mtus", idIndex)
}
