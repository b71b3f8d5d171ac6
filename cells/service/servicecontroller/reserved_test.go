package servicecontroller

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestExternalIPs_ReservedPorts: a Service whose external IP is an address of the node or of an API server does not get the ports on which the node or the
// API server listens. Other addresses and ports are served.
func TestExternalIPs_ReservedPorts(t *testing.T) {
	t.Parallel()
	const own, api, endpoint, distant = "10.0.0.1", "10.0.0.77", "10.0.0.78", "192.0.2.9"
	for _, c := range []struct {
		addr     string
		port     uint16
		protocol string
		problem  string // after the address; empty: the Service owns it
	}{
		{own, 80, "TCP", ""},
		{own, 10250, "TCP", "is the port of the kubelet on this node"},
		{own, 10250, "UDP", ""},
		{distant, 10250, "TCP", ""},
		{own, 10256, "TCP", "is the port of the health check of the service proxy on this node"},
		{own, 4240, "TCP", "is the port of --cluster-health-port on this node"},
		{own, 8472, "UDP", "is the port of --tunnel-port on this node"},
		{own, 9962, "TCP", "is the port of --prometheus-serve-addr on this node"},
		{own, 30100, "UDP", "lies in --node-port-range, which is reserved for NodePorts and health checks on this node"},
		{distant, 30100, "UDP", ""},
		{api, 6443, "TCP", "belongs to the API server"},
		{api, 443, "TCP", ""},
		{endpoint, 8443, "TCP", "belongs to the API server"},
		{"10.0.0.79", 443, "TCP", "belongs to the API server"},
	} {
		t.Run(fmt.Sprint(c.addr, " ", c.port, c.protocol), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, DefaultConfig, &fakeIDs{})
			s := &k8s.Service{Namespace: "a", Name: "web", Type: "ClusterIP", ClusterIPs: ips("10.96.0.1"), ExternalIPs: ips(c.addr),
				Ports: []k8s.ServicePort{{Name: "x", Protocol: c.protocol, Port: c.port}}}
			b.insert(s, nodeaddresses.Address{Addr: netip.MustParseAddr(own), Device: "eth0", NodePort: true})
			b.state(sources.Synced)
			b.step()
			// Addresses of API servers that become known later count as well.
			b.insert(apiservers.Server{Server: "https://" + api + ":6443", Reachable: apiservers.Yes}, apiservers.Server{Server: "https://10.0.0.79"},
				apiservers.Server{Server: "https://api.example:6443"},
				&k8s.EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes", AddressType: "IPv4",
					Endpoints: []k8s.SliceEndpoint{{Addrs: ips(endpoint), Ready: true}}, Ports: []k8s.SlicePort{{Name: "https", Protocol: "TCP", Port: 8443}}})
			b.step()
			problem, at := "", fmt.Sprintf("%s:%d/%s", c.addr, c.port, c.protocol)
			if c.problem != "" {
				problem = "ExternalIPs " + at + ": " + c.problem
			}
			b.expect("problems", b.problemsOf(s.Key()), problem)
			owned := map[bool]string{true: "", false: "ExternalIPs of a/web"}[c.problem != ""]
			got := ""
			for a, of := range b.owned() {
				if a.String() == at {
					got = of[:len("ExternalIPs of a/web")]
				}
			}
			b.expect("owner of "+at, got, owned)
		})
	}
}

// TestExternalIPs_SliceOfAnotherUser: only the slice "kubernetes" has the addresses of API servers, because users may create slices with the label of its
// Service, which would withdraw the external IPs of other Services.
func TestExternalIPs_SliceOfAnotherUser(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	s := outer("a", "web", "10.96.0.1", "192.0.2.1", 1)
	slice := &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes-x", Service: "kubernetes", AddressType: "IPv4",
		Endpoints: []k8s.SliceEndpoint{{Addrs: ips("192.0.2.1"), Ready: true}}, Ports: []k8s.SlicePort{{Name: "https", Protocol: "TCP", Port: 80}}}
	b.insert(s, slice)
	b.state(sources.Synced)
	b.step()
	b.expect("a slice of another user", b.problemsOf("a/web"), "")
	ofServers := *slice
	ofServers.Name = "kubernetes"
	b.insert(&ofServers)
	b.step()
	b.expect("the slice of API servers", b.problemsOf("a/web"), "ExternalIPs 192.0.2.1:80/TCP: belongs to the API server")
	b.remove(&ofServers)
	b.step()
	b.expect("it is removed", b.problemsOf("a/web"), "")
}

// TestHostPort_ReservedPorts: a pod does not get a port on which the kubelet or the agent listens.
func TestHostPort_ReservedPorts(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("10.0.0.1"), Device: "eth0", NodePort: true},
		&k8s.Pod{Namespace: "a", Name: "p", UID: "u", Phase: "Running", PodIPs: ips("10.1.0.1"), HostPorts: []k8s.HostPort{
			{Protocol: "TCP", Port: 10250, Container: 80}, {Protocol: "UDP", Port: 10250, Container: 80}, {Protocol: "TCP", Port: 9962, Container: 80}}})
	b.state(sources.Synced)
	b.step()
	b.expect("owners", b.owners(), "10.0.0.1:10250/UDP HostPort a/p:host-port/u/10250[], 127.0.0.1:10250/UDP HostPort a/p:host-port/u/10250[]")
	b.expect("kubelet", b.problemsOf("a/p:host-port/u/10250"), "host port 10250/TCP: is the port of the kubelet on this node")
	b.expect("agent", b.problemsOf("a/p:host-port/u/9962"), "host port 9962/TCP: is the port of --prometheus-serve-addr on this node")
}

// TestNewListener_ReadsThePort: the port is parsed from an address in the syntax of flags.
func TestNewListener_ReadsThePort(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]uint16{"": 0, ":9962": 9962, "0.0.0.0:10256": 10256, "[::]:80": 80, "nothing": 0} {
		if got := agentconfig.NewListener("f", value).Listener; got.Port != want {
			t.Errorf("%q: port %d, want %d", value, got.Port, want)
		}
	}
}
