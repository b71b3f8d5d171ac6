package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// The address of a node changes in its Node before it changes in the CiliumEndpoints of its pods, and then the other way round. On another node the pods keep
// their identities and their node. A policy on that node allows one of the pods: none of its packets is lost, and no packet of the other pod arrives.
func TestPrivilegedNative_NodeAddressChanges_PodsKeepIdentities(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=native", "--auto-direct-node-routes")
	one, two := all[0], all[1]
	one.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}]}`)})
	one.awaitRow(t, "policies", "default/server")
	server := one.startPod(t, "server", map[string]string{"app": "server"})
	client := two.startPod(t, "client", map[string]string{"app": "client"})
	other := two.startPod(t, "other", map[string]string{"app": "other"})
	identities := map[netip.Addr]uint32{}
	var paths []load.Path
	for _, family := range families {
		for _, pod := range []*nodekit.Pod{client, other} {
			identities[pod.Addr(family.ipv6)] = two.identityOf(t, pod).Identity
			awaitIdentity(t, one, pod.Addr(family.ipv6), two.identityOf(t, pod).Identity)
		}
		paths = append(paths, load.Path{Name: "client to server " + family.name, From: client, To: server, Addr: server.Addr(family.ipv6)})
	}

	// The node has both addresses all the time, so that packets arrive under each of them. Only objects change.
	first := [2]netip.Addr{two.UplinkAddr(false), two.UplinkAddr(true)}
	second := [2]netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")}
	if err := two.Do(func() error {
		return errors.Join(addAddr("eth0", netip.PrefixFrom(second[0], nodekit.UplinkIPv4.Bits())),
			addAddr("eth0", netip.PrefixFrom(second[1], nodekit.UplinkIPv6.Bits())))
	}); err != nil {
		t.Fatal(err)
	}
	for _, addr := range second {
		eventually(t, func() error { return nodekit.PingBriefly(one.Host(), addr, 56) })
	}

	const node, endpoint = "nodes", "cilium-endpoints"
	rejected := func(r *http.Request) (int, string) { // so the agent cannot write its CiliumEndpoints
		if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/ciliumendpoints") {
			return http.StatusServiceUnavailable, ""
		}
		return 0, ""
	}
	l := load.StartFor(t, load.Rates{Connections: 2 * len(paths), Messages: 100, Datagrams: 600, Connects: 40}, paths, nil)
	denials := deny(t, [2]*nodekit.Pod{other, server})
	for _, step := range []struct {
		what  string
		do    func(t *testing.T)
		names map[string]netip.Addr // address in each table of the first node
	}{
		{"the Node has the second address", func(*testing.T) {
			two.server.Fault(rejected)
			two.putNode(second[:]...)
		}, map[string]netip.Addr{node: second[0], endpoint: first[0]}},
		{"the CiliumEndpoints have the second address", func(*testing.T) { two.server.Fault(nil) }, map[string]netip.Addr{node: second[0], endpoint: second[0]}},
		{"the CiliumEndpoints have the first address", func(t *testing.T) {
			two.server.Fault(rejected)
			for _, pod := range []*nodekit.Pod{client, other} {
				putNodeAddress(t, two, pod, first[0])
			}
		}, map[string]netip.Addr{node: second[0], endpoint: first[0]}},
		{"the Node has the first address", func(*testing.T) { two.putNode(first[:]...) }, map[string]netip.Addr{node: first[0], endpoint: first[0]}},
	} {
		t.Run(step.what, func(t *testing.T) {
			t.Log(l.At())
			step.do(t)
			awaitNames := func() {
				one.awaitAddress(t, node, two.Name(), step.names[node])
				for _, pod := range []*nodekit.Pod{client, other} {
					one.awaitAddress(t, endpoint, "default/"+pod.Name, step.names[endpoint])
				}
			}
			awaitNames()
			for range 10 {
				if err := haveIdentities(t, one, two.Name(), identities); err != nil {
					t.Error(err)
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			awaitNames() // no agent has changed them meanwhile
		})
	}
	two.server.Fault(nil)
	denials.end(t)
	undisturbed(t, l)
}

// putNodeAddress changes the node address in the CiliumEndpoint of a pod.
func putNodeAddress(t *testing.T, n kubeNode, pod *nodekit.Pod, addr netip.Addr) {
	t.Helper()
	var object ciliumv2.CiliumEndpoint
	if !n.server.Get(kubeapi.CiliumEndpoints, "default", pod.Name, &object) || object.Status.Networking == nil {
		t.Fatalf("the CiliumEndpoint of pod %s is %+v", pod.Name, object)
	}
	object.Status.Networking.Node = addr.String()
	n.server.Put(&object)
}

// awaitAddress waits until a row of a table has an address.
func (n kubeNode) awaitAddress(t *testing.T, table, row string, addr netip.Addr) {
	t.Helper()
	eventually(t, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", table)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, row+" ") && holds(line, addr.String()) {
				return nil
			}
		}
		return fmt.Errorf("%s has no row %s with %s:\n%s", table, row, addr, out)
	})
}

// haveIdentities returns an error unless the table ipcache has the identities of addresses of pods of another node.
func haveIdentities(t *testing.T, n kubeNode, host string, want map[netip.Addr]uint32) error {
	t.Helper()
	out, err := n.Waggle(t.Context(), "db", "show", "ipcache", "-o", "json")
	if err != nil {
		return err
	}
	var rows []*ipcache.Entry
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return err
	}
	have := map[netip.Prefix]*ipcache.Entry{}
	for _, row := range rows {
		have[row.Prefix()] = row
	}
	var errs []error
	for addr, identity := range want {
		if row := have[netip.PrefixFrom(addr, addr.BitLen())]; row == nil || row.Identity != identity || row.Node() != host || row.Source != ipcache.SourceRemote {
			errs = append(errs, fmt.Errorf("the row of %s is %+v, want identity %d on %s", addr, row, identity, host))
		}
	}
	return errors.Join(errs...)
}
