package ipcache

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// pods are the CiliumEndpoints, by address. A pod that was replaced may be there beside the one that has its address now.
type pods struct {
	byName map[string]*cilium.Endpoint
	byAddr map[netip.Addr][]*cilium.Endpoint // the one that was made last comes last, of equal ones the one that changed last
}

func newPods() pods {
	return pods{map[string]*cilium.Endpoint{}, map[netip.Addr][]*cilium.Endpoint{}}
}

// apply takes over a change, and adds the addresses of which it may say something to touched.
func (p pods) apply(change statedb.Change[*cilium.Endpoint], touched map[netip.Addr]struct{}) {
	ep := change.Object
	name := ep.Key()
	if old := p.byName[name]; old != nil {
		for _, addr := range old.Addrs {
			p.forget(addr, old)
			touched[addr] = struct{}{}
		}
		delete(p.byName, name)
	}
	if change.Deleted {
		return
	}
	p.byName[name] = ep
	for _, addr := range ep.Addrs {
		list := p.byAddr[addr]
		at := len(list)
		for at > 0 && list[at-1].Created > ep.Created {
			at--
		}
		p.byAddr[addr] = slices.Insert(list, at, ep)
		touched[addr] = struct{}{}
	}
}

func (p pods) forget(addr netip.Addr, ep *cilium.Endpoint) {
	rest := slices.DeleteFunc(p.byAddr[addr], func(o *cilium.Endpoint) bool { return o == ep })
	if len(rest) == 0 {
		delete(p.byAddr, addr)
		return
	}
	p.byAddr[addr] = rest
}
