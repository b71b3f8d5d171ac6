// Package policytest generates random clusters, policies and policy lookups for tests that compare evaluators. A seed always generates the same result.
package policytest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Cluster is the name of every random cluster.
const Cluster = "test"

// HiddenKey is the key of a pod label that is not part of identities.
const HiddenKey = "hidden"

// World is a cluster and its policies.
type World struct {
	Seed        uint64
	Environment policy.Environment
	Options     policy.Options
	Namespaces  []*k8s.Namespace
	Pods        []Pod
	Others      []Other // peers that are not pods
	Kubernetes  []*k8s.NetworkPolicy
	Cilium      []*cilium.Policy
	Groups      []*cilium.CIDRGroup
	Services    []*k8s.Service
	Slices      []*k8s.EndpointSlice // of these Services
}

// Pod is an endpoint.
type Pod struct {
	Object         *k8s.Pod
	Identity       uint32
	Labels         map[string]string // all labels, by which policies select it as a subject
	IdentityLabels map[string]string // labels of its identity
	Addrs          [2]netip.Addr     // IPv4 and IPv6
	Ports          []policy.NamedPort
}

// Other is a peer with a fixed identity.
type Other struct {
	Identity uint32
	Addr     netip.Addr
}

// Size limits a world.
type Size struct {
	Pods, Kubernetes, Cilium int // maximum numbers; a world has at least one pod
}

// Small is a size with which several rules affect most lookups.
var Small = Size{Pods: 8, Kubernetes: 5, Cilium: 5}

// New generates a world. The same seed and size generate the same world.
func New(seed uint64, size Size) *World {
	r := &random{rand.New(rand.NewPCG(seed, 1))}
	w := &World{Seed: seed, Environment: policy.Environment{Cluster: Cluster, Keeps: Keeps}, Options: policy.Options{
		Mode: pick(r, policy.Default, policy.Default, policy.Default, policy.Default, policy.Default,
			policy.Default, policy.Default, policy.Default, policy.Always, policy.Always, policy.Never),
		AllowLocalhost: r.oneIn(2), CIDRMatchesNodes: r.oneIn(3)}}
	w.Environment.APIServerHere = r.oneIn(4)
	if r.oneIn(2) {
		w.Environment.APIServers = apiServers()
	}
	for _, name := range namespaces {
		w.Namespaces = append(w.Namespaces, &k8s.Namespace{Name: name, Labels: r.labels(nsLabels, 2)})
	}
	numbers := map[string]uint32{}
	for i := range 1 + r.IntN(size.Pods) {
		w.Pods = append(w.Pods, w.pod(r, i, numbers))
	}
	w.Others = others()
	w.Environment.CIDRGroups = policy.CIDRGroups{}
	for i, name := range groupNames[:r.IntN(len(groupNames))] {
		w.Groups = append(w.Groups, r.cidrGroup(name))
		w.Environment.CIDRGroups[name] = w.Groups[i]
	}
	for _, namespace := range namespaces {
		for _, name := range serviceNames[:1+r.IntN(2)] {
			w.Services = append(w.Services, r.service(namespace, name))
		}
	}
	for _, s := range w.Services {
		w.Slices = append(w.Slices, w.slices(r, s)...)
	}
	w.Environment.Services, w.Environment.ServicesIn = w.service, w.servicesIn
	for i := range r.IntN(size.Kubernetes + 1) {
		w.Kubernetes = append(w.Kubernetes, r.kubernetes(i))
	}
	for i := range r.IntN(size.Cilium + 1) {
		w.Cilium = append(w.Cilium, r.cilium(i))
	}
	return w
}

// Keeps is the label filter of every world.
func Keeps(label string) bool { return label != labels.SourceK8s+":"+HiddenKey }

func (w *World) pod(r *random, i int, numbers map[string]uint32) Pod {
	namespace := w.Namespaces[r.IntN(len(w.Namespaces))]
	object := &k8s.Pod{Namespace: namespace.Name, Name: fmt.Sprintf("pod-%d", i), ServiceAccount: "default", Labels: r.labels(podLabels, 3)}
	if r.oneIn(8) { // labels that imitate reserved labels and labels of namespaces
		object.Labels[pick(r, "reserved:host", "reserved:world", labels.KeyNamespace, labels.KeyNamespaceLabels+".team")] = namespaces[0]
	}
	p := Pod{Object: object, Labels: labels.OfPod(Cluster, object, namespace), Addrs: [2]netip.Addr{
		netip.AddrFrom4([4]byte{10, 0, byte(i % 3), byte(10 + i)}),
		netip.MustParseAddr(fmt.Sprintf("fd00::%d:%x", i%3, 10+i))}}
	p.IdentityLabels = maps.Clone(p.Labels)
	maps.DeleteFunc(p.IdentityLabels, func(label, _ string) bool { return !Keeps(label) })
	key := cilium.LabelsKey(p.IdentityLabels)
	if numbers[key] == 0 {
		numbers[key] = identity.ClusterMin + uint32(len(numbers))
	}
	p.Identity = numbers[key]
	for _, protocol := range []string{"TCP", "UDP"} {
		for _, name := range portNames {
			if r.oneIn(3) {
				port := k8s.ContainerPort{Name: name, Protocol: protocol, Number: pick(r, portNumbers...)}
				object.Ports = append(object.Ports, port)
				p.Ports = append(p.Ports, policy.NamedPort{Name: name, Protocol: protocolNumbers[protocol], Number: port.Number})
			}
		}
	}
	return p
}

// others returns the local host, other nodes, the API server, the world and a health endpoint.
func others() []Other {
	at := func(id uint32, text string) Other { return Other{id, netip.MustParseAddr(text)} }
	return []Other{
		at(identity.Host, "192.168.0.1"), at(identity.Host, "fd01::1"), at(identity.Host, "10.0.0.1"),
		at(identity.RemoteNode, "192.168.0.2"), at(identity.RemoteNode, "fd01::2"), at(identity.KubeAPIServer, "192.168.0.3"),
		at(identity.WorldIPv4, "203.0.113.1"), at(identity.WorldIPv4, "203.0.113.129"), at(identity.WorldIPv4, "10.0.0.200"),
		at(identity.WorldIPv4, "192.168.0.200"), at(identity.WorldIPv6, "2001:db8::1"), at(identity.WorldIPv6, "fd00::f"),
		at(identity.Health, "10.0.0.2"),
	}
}

// apiServers returns addresses on another node and outside the cluster.
func apiServers() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("192.168.0.3"), netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}
}

// Policies returns all policies, parsed.
func (w *World) Policies() []*policy.Policy {
	var all []*policy.Policy
	for _, p := range w.Kubernetes {
		all = append(all, policy.FromKubernetes(p, w.Environment))
	}
	for _, p := range w.Cilium {
		all = append(all, policy.FromCilium(p, w.Environment))
	}
	return all
}

// Identities returns the labels of all identities.
func (w *World) Identities() map[uint32]map[string]string {
	all := map[uint32]map[string]string{}
	for _, p := range w.Pods {
		all[p.Identity] = p.IdentityLabels
	}
	for _, o := range w.Others {
		all[o.Identity] = identity.Labels(o.Identity)
	}
	return all
}

// Subject returns the pod as the subject of a lookup.
func (p *Pod) Subject() policy.Party {
	return policy.Party{Identity: p.Identity, Labels: p.Labels, Addr: p.Addrs[0], Ports: p.Ports}
}

// Peers returns the pod as a peer, once for each address.
func (p *Pod) Peers() []policy.Party {
	peers := make([]policy.Party, 0, len(p.Addrs))
	for _, addr := range p.Addrs {
		peers = append(peers, policy.Party{Identity: p.Identity, Labels: p.IdentityLabels, Addr: addr, Ports: p.Ports})
	}
	return peers
}

// Peers returns all possible peers of a pod: every pod at each address, and every other peer.
func (w *World) Peers() []policy.Party {
	var all []policy.Party
	for i := range w.Pods {
		all = append(all, w.Pods[i].Peers()...)
	}
	for _, o := range w.Others {
		all = append(all, policy.Party{Identity: o.Identity, Labels: identity.Labels(o.Identity), Addr: o.Addr})
	}
	return all
}

// Question returns the nth random lookup, whose subject is a pod of the world. Rules often match its protocol and port, or miss them by one condition.
func (w *World) Question(n uint64) policy.Question {
	r := &random{rand.New(rand.NewPCG(w.Seed, 2+n))}
	peers := w.Peers()
	return policy.Question{
		Subject: w.Pods[r.IntN(len(w.Pods))].Subject(), Peer: peers[r.IntN(len(peers))], Direction: pick(r, policy.Ingress, policy.Egress),
		Protocol: pick(r, policy.ProtocolTCP, policy.ProtocolTCP, policy.ProtocolUDP, policy.ProtocolSCTP, policy.ProtocolICMP,
			policy.ProtocolICMPv6, protocolGRE),
		Port: pick[uint16](r, 0, 3, 8, 128, 52, 53, 79, 80, 81, 443, 8079, 8080, 8081, 65535),
	}
}

// protocolGRE represents protocols that no rule names.
const protocolGRE uint8 = 47
