package node_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// serviceFixture is a node whose services are tested from pods, from the node itself and from outside. Servers reply with their name and the address of the client.
// Sockets of a place of the node belong to its cgroup and are translated before they send; see [modes].
type serviceFixture struct {
	*nodekit.Node
	pods map[string]*nodekit.Pod
}

// modes are the two ways of translation: at sockets, and, without translation at sockets, in the packets of a pod.
var modes = []struct {
	name    string
	packets bool
	args    []string
}{{"sockets", false, nil}, {"packets", true, []string{"--bpf-lb-sock=false"}}}

// networks are the transports of the servers.
var networks = []string{"tcp", "udp"}

// newServiceFixture starts the node. The agent gets additional flags.
func newServiceFixture(t *testing.T, args ...string) *serviceFixture {
	t.Helper()
	m := newStoppedServiceFixture(t, args...)
	m.start(t)
	return m
}

// newStoppedServiceFixture creates the node and leaves its start to the test, see [serviceFixture.start].
func newStoppedServiceFixture(t *testing.T, args ...string) *serviceFixture {
	t.Helper()
	return &serviceFixture{Node: newNode(t, nodekit.Options{AgentArgs: args}), pods: map[string]*nodekit.Pod{}}
}

func (m *serviceFixture) start(t *testing.T) {
	t.Helper()
	if err := m.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, m.Node)
}

// pod attaches a pod of the namespace "shop", which serves TCP and UDP on the ports.
func (m *serviceFixture) pod(t *testing.T, name string, ports ...uint16) *nodekit.Pod {
	t.Helper()
	m.pods[name] = addPod(t, m.Node, "shop/"+name)
	for _, port := range ports {
		serveName(t, m.pods[name], name, port)
	}
	return m.pods[name]
}

// endpoint is an endpoint of a slice, as in a manifest without its address.
type endpoint struct {
	pod  string // a pod of the fixture
	node string // "" is this node
	rest string // additional fields, as "conditions: {ready: false}"
}

// slices writes one slice for each family with the addresses of pods. ports has the form of a manifest, as "[{port: 80}]".
func (m *serviceFixture) slices(t *testing.T, service, ports string, endpoints ...endpoint) {
	t.Helper()
	var b strings.Builder
	for i, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(&b, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: %s-%d, "+
			"labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: %s, endpoints: [", service, i, service, family, ports)
		for n, e := range endpoints {
			if n > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "{addresses: [%q], nodeName: %s, targetRef: {kind: Pod, namespace: shop, name: %s}", m.pods[e.pod].Addr(i == 1),
				cmp.Or(e.node, "node-1"), e.pod)
			if e.rest != "" {
				b.WriteString(", " + e.rest)
			}
			b.WriteString("}")
		}
		b.WriteString("]}\n")
	}
	m.write(t, service+"-slices.yaml", b.String())
}

// slicesOutside writes one slice for each family with the address of the host outside, as if it were on another node.
func (m *serviceFixture) slicesOutside(t *testing.T, service, ports string) {
	t.Helper()
	var b strings.Builder
	for i, f := range families {
		fmt.Fprintf(&b, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: %s-%d, "+
			"labels: {kubernetes.io/service-name: %s}}, addressType: %s, ports: %s, endpoints: [{addresses: [%q], nodeName: node-2}]}\n",
			service, i, service, f.name, ports, outsideAddr(f.ipv6))
	}
	m.write(t, service+"-slices.yaml", b.String())
}

// service writes one service of the namespace "shop"; spec has the form of a manifest, without braces.
func (m *serviceFixture) service(t *testing.T, name, spec string) {
	t.Helper()
	m.write(t, name+"-service.yaml", fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: %s}, spec: {%s}}\n", name, spec))
}

func (m *serviceFixture) write(t *testing.T, name, text string) {
	t.Helper()
	if err := m.WriteManifest(name, text); err != nil {
		t.Fatal(err)
	}
}

// served waits until the datapath matches the tables for an address, with the given number of backends.
func (m *serviceFixture) served(t *testing.T, address string, backends int) {
	t.Helper()
	eventually(t, func() error {
		ids, err := m.backendIDs(t, address)
		if err == nil && len(ids) != backends {
			err = fmt.Errorf("the frontend %s has the backends %v, want %d", address, ids, backends)
		}
		return err
	})
}

// servedBy waits until the datapath matches the tables for an address, with exactly these backends. A count does not suffice, because the previous backends may
// have been as many.
func (m *serviceFixture) servedBy(t *testing.T, address string, backends []string) {
	t.Helper()
	slices.Sort(backends)
	eventually(t, func() error {
		text, err := m.Waggle(t.Context(), "db", "show", "backends")
		if err != nil {
			return err
		}
		addresses := map[string]string{} // by ID
		for line := range strings.Lines(text) {
			if fields := strings.Fields(line); len(fields) > 1 {
				addresses[fields[1]] = fields[0]
			}
		}
		ids, err := m.backendIDs(t, address)
		if err != nil {
			return err
		}
		var have []string
		for _, id := range ids {
			have = append(have, addresses[id])
		}
		if slices.Sort(have); !slices.Equal(have, backends) {
			return fmt.Errorf("the frontend %s has the backends %q, want %q", address, have, backends)
		}
		return nil
	})
}

// backendIDs returns the backends of an address, all of which the datapath must have.
func (m *serviceFixture) backendIDs(t *testing.T, address string) ([]string, error) {
	text, err := m.Waggle(t.Context(), "db", "show", "frontends")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != address {
			continue
		}
		if fields[len(fields)-1] != "Done" {
			return nil, fmt.Errorf("the frontend is %q, want Done", strings.TrimSpace(line))
		}
		return strings.FieldsFunc(fields[5], func(r rune) bool { return r == ',' || r == '-' }), nil
	}
	return nil, fmt.Errorf("no frontend %s in:\n%s", address, text)
}

// ready waits for the frontends of an address over TCP and UDP, see [serviceFixture.served].
func (m *serviceFixture) ready(t *testing.T, to netip.AddrPort, backends int) {
	t.Helper()
	for _, network := range networks {
		m.served(t, to.String()+"/"+strings.ToUpper(network), backends)
	}
}

// gone waits until an address has no frontend.
func (m *serviceFixture) gone(t *testing.T, to netip.AddrPort) {
	t.Helper()
	eventually(t, func() error {
		text, err := m.Waggle(t.Context(), "bpf", "lb", "list")
		if err == nil && strings.Contains(text, to.String()+"/") {
			err = fmt.Errorf("%s is still served:\n%s", to, text)
		}
		return err
	})
}

// served is the reply of a server.
type served struct {
	server string
	client netip.Addr // as the server sees it
}

// briefTimeout is the timeout of replies that must not arrive, and of requests that are repeated; others have [answerTimeout].
const briefTimeout = 2 * time.Second

// request sends one request from a place, which must get a reply or a rejection. The socket is connected, so the kernel accepts a reply only from the requested
// address.
func request(ctx context.Context, from nodekit.NetNS, network string, to netip.AddrPort) (served, error) {
	return requestWith(ctx, from, &net.Dialer{Timeout: answerTimeout}, network, to)
}

// requestBriefly does the same as ask with a short timeout.
func requestBriefly(ctx context.Context, from nodekit.NetNS, network string, to netip.AddrPort) (served, error) {
	return requestWith(ctx, from, &net.Dialer{Timeout: briefTimeout}, network, to)
}

// requestWith uses the dialer's timeout for the reply as well, if it is not 0.
func requestWith(ctx context.Context, from nodekit.NetNS, dialer *net.Dialer, network string, to netip.AddrPort) (a served, err error) {
	err = nodekit.Bind(from, func() error {
		conn, err := dialer.DialContext(ctx, network, to.String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		a, err = requestWithin(conn, cmp.Or(dialer.Timeout, answerTimeout))
		return err
	})
	return a, err
}

// requestOn sends another request on a connection, which must get a reply.
func requestOn(conn net.Conn) (served, error) { return requestWithin(conn, answerTimeout) }

func requestWithin(conn net.Conn, limit time.Duration) (served, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return served{}, err
	}
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return served{}, err
	}
	buffer := make([]byte, 256)
	n, err := conn.Read(buffer)
	if err != nil {
		return served{}, err
	}
	name, client, _ := strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
	addr, err := netip.ParseAddr(client)
	return served{name, addr}, err
}

// serveName replies to requests at a place, over TCP and UDP and in both families, with the server's name and the client's address.
func serveName(t *testing.T, at nodekit.NetNS, name string, port uint16) {
	t.Helper()
	reply := func(client net.Addr) []byte {
		return fmt.Appendf(nil, "%s %s\n", name, netip.MustParseAddrPort(client.String()).Addr().Unmap())
	}
	var listener net.Listener
	var datagrams []net.PacketConn
	if err := at.Do(func() (err error) {
		if listener, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port)); err != nil {
			return err
		}
		// One socket for each address: a reply leaves from the requested address.
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			ip := addr.(*net.IPNet).IP
			if ip.IsLinkLocalUnicast() {
				continue
			}
			conn, err := net.ListenPacket("udp", net.JoinHostPort(ip.String(), fmt.Sprint(port)))
			if err != nil {
				return err
			}
			datagrams = append(datagrams, conn)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = listener.Close()
		for _, conn := range datagrams {
			_ = conn.Close()
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if _, err := conn.Write(reply(conn.RemoteAddr())); err != nil {
						return
					}
				}
			}()
		}
	}()
	for _, conn := range datagrams {
		go func() {
			buffer := make([]byte, 2048)
			for {
				_, client, err := conn.ReadFrom(buffer)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					_, _ = conn.WriteTo(reply(client), client)
				}
			}
		}()
	}
}

// reaches requires that exactly the named servers reply, in enough tries to exclude that one is missing by chance.
func (m *serviceFixture) reaches(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort, servers ...string) {
	t.Helper()
	missing := slices.Clone(servers)
	for range 60 * len(servers) { // the last of three is missing with a probability below 10^-30
		a, err := request(t.Context(), from, network, to)
		if err != nil {
			t.Errorf("ask %s over %s: %v", to, network, err)
			return
		}
		if !slices.Contains(servers, a.server) {
			t.Errorf("ask %s over %s: %s answers, want one of %v", to, network, a.server, servers)
			return
		}
		if missing = slices.DeleteFunc(missing, func(s string) bool { return s == a.server }); len(missing) == 0 {
			return
		}
	}
	t.Errorf("ask %s over %s: %v never answer", to, network, missing)
}

// rejected requires that a request is rejected at once, and not dropped.
func (m *serviceFixture) rejected(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort) {
	t.Helper()
	_, err := request(t.Context(), from, network, to)
	if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, io.EOF) {
		t.Errorf("ask %s over %s: %v, want to be refused", to, network, err)
	}
}

// getsNoReply requires that a request gets no reply.
func (m *serviceFixture) getsNoReply(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort) {
	t.Helper()
	var timeout net.Error
	if a, err := requestBriefly(t.Context(), from, network, to); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("ask %s over %s: %+v, %v; want no answer", to, network, a, err)
	}
}
