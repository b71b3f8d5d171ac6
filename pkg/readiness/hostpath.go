package readiness

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// hostPath returns the first missing part of the path between the node and its pods, or "". Without the path a new pod reaches other pods, but neither the node
// nor addresses outside. Rows of single pods do not count; otherwise each ADD would make the agent unready for the next one.
func hostPath(txn statedb.ReadTxn, t Tables) string {
	if node(txn, t.LocalNode) != "" {
		return "" // [Evaluate] reports this already, and the path has no rows before
	}
	device, _, found := t.Devices.Get(txn, desireddevices.ByName(podlink.HostDevice))
	if !found {
		return "the row of the link " + podlink.HostDevice
	}
	if why := pending("link "+device.Name, device.Status); why != "" {
		return why
	}
	key := attachments.Attachment{Kind: attachments.TCX, Device: podlink.HostDevice, Hook: "egress"}
	program, _, found := t.Attachments.Get(txn, attachments.ByKey(key.Key()))
	if !found {
		return "the row of the program of " + podlink.HostDevice
	}
	if why := pending(fmt.Sprintf("program %s on %s", program.Program, program.Device), program.Status); why != "" {
		return why
	}
	if why := routes(txn, t); why != "" {
		return why
	}
	for s := range sysctls.Lasting(txn, t.Sysctls) {
		if why := pending("kernel setting "+s.Name, s.Status); why != "" {
			return why
		}
	}
	return ""
}

// routes returns the first missing route to a pod CIDR of this node, or "".
func routes(txn statedb.ReadTxn, t Tables) string {
	for n := range t.LocalNode.All(txn) {
		for _, prefix := range []netip.Prefix{n.IPv4.AllocRange, n.IPv6.AllocRange} {
			if !prefix.IsValid() {
				continue
			}
			route := routeTo(txn, t, prefix.Masked())
			if route == nil {
				return fmt.Sprintf("the row of the route to %s", prefix.Masked())
			}
			if why := pending("route "+route.Dst.String(), route.Status); why != "" {
				return why
			}
		}
	}
	return ""
}

// routeTo returns the row of the route to a pod CIDR of this node, of any metric, or nil.
func routeTo(txn statedb.ReadTxn, t Tables, prefix netip.Prefix) *desiredroutes.Route {
	for route := range t.Routes.List(txn, desiredroutes.ByOwner(desiredroutes.LocalNode)) {
		if route.Dst == prefix {
			return route
		}
	}
	return nil
}

// pending returns the reason why a row is not in the kernel, or "" if it is. A row with the status Refreshing is in the kernel.
func pending(what string, status reconciler.Status) string {
	switch status.Kind {
	case reconciler.StatusKindDone, reconciler.StatusKindRefreshing:
		return ""
	case reconciler.StatusKindError:
		return what + ": " + status.GetError()
	}
	return what + " to be in the kernel"
}
