package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Maps implements [Kernel] with the agent's open maps.
type Maps struct{ pinnedmaps.Maps }

var _ Kernel = Maps{}

// Facts implements [Kernel].
func (m Maps) Facts(endpoint uint16) (f bpf.EndpointFacts, err error) {
	_, err = m.get(bpf.MapEndpointFacts, uint32(endpoint), &f)
	return f, err
}

// Identity implements [Kernel].
func (m Maps) Identity(addr netip.Addr) (uint32, error) {
	var e bpf.IpcacheEntry
	found, err := m.get(bpf.MapIpcache, bpf.NewAddrKey(addr), &e)
	if err != nil || found {
		return e.Identity, err
	}
	_, err = m.get(bpf.MapIpcachePrefixes, bpf.NewLpmKey(netip.PrefixFrom(addr, addr.BitLen())), &e)
	return e.Identity, err
}

// CIDRs implements [Kernel].
func (m Maps) CIDRs(addr netip.Addr) (ids []uint32, err error) {
	key, widest := bpf.NewLpmKey(netip.PrefixFrom(addr, addr.BitLen())), bpf.NewLpmKey(netip.PrefixFrom(addr, 0)).Prefixlen
	for {
		var v bpf.CIDR
		found, err := m.get(bpf.MapCIDRs, key, &v)
		if err != nil || !found {
			return ids, err
		}
		if ids = append(ids, v.Identity); v.Bits <= widest || v.Bits > key.Prefixlen {
			return ids, nil
		}
		key.Prefixlen = v.Bits - 1
	}
}

// Classes implements [Kernel].
func (m Maps) Classes(identity uint32) (of bpf.IdentityClasses, err error) {
	_, err = m.get(bpf.MapIdentityClasses, identity, &of)
	return of, err
}

// Entry implements [Kernel].
func (m Maps) Entry(key bpf.PolicyKey) (e bpf.PolicyEntry, found bool, err error) {
	found, err = m.get(bpf.MapPolicy, key, &e)
	return e, found, err
}

// Range implements [Kernel].
func (m Maps) Range(key bpf.PolicyRangeKey) (e bpf.PolicyEntry, found bool, err error) {
	found, err = m.get(bpf.MapPolicyRanges, key, &e)
	return e, found, err
}

func (m Maps) get(name string, key, value any) (bool, error) {
	opened, err := m.Get(name)
	if err != nil {
		return false, fmt.Errorf("read map %s: %w", name, err)
	}
	switch err := opened.Lookup(key, value); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read map %s: %w", name, err)
	}
	return true, nil
}

const (
	maxFlows  = 20   // maximum in an explanation
	readFlows = 4096 // in one call
)

// Between implements [Kernel]. It scans whole maps, because only users call it, and never the packet path.
func (m Maps) Between(from, to netip.Addr, protocol uint8, port uint16) (found []string, err error) {
	now, err := bpf.CtNow()
	if err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	for _, of := range ctmap.Maps() {
		if of.IPv6 != from.Is6() {
			continue
		}
		opened, err := m.Get(of.Name)
		if err != nil {
			return found, fmt.Errorf("read map %s: %w", of.Name, err)
		}
		reader := ctmap.NewReader(of, opened, readFlows)
		for last := false; !last && len(found) < maxFlows; {
			var flows []ctmap.Flow
			if flows, last, err = reader.Next(); err != nil {
				return found, err
			}
			for i := range flows {
				tuple := flows[i].Tuple()
				if tuple.Initiator.Addr() == from && tuple.Responder.Addr() == to && tuple.Protocol == protocol && samePort(&tuple, port) {
					found = append(found, flowText(&flows[i], &tuple, now))
				}
			}
		}
	}
	return found[:min(len(found), maxFlows)], nil
}

// samePort compares the responder's port; for ICMP the type of the request.
func samePort(tuple *bpf.CtFlow, port uint16) bool {
	if tuple.Protocol == policy.ProtocolICMP || tuple.Protocol == policy.ProtocolICMPv6 {
		return uint16(tuple.ICMPType) == port
	}
	return tuple.Responder.Port() == port
}

func flowText(f *ctmap.Flow, tuple *bpf.CtFlow, now uint32) string {
	words := append([]string{string(f.StateAt(now))}, f.Words()...)
	return fmt.Sprintf("%s -> %s %s: %s, %d packets, expires in %s", tuple.Initiator, tuple.Responder, ctmap.Protocol(tuple.Protocol),
		strings.Join(words, " "), f.Entry.Packets, f.Left(now).Round(time.Second))
}
