package servicecontroller

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// hostPortMark separates the name of the pod from the rest in the name of a host port's service. Names in Kubernetes contain no colon.
const hostPortMark = ":host-port/"

// hostPortName returns the name of the service of a host port. The UID distinguishes a pod from a later pod with the same name.
func hostPortName(p *k8s.Pod, port uint16) string {
	return p.Key() + hostPortMark + p.UID + "/" + strconv.Itoa(int(port))
}

// hostPortPod returns the pod of a host port's service, and whether the service is one.
func hostPortPod(service string) (pod string, is bool) {
	pod, _, is = strings.Cut(service, hostPortMark)
	return pod, is
}

// servesHostPorts reports whether the host ports of a pod are served.
func (w *world) servesHostPorts(p *k8s.Pod) bool {
	return w.hostPort && !p.HostNetwork && !p.Ended() && len(p.PodIPs) > 0
}

// hostPortsByName returns the host ports of a pod by the name of their service. Ports of one service differ in protocol or address.
func hostPortsByName(p *k8s.Pod) map[string][]k8s.HostPort {
	ports := make(map[string][]k8s.HostPort, len(p.HostPorts))
	for _, h := range p.HostPorts {
		name := hostPortName(p, h.Port)
		ports[name] = append(ports[name], h)
	}
	return ports
}

// hostPortService models the service of some host ports of a pod. It returns nil if there are none.
func (w *world) hostPortService(name string, p *k8s.Pod, ports []k8s.HostPort) *model {
	if !w.servesHostPorts(p) || len(ports) == 0 {
		return nil
	}
	m := &model{created: p.Created, placed: true, maglev: w.agent.Maglev, row: &services.Service{Name: name, Type: typeHostPort}}
	b := builder{world: w, model: m}
	for i := range ports {
		b.hostPort(p, &ports[i])
	}
	b.arrange()
	return m
}

// hostPort claims the frontends of one host port, in the families that the pod has.
func (b *builder) hostPort(p *k8s.Pod, h *k8s.HostPort) {
	protocol, err := loadbalancer.ParseProtocol(h.Protocol)
	if err != nil {
		b.problem("host port %d: %v", h.Port, err)
		return
	}
	if b.agent.NodePort(h.Port) {
		b.problem("host port %d: lies in --node-port-range, which is reserved for Services", h.Port)
		return
	}
	if owner := b.ports[portOf{h.Port, protocol}]; owner != "" {
		b.problem("host port %d/%s: is the port of %s on this node", h.Port, protocol, owner)
		return
	}
	if h.Addr.IsValid() && !h.Addr.IsLoopback() && !b.isOwn(h.Addr) {
		b.problem("host port %d: hostIP %s is not an address of this node", h.Port, h.Addr)
		return
	}
	for _, is4 := range []bool{true, false} {
		at, has := addressOf(p, is4)
		if !has || !b.serves(is4) || h.Addr.IsValid() && h.Addr.Is4() != is4 {
			continue
		}
		e := endpoint{Address: loadbalancer.Address{Addr: at, Port: h.Container, Protocol: protocol}, state: backends.Active, traits: local,
			node: b.agent.NodeName, zone: b.zone, pod: p.Key(), mentions: 1}
		b.is4 = is4
		g := b.group("", protocol)
		g.endpoints = []endpoint{e}
		addrs := []netip.Addr{h.Addr}
		if !h.Addr.IsValid() {
			addrs = b.onNode(is4)
		}
		for _, addr := range addrs {
			b.claim(claim{Address: loadbalancer.Address{Addr: addr, Port: h.Port, Protocol: protocol}, kind: frontends.HostPort, group: g})
		}
	}
}

// addressOf returns the first usable address of a pod in a family.
func addressOf(p *k8s.Pod, is4 bool) (netip.Addr, bool) {
	for _, a := range p.PodIPs {
		if a.Is4() == is4 && usable(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}
