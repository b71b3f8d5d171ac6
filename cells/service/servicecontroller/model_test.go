package servicecontroller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// naive computes the expected tables from all objects, without regard to speed. It returns one line for each row. Lines name backends by address, because ids
// depend on previous passes. Ownership depends on them too, so naive uses the owners of its last call.
func (b *bench) naive() []string {
	txn := b.db.ReadTxn()
	type fact struct {
		state           int
		node, zone, pod string
	}
	type front struct {
		service, port, kind string
		made                int64
		outer, inner        []string
		two, outside, drop  bool
		localOnly, loop     bool
		maglev              bool
		affinity            int
		ranges              []netip.Prefix
		deny                bool
	}
	kinds := []string{"ClusterIP", "NodePort", "HostPort", "LoadBalancer", "ExternalIPs"}
	backs, fronts := map[string]map[string]fact{}, map[string][]front{} // backends by address and service, frontends by address
	problems, rows := map[string][]string{}, map[string]string{}
	own, local, serving := map[netip.Addr]bool{}, map[netip.Addr]bool{}, []netip.Addr{}
	for a := range b.addrs.All(txn) {
		own[a.Addr], local[a.Addr] = true, true
		if a.NodePort {
			serving = append(serving, a.Addr)
		}
	}
	for e := range b.eps.All(txn) {
		local[e.IPv4], local[e.IPv6] = true, true
	}
	for p := range b.pods.All(txn) {
		for _, a := range p.PodIPs {
			local[a] = local[a] || p.Phase == "Pending" || p.Phase == "Running"
		}
	}
	for _, text := range []string{"127.0.0.1", "::1"} {
		serving = append(serving, netip.MustParseAddr(text))
	}
	labels := map[string]string{}
	zone, ofNode, pods := "", map[netip.Addr]string{}, []netip.Prefix{}
	for n := range b.nodes.All(txn) {
		if n.Name == "one" {
			zone, labels = n.Labels["topology.kubernetes.io/zone"], n.Labels
		}
		for _, a := range n.Addresses {
			ofNode[netip.MustParseAddr(a.Address)] = n.Name
		}
		for _, p := range n.PodCIDRs {
			pods = append(pods, netip.MustParsePrefix(p))
		}
	}
	served := map[string]*k8s.Service{}
	for s := range b.svcs.All(txn) {
		edge, hasEdge := labels["service.cilium.io/node"]
		where, only := s.Annotations["service.cilium.io/node"]
		switch s.Annotations["service.cilium.io/node-selector"] {
		case "rack=1":
			if labels["rack"] != "1" {
				continue
			}
		case "rack!=1,service.cilium.io/node":
			if labels["rack"] == "1" || !hasEdge {
				continue
			}
		default: // no selector, or one that cannot be parsed
			if only && where != edge {
				continue
			}
		}
		if !s.Headless && s.Type != "ExternalName" && s.Labels["service.kubernetes.io/service-proxy-name"] == "" {
			served[s.Namespace+"/"+s.Name] = s
		}
	}
	note := func(name, addr string, state int, node, zone, pod string) {
		if backs[addr] == nil {
			backs[addr] = map[string]fact{}
		}
		if old, twice := backs[addr][name]; !twice || old.state < state {
			backs[addr][name] = fact{state, node, zone, pod}
		}
	}
	claim := func(addr netip.Addr, port uint16, protocol string, f front) {
		at := netip.AddrPortFrom(addr, port).String() + "/" + protocol
		for i, o := range fronts[at] {
			if o.service == f.service {
				if slices.Index(kinds, f.kind) < slices.Index(kinds, o.kind) {
					fronts[at][i] = f
				}
				return
			}
		}
		fronts[at] = append(fronts[at], f)
	}
	for _, name := range slices.Sorted(maps.Keys(served)) {
		s := served[name]
		localPods := map[string]bool{}
		only := s.Annotations["service.cilium.io/type"]
		if only != "" && only != "ClusterIP" && only != "NodePort" && only != "LoadBalancer" {
			problems[name], only = append(problems[name], "kind"), ""
		}
		problems[name] = append(problems[name], s.Problems...)
		maglev := b.c.Rules.agent.Maglev
		switch s.Annotations["service.cilium.io/lb-algorithm"] {
		case "":
		case "random":
			maglev = false
		case "maglev":
			if maglev = maglev || b.c.Rules.agent.AlgorithmAnnotation; !maglev {
				problems[name] = append(problems[name], "algorithm")
			}
		default:
			problems[name] = append(problems[name], "algorithm")
		}
		if mode := s.Annotations["service.cilium.io/forwarding-mode"]; mode != "" && mode != "snat" {
			problems[name] = append(problems[name], "forwarding")
		}
		for key, bad := range map[string]string{"service.cilium.io/global": "true", "service.cilium.io/node-selector": "rack in", "service.cilium.io/src-ranges-policy": "no"} {
			if s.Annotations[key] == bad {
				problems[name] = append(problems[name], key)
			}
		}
		for _, is4 := range []bool{true, false} {
			if len(s.ClusterIPs) > 0 && !slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == is4 }) {
				for _, a := range s.ExternalIPs {
					if a.Is4() == is4 && only == "" {
						problems[name] = append(problems[name], "external family "+a.String())
					}
				}
				for _, a := range s.IngressIPs {
					if a.Is4() == is4 && s.Type == "LoadBalancer" && (only == "" || only == s.Type) {
						problems[name] = append(problems[name], "family "+a.String())
					}
				}
				continue
			}
			for _, p := range s.Ports {
				// Endpoints, the best of each address.
				found := map[string]k8s.SliceEndpoint{}
				value := func(e k8s.SliceEndpoint) int {
					switch {
					case e.Ready || s.PublishNotReadyAddrs:
						return 2
					case e.Serving && e.Terminating:
						return 1
					}
					return 0
				}
				here := func(e k8s.SliceEndpoint) bool { return e.NodeName == "one" || e.NodeName == "" && own[e.Addrs[0]] }
				for slice := range b.slcs.All(txn) {
					if slice.Namespace != s.Namespace || slice.Service != s.Name {
						continue
					}
					for _, sp := range slice.Ports {
						if sp.Name != p.Name || sp.Protocol != p.Protocol {
							continue
						}
						for _, e := range slice.Endpoints {
							if e.Addrs[0].Is4() != is4 {
								continue
							}
							at := netip.AddrPortFrom(e.Addrs[0], sp.Port).String() + "/" + sp.Protocol
							if old, twice := found[at]; !twice || value(old) < value(e) {
								found[at] = e
							}
						}
					}
				}
				var active, ending, localActive, localEnding, zoned []string
				hinted := true
				for at, e := range found {
					note(name, at, value(e), e.NodeName, e.Zone, e.Pod)
					switch value(e) {
					case 2:
						active = append(active, at)
						if here(e) {
							localActive = append(localActive, at)
							localPods[cmp.Or(e.Pod, e.Addrs[0].String())] = true
						}
						hinted = hinted && len(e.ForZones) > 0
						if zone != "" && slices.Contains(e.ForZones, zone) {
							zoned = append(zoned, at)
						}
					case 1:
						ending = append(ending, at)
						if here(e) {
							localEnding = append(localEnding, at)
						}
					}
				}
				anywhere, onNode := active, localActive
				if hinted && len(zoned) > 0 {
					anywhere = zoned
				}
				if len(active) == 0 {
					anywhere = ending
				}
				if len(localActive) == 0 {
					onNode = localEnding
				}
				base := front{service: name, port: p.Name, made: s.Created, affinity: int(s.Affinity.Seconds())}
				for _, ip := range s.ClusterIPs {
					if ip.Is4() != is4 || only != "" && only != "ClusterIP" {
						continue
					}
					f := base
					f.kind, f.outer = "ClusterIP", anywhere
					if s.InternalLocal {
						f.outer, f.localOnly, f.drop = onNode, true, len(onNode) == 0 && len(anywhere) > 0
					}
					claim(ip, p.Port, p.Protocol, f)
				}
				outside := func(kind string, addr netip.Addr, port uint16) {
					f := base
					f.kind, f.outer, f.outside, f.maglev = kind, anywhere, true, maglev
					if s.ExternalLocal {
						f.outer, f.inner, f.two, f.localOnly, f.drop = onNode, anywhere, true, true, len(onNode) == 0 && len(anywhere) > 0
					}
					if kind == "LoadBalancer" {
						f.ranges, f.deny = s.SourceRanges, s.SourceRanges != nil && s.Annotations["service.cilium.io/src-ranges-policy"] == "deny"
					}
					if addr.IsLoopback() {
						f = base
						f.kind, f.outer, f.loop = kind, anywhere, true
					}
					claim(addr, port, p.Protocol, f)
				}
				if p.NodePort != 0 && (s.Type == "NodePort" || s.Type == "LoadBalancer") && (only == "" || only == "NodePort") {
					for _, a := range serving {
						if a.Is4() == is4 {
							outside("NodePort", a, p.NodePort)
						}
					}
				}
				open := func(kind string, list []netip.Addr) {
					for _, a := range list {
						bad := a.Is4() != is4
						if !bad {
							bad = !own[a] && ofNode[a] != "" || slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) })
							for o := range b.svcs.All(txn) { // whichever proxy serves it
								bad = bad || o.Key() != name && slices.Contains(o.ClusterIPs, a)
							}
							if bad {
								problems[name] = append(problems[name], kind+" "+a.String())
							}
						}
						if !bad && kind == "ExternalIPs" && own[a] && p.Port >= 30000 && p.Port <= 32767 {
							problems[name] = append(problems[name], fmt.Sprint(kind, " ", a, " ", p.Port, "/", p.Protocol))
							bad = true
						}
						if !bad {
							outside(kind, a, p.Port)
						}
					}
				}
				if s.Type == "LoadBalancer" && (only == "" || only == "LoadBalancer") {
					open("LoadBalancer", s.IngressIPs)
				}
				if only == "" {
					open("ExternalIPs", s.ExternalIPs)
				}
			}
		}
		rows[name] = fmt.Sprintf("%s %d", s.Type, len(localPods))
	}
	for p := range b.pods.All(txn) {
		if p.HostNetwork || p.Phase == "Failed" || p.Phase == "Succeeded" {
			continue
		}
		for _, h := range p.HostPorts {
			if len(p.PodIPs) == 0 {
				continue
			}
			name := fmt.Sprintf("%s/%s:host-port/%s/%d", p.Namespace, p.Name, p.UID, h.Port)
			rows[name] = cmp.Or(rows[name], "HostPort 0")
			if h.Port >= 30000 && h.Port <= 32767 {
				problems[name] = append(problems[name], "range")
				continue
			}
			for _, ip := range p.PodIPs {
				at := netip.AddrPortFrom(ip, h.Container).String() + "/" + h.Protocol
				rows[name] = "HostPort 1"
				note(name, at, 2, "one", zone, p.Namespace+"/"+p.Name)
				for _, a := range serving {
					if a.Is4() == ip.Is4() {
						claim(a, h.Port, h.Protocol, front{service: name, kind: "HostPort", made: p.Created, outer: []string{at}, outside: !a.IsLoopback(), loop: a.IsLoopback(),
							maglev: !a.IsLoopback() && b.c.Rules.agent.Maglev})
					}
				}
			}
		}
	}
	var lines []string
	has := map[string]string{}
	list := func(names []string) string { return strings.Join(slices.Sorted(slices.Values(names)), ",") }
	for at, all := range fronts {
		slices.SortFunc(all, func(a, b front) int {
			return cmp.Or(cmp.Compare(slices.Index(kinds, a.kind), slices.Index(kinds, b.kind)), cmp.Compare(a.made, b.made), cmp.Compare(a.service, b.service))
		})
		had := slices.ContainsFunc(all, func(o front) bool { return o.service == b.had[at] && o.kind == all[0].kind })
		best := all[0].kind
		slices.SortStableFunc(all, func(x, y front) int { // the owner keeps the address, or an older service of its namespace gets it
			first := func(f front) int {
				if had && f.kind == best && strings.Split(f.service, "/")[0] == strings.Split(b.had[at], "/")[0] {
					return 0
				}
				return 1
			}
			return first(x) - first(y)
		})
		slices.SortStableFunc(all[1:], func(x, y front) int {
			return cmp.Or(cmp.Compare(slices.Index(kinds, x.kind), slices.Index(kinds, y.kind)), cmp.Compare(x.made, y.made), cmp.Compare(x.service, y.service))
		})
		f, rejected := all[0], []string{}
		has[at] = f.service
		for _, o := range all[1:] {
			rejected = append(rejected, o.service)
			problems[o.service] = append(problems[o.service], "lost "+at)
		}
		lines = append(lines, fmt.Sprint("frontend ", at, " ", f.kind, " ", f.service, " ", f.port, " [", list(f.outer), "] [", list(f.inner), "] ", f.two,
			f.outside, f.drop, f.localOnly, f.loop, f.maglev, f.affinity, f.ranges, f.deny, rejected))
	}
	for at, facts := range backs {
		var all fact
		names := slices.Sorted(maps.Keys(facts))
		for _, name := range names {
			x := facts[name]
			all = fact{max(all.state, x.state), cmp.Or(all.node, x.node), cmp.Or(all.zone, x.zone), cmp.Or(all.pod, x.pod)}
		}
		lines = append(lines, fmt.Sprint("backend ", at, " ", []string{"not-ready", "terminating", "active"}[all.state], " ", local[netip.MustParseAddrPort(at[:strings.LastIndex(at, "/")]).Addr()], " ", all.node, " ",
			all.zone, " ", all.pod, " ", names))
	}
	for name, text := range rows {
		slices.Sort(problems[name])
		lines = append(lines, fmt.Sprint("service ", name, " ", text, " ", min(len(slices.Compact(problems[name])), maxProblems+1)))
	}
	slices.Sort(lines)
	b.had = has
	return lines
}

// tables formats the rows as the same lines.
func (b *bench) tables() (lines []string) {
	txn := b.db.ReadTxn()
	byID := map[uint32]string{}
	for x := range b.c.Backends.All(txn) {
		if byID[x.ID] != "" || x.ID == 0 {
			b.t.Errorf("backend id %d twice", x.ID)
		}
		byID[x.ID] = x.Address.String()
		lines = append(lines, fmt.Sprint("backend ", x.Address, " ", x.State, " ", x.Local, " ", x.Node, " ", x.Zone, " ", x.Pod, " ", x.Services))
	}
	names := func(ids []uint32) string {
		var list []string
		for _, id := range ids {
			list = append(list, byID[id])
		}
		slices.Sort(list)
		return strings.Join(list, ",")
	}
	seen := map[uint32]bool{}
	for f := range b.c.Frontends.All(txn) {
		if seen[f.ID] || f.ID == 0 || !slices.IsSorted(f.Backends) {
			b.t.Errorf("frontend %+v: its id is another's, or its backends are in no order", f)
		}
		seen[f.ID] = true
		rejected := append([]string{}, f.Refused...)
		lines = append(lines, fmt.Sprint("frontend ", f.Address, " ", f.Kind, " ", f.Service, " ", f.PortName, " [", names(f.Backends), "] [", names(f.Internal), "] ", f.TwoScopes,
			f.Outside, f.Drop, f.LocalOnly, f.Loopback, f.Maglev, f.Affinity, f.Ranges, f.Deny, rejected))
	}
	for s := range b.c.Services.All(txn) {
		lines = append(lines, fmt.Sprint("service ", s.Name, " ", s.Type, " ", s.LocalReady, " ", len(s.Problems)))
	}
	slices.Sort(lines)
	return lines
}

// agree compares the rows with the naive model.
func (b *bench) agree(what string) {
	b.t.Helper()
	want, got := b.naive(), b.tables()
	if slices.Equal(want, got) {
		return
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			b.t.Errorf("%s: missing %s", what, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			b.t.Errorf("%s: not wanted %s", what, line)
		}
	}
	b.t.FailNow()
}
