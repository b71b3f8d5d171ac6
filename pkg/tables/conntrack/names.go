package conntrack

import (
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/ctmap"
	"github.com/waggle-net/waggle/pkg/natmap"
)

// FlowMaps are the names of the maps that remember addresses of endpoints: flows, and translated ones.
func FlowMaps() (names []string) {
	for _, m := range ctmap.Maps() {
		names = append(names, m.Name)
	}
	for _, m := range natmap.Maps() {
		names = append(names, m.Name)
	}
	return names
}

// Maps are the names of all maps that have a row.
func Maps() []string { return append(FlowMaps(), bpf.MapAffinity) }
