package conntrack

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
)

// FlowMaps returns the names of the maps that hold addresses of endpoints: flows and translated flows.
func FlowMaps() (names []string) {
	for _, m := range ctmap.Maps() {
		names = append(names, m.Name)
	}
	for _, m := range natmap.Maps() {
		names = append(names, m.Name)
	}
	return names
}

// Maps returns the names of all maps that have a row.
func Maps() []string { return append(FlowMaps(), bpf.MapAffinity) }
