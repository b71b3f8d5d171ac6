package node_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit"
)

// world is a node with pods of three namespaces, the node itself and a host outside. Connections between these parties are tried and compared with the
// policies.
type world struct {
	*nodekit.Node
	parties []*party
	steps   int
}

// party is one end of connections.
type party struct {
	nodekit.NetNS
	name  string        // "namespace/pod", "node" or "outside"
	addrs [2]netip.Addr // IPv4, IPv6; invalid without the family
	pod   *nodekit.Pod  // nil for the node and the host outside
}

// Names of parties that are not pods.
const (
	theNode    = "node"
	theOutside = "outside"
)

// marker is a pod whose policy shows that all policies of the same step are enforced: see [world.apply].
const marker = "marker/marker"

// policyPods are the pods of a world with their labels and container ports, as in a manifest. Each namespace has a label "team" with its own name.
var policyPods = map[string]string{
	"x/a": "labels: {app: a, tier: front}}, spec: {containers: [{name: c, ports: [{name: web, containerPort: 80}, {name: dns, containerPort: 53, protocol: UDP}]}]}",
	"x/b": "labels: {app: b, tier: back}}, spec: {containers: [{name: c, ports: [{name: web, containerPort: 81}]}]}",
	"x/c": "labels: {app: c}}, spec: {containers: [{name: c}]}",
	"w/a": "labels: {app: a, tier: back}}, spec: {containers: [{name: c, ports: [{name: web, containerPort: 80}]}]}",
	"w/b": "labels: {app: b}}, spec: {containers: [{name: c}]}",
	"z/a": "labels: {app: a, tier: front}}, spec: {containers: [{name: c}]}",
	// The pod belongs to its namespace regardless of its own labels.
	"z/liar": "labels: {app: liar, io.kubernetes.pod.namespace: w, io.cilium.k8s.namespace.labels.team: w, team: w, kubernetes.io/metadata.name: w}}, " +
		"spec: {containers: [{name: c}]}",
	marker: "labels: {app: marker}}, spec: {containers: [{name: c}]}",
}

// newWorld starts the node and its pods. The agent gets additional flags.
func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	w := &world{Node: newNode(t, nodekit.Options{AgentArgs: args})}
	w.write(t, "pods.yaml", podManifests(policyPods))
	w.write(t, "namespaces.yaml", namespaceManifests(nil))
	w.write(t, "policies.yaml", w.mark())
	if err := w.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, w.Node)
	routeBack(t, w.Node)
	w.parties = []*party{
		{w.Host(), theNode, [2]netip.Addr{nodekit.UplinkIPv4.Addr(), nodekit.UplinkIPv6.Addr()}, nil},
		{w.OutsideHost(), theOutside, [2]netip.Addr{nodekit.OutsideIPv4.Addr(), nodekit.OutsideIPv6.Addr()}, nil},
	}
	for name := range policyPods {
		w.add(t, name)
	}
	slices.SortFunc(w.parties, func(a, b *party) int { return strings.Compare(a.name, b.name) })
	for _, p := range w.parties {
		echoDatagrams(t, p, p.addrs[:])
	}
	return w
}

// add attaches a pod that has a manifest.
func (w *world) add(t *testing.T, name string) *party {
	t.Helper()
	pod := addPod(t, w.Node, name)
	p := &party{pod, name, [2]netip.Addr{pod.Addr(false), pod.Addr(true)}, pod}
	w.parties = append(w.parties, p)
	return p
}

// party returns the party with a name.
func (w *world) party(name string) *party {
	i := slices.IndexFunc(w.parties, func(p *party) bool { return p.name == name })
	if i < 0 {
		panic("no party " + name)
	}
	return w.parties[i]
}

// write replaces a file of manifests atomically.
func (w *world) write(t *testing.T, name, text string) {
	t.Helper()
	if err := w.WriteManifest(name, text); err != nil {
		t.Fatal(err)
	}
}

func podManifests(pods map[string]string) string {
	var b strings.Builder
	for name, rest := range pods {
		namespace, pod, _ := strings.Cut(name, "/")
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Pod, metadata: {namespace: %s, name: %s, uid: %s-%s, %s}\n", namespace, pod, namespace, pod, rest)
	}
	return b.String()
}

// namespaceManifests returns the namespaces, with additional labels for some of them.
func namespaceManifests(labels map[string]string) string {
	var b strings.Builder
	for _, name := range []string{"w", "x", "z", "marker"} {
		more := labels[name]
		if more == "" {
			more = "team: " + name
		}
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {kubernetes.io/metadata.name: %s, %s}}}\n", name, name, more)
	}
	return b.String()
}

// apply replaces all policies, and waits until the new ones are enforced: the pod [marker] then replies on one of two ports, and after the next step on the
// other one.
func (w *world) apply(t *testing.T, policies string) {
	t.Helper()
	w.steps++
	w.write(t, "policies.yaml", policies+w.mark())
	eventually(t, func() error {
		if got := w.tryFor(t, 20*time.Millisecond, 0, []flow{{theOutside, marker, false, "udp", w.markedPort()}}); !got[0] {
			return fmt.Errorf("the policies are not in force: port %d of %s does not answer", w.markedPort(), marker)
		}
		return nil
	})
}

// mark returns the policy of the pod [marker]. markedPort is the port on which the pod replies under this policy, and did not reply before.
func (w *world) mark() string {
	return fmt.Sprintf("\n---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: marker, name: marker}, "+
		"spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{protocol: UDP, port: %d}]}]}}\n", w.markedPort())
}

func (w *world) markedPort() uint16 { return uint16(7000 + w.steps%2) }

// datagramPorts lists the ports on which every party replies to datagrams. A TCP connection gets a reply on all ports, at least a reset.
var datagramPorts = []uint16{53, 80, 7000, 7001}

// echoDatagrams serves these ports until the test ends.
func echoDatagrams(t *testing.T, at nodekit.NetNS, addrs []netip.Addr) {
	t.Helper()
	for _, addr := range addrs {
		for _, port := range datagramPorts {
			conn := listenDatagrams(t, at, netip.AddrPortFrom(addr, port))
			go func() {
				buffer := make([]byte, 2048)
				for {
					n, peer, err := conn.ReadFromUDPAddrPort(buffer)
					if err != nil {
						return
					}
					_, _ = conn.WriteToUDPAddrPort(buffer[:n], peer) // the other end detects a lost reply
				}
			}()
		}
	}
}

// flow is a connection to try.
type flow struct {
	from, to string
	ipv6     bool
	protocol string // "tcp", "udp" or "icmp"
	port     uint16 // of the destination; 0 for icmp
}

func (f flow) String() string {
	family := "IPv4"
	if f.ipv6 {
		family = "IPv6"
	}
	return fmt.Sprintf("%s -> %s %s %s/%d", f.from, f.to, family, f.protocol, f.port)
}

// try opens all connections at the same time and reports which ones got a reply.
func (w *world) try(t *testing.T, flows []flow) []bool {
	t.Helper()
	return w.tryFor(t, matrixTimeout, 0, flows)
}

// tryFor is [world.try] with another timeout, and with an id for all echo requests; 0 means a unique id for each.
func (w *world) tryFor(t *testing.T, timeout time.Duration, id uint16, flows []flow) []bool {
	t.Helper()
	tries := make([]*attempt, len(flows))
	bySource := map[string][]*attempt{}
	for i, f := range flows {
		to := w.party(f.to)
		tries[i] = &attempt{flow: f, addr: to.addrs[0], fd: -1, id: id}
		if f.ipv6 {
			tries[i].addr = to.addrs[1]
		}
		bySource[f.from] = append(bySource[f.from], tries[i])
	}
	var opening errgroup.Group
	for from, list := range bySource {
		place := w.party(from)
		opening.Go(func() error { return place.Do(func() error { return openAll(list) }) })
	}
	err := opening.Wait()
	defer closeAll(tries)
	if err == nil {
		err = await(tries, timeout)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := make([]bool, len(flows))
	for i, a := range tries {
		out[i] = a.answered
	}
	return out
}

// service is a protocol and a port that a matrix tries.
type service struct {
	protocol string
	port     uint16
}

// usual are the default services of cases.
var usual = []service{{"tcp", 80}, {"tcp", 81}, {"udp", 80}}

// flows lists all connections between all parties, except those that no policy selects: from a party to itself, and between the node and the host outside. It
// omits the marker.
func (w *world) flows(services []service) (all []flow) {
	for _, from := range w.parties {
		for _, to := range w.parties {
			if from == to || from.name == marker || to.name == marker || from.pod == nil && to.pod == nil {
				continue
			}
			for _, s := range services {
				for i, addr := range to.addrs {
					if addr.IsValid() {
						all = append(all, flow{from.name, to.name, i == 1, s.protocol, s.port})
					}
				}
			}
		}
	}
	return all
}

// denies tries all denied connections once: while no policy changes, none may get a reply at any time.
func (w *world) denies(t *testing.T, services []service, want func(flow) bool) {
	t.Helper()
	denied := slices.DeleteFunc(w.flows(services), want)
	for i, answered := range w.try(t, denied) {
		if answered {
			t.Errorf("%s is answered, and is denied all the time", denied[i])
		}
	}
}

// awaitLabels waits until the datapath knows pods by the identities of changed labels, "key=value" by the name of the pod: their endpoints and their addresses.
// Selectors use the labels of the same or of a later moment, so policies use these labels as well, and a reply on a denied connection from then on is a fault.
func (w *world) awaitLabels(t *testing.T, changed map[string]string) {
	t.Helper()
	eventually(t, func() error {
		rows, err := identitiesOf(t, w.Node)
		if err != nil {
			return err
		}
		facts, err := w.Waggle(t.Context(), "db", "show", "endpoint-facts")
		if err != nil {
			return err
		}
		addresses, err := w.Waggle(t.Context(), "db", "show", "ipcache")
		if err != nil {
			return err
		}
		for name, label := range changed {
			p := w.party(name)
			row := rows[attachmentOf(p.pod)]
			if key, value, _ := strings.Cut(label, "="); row.Labels["k8s:"+key] != value {
				return fmt.Errorf("%s has %+v, without %s", name, row, label)
			}
			const identityOfFacts, identityOfAddress = 5, 1 // columns
			number := fmt.Sprint(row.Identity)
			if !written(facts, fmt.Sprint(row.EndpointID), identityOfFacts, number) {
				return fmt.Errorf("the datapath does not know %s by %s:\n%s", name, number, facts)
			}
			for _, addr := range p.addrs {
				if prefix := netip.PrefixFrom(addr, addr.BitLen()).String(); !written(addresses, prefix, identityOfAddress, number) {
					return fmt.Errorf("%s of %s is not known by %s:\n%s", prefix, name, number, addresses)
				}
			}
		}
		return nil
	})
}

// written reports whether a table has a row of a key with a value in one of its columns that is in the kernel.
func written(table, key string, column int, value string) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > column && fields[0] == key && fields[column] == value && fields[len(fields)-1] == "Done" {
			return true
		}
	}
	return false
}

// compare tries all connections. A reply on a denied connection fails the test at once: [world.apply] or [world.awaitLabels] has waited until the change is
// enforced, so any leak is a fault, however brief. An allowed connection without a reply is tried again for up to awaitFor.
func (w *world) compare(t *testing.T, services []service, want func(flow) bool) {
	t.Helper()
	left := w.flows(services)
	all := len(left)
	for deadline := time.Now().Add(awaitFor); ; {
		var leaks, missing []flow
		for i, answered := range w.try(t, left) {
			switch f := left[i]; {
			case answered && !want(f):
				leaks = append(leaks, f)
			case !answered && want(f):
				missing = append(missing, f)
			}
		}
		if len(leaks) > 0 {
			t.Errorf("%d of %d connections are answered, and are denied:%s", len(leaks), all, some(leaks))
			return
		}
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d of %d connections are not answered, and are allowed:%s", len(missing), all, some(missing))
			return
		}
		left = missing // connections with a reply keep working: nothing changes meanwhile
	}
}

// some lists at most 20 connections, one a line.
func some(flows []flow) (lines string) {
	for _, f := range flows[:min(20, len(flows))] {
		lines += "\n" + f.String()
	}
	return lines
}
