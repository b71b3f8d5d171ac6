package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tc"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// repairs measures how soon the agent puts right what another program has changed: one kind of damage after the other where the
// kernel announces the change, all at once where only the comparison of each --verify-interval finds it.
func (b *bench) repairs(ctx context.Context) error {
	node, err := b.startedNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	pod, err := node.AddPod(ctx, "pod") // removed with the node
	if err != nil {
		return err
	}
	links, err := node.PodLinks()
	if err != nil || len(links) != 1 {
		return fmt.Errorf("the node has the pod links %q, want one: %w", links, err)
	}
	endpoints, err := pinnedMap(node, bpf.MapEndpoints)
	if err != nil {
		return err
	}
	defer endpoints.Close()
	d := driftNode{Node: node, pod: pod, podLink: links[0], endpoints: endpoints}
	if err := b.repaired(ctx, d, announced(d), false, 5, announcedBudget); err != nil {
		return err
	}
	return b.repaired(ctx, d, silent(d), true, 2, silentBudget)
}

// driftNode is a node with one pod.
type driftNode struct {
	*nodekit.Node
	pod       *nodekit.Pod
	podLink   string // its end on the node
	endpoints *ebpf.Map
}

func (d driftNode) pin(elem ...string) string {
	return filepath.Join(append([]string{d.BPFRoot(), "waggle"}, elem...)...)
}

// damage is a change by another program. Both functions run in the node's namespaces.
type damage struct {
	what  string
	do    func() error
	whole func() (bool, error) // reports whether the change is undone; a missing object is an error or false
}

// repaired does some rounds of all kinds of damage: each kind alone, or all of them together, because each then takes until the next
// comparison.
func (b *bench) repaired(ctx context.Context, d driftNode, all []damage, together bool, rounds int, budget figures.Limit) error {
	took := make([][]time.Duration, len(all))
	var batches [][]int
	for i := range all {
		if together && i > 0 {
			batches[0] = append(batches[0], i)
		} else {
			batches = append(batches, []int{i})
		}
	}
	for range b.atMost(rounds) {
		for _, batch := range batches {
			time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond)) // repairs of one object are rate-limited
			if err := d.round(ctx, all, batch, took); err != nil {
				return err
			}
		}
	}
	for i, kind := range all {
		b.promised("repair, "+kind.what, took[i], budget)
	}
	return nil
}

// round does some damages and notes when each is undone.
func (d driftNode) round(ctx context.Context, all []damage, batch []int, took [][]time.Duration) error {
	intact := func(i int) error {
		whole, err := all[i].whole()
		if err == nil && !whole {
			err = errors.New("it is not undone")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", all[i].what, err)
		}
		return err
	}
	return d.Do(func() error {
		began := map[int]time.Time{}
		for _, i := range batch {
			if err := await(ctx, time.Millisecond, func() error { return intact(i) }); err != nil {
				return fmt.Errorf("before the damage: %w", err)
			}
			began[i] = time.Now()
			if err := all[i].do(); err != nil {
				return fmt.Errorf("%s: %w", all[i].what, err)
			}
		}
		return await(ctx, time.Millisecond, func() (last error) {
			for i, since := range began {
				if err := intact(i); err != nil {
					last = err
					continue
				}
				took[i] = append(took[i], time.Since(since))
				delete(began, i)
			}
			return last
		})
	})
}

// announced are changes that the kernel sends an event for.
func announced(d driftNode) []damage {
	block := tc.Block(podlink.IngressBlock)
	route := netip.MustParsePrefix("10.244.1.0/24")
	return []damage{
		{"waggle_net has another MTU", changed(podlink.NetDevice, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }),
			is(podlink.NetDevice, func(l netlink.Link) bool { return l.Attrs().MTU != 1300 })},
		{"waggle_hold is deleted", changed(podlink.HoldDevice, netlink.LinkDel), is(podlink.HoldDevice, func(netlink.Link) bool { return true })},
		{"a pod's link is down", changed(d.podLink, netlink.LinkSetDown),
			is(d.podLink, func(l netlink.Link) bool { return l.Attrs().RawFlags&1 != 0 })}, // IFF_UP
		{"a pod's link has no clsact", func() error {
			return withClsact(d.podLink, func(h *tc.Handle, index int) error { return h.DeleteClsact(index) })
		},
			func() (found bool, err error) {
				err = withClsact(d.podLink, func(h *tc.Handle, index int) (err error) { _, found, err = h.Clsact(index); return err })
				return found, err
			}},
		{"the filter of pods is deleted", func() error { return withTC(func(h *tc.Handle) error { return h.DeleteFilter(block) }) },
			func() (found bool, err error) {
				err = withTC(func(h *tc.Handle) error {
					filters, err := h.Filters(block)
					found = len(filters) > 0 && filters[0].Ours()
					return err
				})
				return found, err
			}},
		{"an address of waggle_host is removed", changed(podlink.HostDevice, func(l netlink.Link) error {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			if err != nil || len(addrs) == 0 {
				return errors.Join(err, errors.New("it has no address"))
			}
			return netlink.AddrDel(l, &addrs[0])
		}), is(podlink.HostDevice, func(l netlink.Link) bool {
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V4)
			return err == nil && len(addrs) > 0
		})},
		{"the route to pods is deleted", func() error {
			found, err := ownRoute(route)
			if err != nil || found == nil {
				return errors.Join(err, fmt.Errorf("no route to %s", route))
			}
			return netlink.RouteDel(found)
		}, func() (bool, error) { found, err := ownRoute(route); return found != nil, err }},
		{"the nftables ruleset is flushed", func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.FlushRuleset()
			return conn.Flush()
		}, nftguard.Exists},
		{"forwarding is off", setting("ipv4/ip_forward", "0"), hasSetting("ipv4/ip_forward", "1")},
		{"the pin of a tcx link is removed", func() error { return os.Remove(d.pin("links", "waggle_host_egress")) }, exists(d.pin("links", "waggle_host_egress"))},
		{"the pin of a map is removed", func() error { return os.Remove(d.pin("maps", ipcachePin())) }, exists(d.pin("maps", ipcachePin()))},
	}
}

func ipcachePin() string { return bpf.PinName(bpf.MapIpcache, bpf.LayoutVersion(bpf.MapIpcache)) }

// silent are changes without an event.
func silent(d driftNode) []damage {
	key := bpf.NewAddrKey(d.pod.Addr(false))
	return []damage{
		{"a sysctl without events is changed", setting("ipv4/conf/waggle_host/accept_local", "0"), hasSetting("ipv4/conf/waggle_host/accept_local", "1")},
		{"the tcx link is detached", func() error {
			l, err := link.LoadPinnedLink(d.pin("links", "waggle_host_egress"), nil)
			if err != nil {
				return err
			}
			return errors.Join(l.Detach(), l.Close())
		}, func() (attached bool, err error) {
			host, err := netlink.LinkByName(podlink.HostDevice)
			if err != nil {
				return false, err
			}
			programs, err := link.QueryPrograms(link.QueryOptions{Target: host.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			return err == nil && len(programs.Programs) > 0, err
		}},
		{"the endpoint's map entry is deleted", func() error { return d.endpoints.Delete(key) }, func() (bool, error) {
			var ref bpf.EndpointRef
			return d.endpoints.Lookup(key, &ref) == nil, nil
		}},
	}
}

func changed(name string, f func(netlink.Link) error) func() error {
	return func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return f(l)
	}
}

func is(name string, f func(netlink.Link) bool) func() (bool, error) {
	return func() (whole bool, err error) {
		err = changed(name, func(l netlink.Link) error { whole = f(l); return nil })()
		return whole, err
	}
}

func withTC(f func(*tc.Handle) error) error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	return f(handle)
}

func withClsact(device string, f func(h *tc.Handle, index int) error) error {
	return changed(device, func(l netlink.Link) error {
		return withTC(func(h *tc.Handle) error { return f(h, l.Attrs().Index) })
	})()
}

// ownRoute returns the agent's route to a prefix, nil for none.
func ownRoute(to netip.Prefix) (*netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: desiredroutes.Protocol}, netlink.RT_FILTER_PROTOCOL)
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() == to.String() {
			return &r, nil
		}
	}
	return nil, err
}

func setting(name, value string) func() error {
	return func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }
}

func hasSetting(name, value string) func() (bool, error) {
	return func() (bool, error) {
		text, err := os.ReadFile("/proc/sys/net/" + name)
		return strings.TrimSpace(string(text)) == value, err
	}
}

func exists(path string) func() (bool, error) {
	return func() (bool, error) { _, err := os.Stat(path); return err == nil, err }
}
