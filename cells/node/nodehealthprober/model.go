package nodehealthprober

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1beta"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// status describes all nodes except removed ones. NotProbed lists the nodes with an address whose last probe began before since.
func (a api) status(txn statedb.ReadTxn, since time.Time) v1beta.HealthStatusResponse {
	s := v1beta.HealthStatusResponse{Local: v1beta.SelfStatus{Name: a.fullName(a.Agent.NodeName)},
		ProbeInterval: a.Options.interval(nodes.CountExisting(txn, a.Nodes)).String()}
	var last time.Time
	for node := range a.Nodes.All(txn) {
		if node.Source == nodes.Removed {
			continue
		}
		n, late := v1beta.NodeStatus{Name: a.fullName(node.Name)}, false
		for _, kind := range []nodehealth.Kind{nodehealth.Host4, nodehealth.Host6, nodehealth.Health4, nodehealth.Health6} {
			row, _, found := a.Paths.Get(txn, nodehealth.ByPath(node.Name, kind))
			if !found {
				continue
			}
			at := row.LastProbe()
			late = late || row.Unasked == "" && at.Before(since)
			if at.After(last) {
				last = at
			}
			addPath(&n, kind, pathStatus(row))
		}
		s.Nodes = append(s.Nodes, n)
		if late {
			s.NotProbed = append(s.NotProbed, n.Name)
		}
	}
	s.Timestamp = stamp(last)
	return s
}

// fullName returns the name of a node as in /cluster/nodes.
func (a api) fullName(node string) string { return a.Agent.ClusterName + "/" + node }

// addPath adds an address to a node. The first address is the primary one.
func addPath(n *v1beta.NodeStatus, kind nodehealth.Kind, p v1beta.PathStatus) {
	addresses := &n.Host
	if kind.Endpoint() {
		addresses = &n.HealthEndpoint
	}
	if *addresses != nil {
		(*addresses).Secondary = append((*addresses).Secondary, p)
		return
	}
	*addresses = &v1beta.AddressesStatus{Primary: &p}
	if kind.Endpoint() {
		n.Endpoint = &p
	}
}

func pathStatus(row *nodehealth.Path) v1beta.PathStatus {
	return v1beta.PathStatus{IP: row.Addr.String(), ICMP: verdict(row, row.ICMP), HTTP: verdict(row, row.HTTP)}
}

// verdict returns the state of a check; nil while it is unknown. A failed probe after the last reply is no verdict yet; LastProbed is the time of the reply. A
// reply to pods after the last probe counts as a reply of each protocol.
func verdict(row *nodehealth.Path, c nodehealth.Check) *v1beta.ConnectivityStatus {
	switch {
	case row.Evidence() == nodehealth.ByTraffic:
		return &v1beta.ConnectivityStatus{Latency: c.Latency, LastProbed: stamp(row.Traffic)}
	case c.State == nodehealth.Reachable:
		return &v1beta.ConnectivityStatus{Latency: c.Latency, LastProbed: stamp(c.Answered)}
	case c.State == nodehealth.Unreachable:
		return &v1beta.ConnectivityStatus{Status: c.Error, LastProbed: stamp(c.Asked)}
	}
	return nil
}

// stamp returns a time in RFC 3339, empty for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// load reads the load averages and the uptime of the machine. Values that cannot be read are omitted.
func (a api) load() (load v1beta.LoadResponse, uptime string) {
	if fields := a.procFile("loadavg"); len(fields) >= 3 {
		load = v1beta.LoadResponse{Last1min: fields[0], Last5min: fields[1], Last15min: fields[2]}
	}
	if fields := a.procFile("uptime"); len(fields) > 0 {
		if d, err := time.ParseDuration(fields[0] + "s"); err == nil {
			uptime = d.String()
		}
	}
	return load, uptime
}

func (a api) procFile(name string) []string {
	text, err := os.ReadFile(filepath.Join(a.Agent.Procfs, name))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}
