package node_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/test/nodekit"
)

// healthOf waits until a node reports the wanted states of the addresses of all nodes, by node and path. It asks the agent to probe all nodes before each
// check.
func healthOf(t *testing.T, n *nodekit.Node, want map[string]nodehealth.State) {
	t.Helper()
	eventually(t, func() error {
		if _, err := n.Waggle(t.Context(), "health", "status", "--probe"); err != nil {
			return err
		}
		rows, text, err := healthRows(t, n)
		if err != nil {
			return err
		}
		var errs []error
		for _, row := range rows {
			name := row.Node + "/" + string(row.Kind)
			if want[name] != row.State() {
				errs = append(errs, fmt.Errorf("%s is %s, want %q: %s", name, row.State(), want[name], row.Problem()))
			}
		}
		if len(rows) != len(want) {
			errs = append(errs, fmt.Errorf("%d rows, want %d:\n%s", len(rows), len(want), text))
		}
		return errors.Join(errs...)
	})
}

// healthRows returns the rows of node-health, and their text.
func healthRows(t *testing.T, n *nodekit.Node) (rows []nodehealth.Path, text string, err error) {
	t.Helper()
	if text, err = n.Waggle(t.Context(), "db", "show", "node-health", "-o", "json"); err == nil {
		err = json.Unmarshal([]byte(text), &rows)
	}
	return rows, text, err
}

// shows waits until the output of a command contains all parts.
func shows(t *testing.T, n *nodekit.Node, command string, parts ...string) {
	t.Helper()
	eventually(t, func() error {
		text, err := n.Waggle(t.Context(), strings.Fields(command)...)
		for _, part := range parts {
			if err == nil && !strings.Contains(text, part) {
				err = fmt.Errorf("waggle %s does not say %q:\n%s", command, part, text)
			}
		}
		return err
	})
}

// The link of a node fails and returns; its agent dies and returns; the node is removed. The other node reports each of these states, and reports itself as
// healthy.
func TestPrivilegedNodeHealth_NodeFailsAndRecovers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, "--prometheus-serve-addr", metricsAddress)
	one, two := c.Nodes[0], c.Nodes[1]
	const good, bad = nodehealth.Reachable, nodehealth.Unreachable
	well := map[string]nodehealth.State{"node-1/host4": good, "node-1/host6": good, "node-2/host4": good, "node-2/host6": good}
	lost := map[string]nodehealth.State{"node-1/host4": good, "node-1/host6": good, "node-2/host4": bad, "node-2/host6": bad}
	healthOf(t, one, well)
	healthOf(t, two, well)
	shows(t, one, "status", "Cluster health:        2/2 reachable\n")
	shows(t, one, "health status", "2/2 reachable", "default/node-1 (localhost)", "2/2")
	if err := setPort(two, false); err != nil {
		t.Fatal(err)
	}
	healthOf(t, one, lost)
	shows(t, one, "status", "Cluster health:        1/2 reachable; unreachable: node-2\n")
	shows(t, one, "health status --verbose", "Host connectivity to "+two.UplinkAddr(false).String(), "ICMP to stack:   Connection timed out")
	shows(t, one, "node list", "unreachable", "reachable")
	eventually(t, func() error {
		samples, err := scrape(one)
		if err == nil && samples["cilium_unreachable_nodes"] != 1 {
			err = fmt.Errorf("cilium_unreachable_nodes is %v, want 1", samples["cilium_unreachable_nodes"])
		}
		return err
	})
	if err := setPort(two, true); err != nil {
		t.Fatal(err)
	}
	healthOf(t, one, well)
	if err := two.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	healthOf(t, one, lost)
	shows(t, one, "health status --verbose", "ICMP to stack:   OK, RTT=", "HTTP to agent:   connection refused")
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two)
	healthOf(t, one, well)
	if err := c.Forget(two); err != nil {
		t.Fatal(err)
	}
	healthOf(t, one, map[string]nodehealth.State{"node-1/host4": good, "node-1/host6": good})
	shows(t, one, "status", "Cluster health:        1/1 reachable\n")
}

// setPort sets the underlay's port of a node up or down.
func setPort(n *nodekit.Node, up bool) error {
	set := netlink.LinkSetDown
	if up {
		set = netlink.LinkSetUp
	}
	return n.Outside(func() error { return linkNamed(n.Name(), set) })
}

// viewOf returns the digest with which the agent of a node replies to the agent of another one.
func viewOf(n *nodekit.Node, requester string) (digest string, err error) {
	err = n.Do(func() error {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:4240", 10*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET /hello HTTP/1.1\r\nHost: x\r\nWaggle-Node: %s\r\nConnection: close\r\n\r\n", requester); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		digest = answer.Header.Get("Waggle-Nodes")
		return answer.Body.Close()
	})
	return digest, err
}

// Health addresses reply through the tunnel, as pods do. The agents know the same nodes, though each learns its own node from another source.
func TestPrivilegedNodeHealth_HealthAddresses(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 3, "--routing-mode=tunnel", "--conntrack-gc-interval=10s")
	want := map[string]nodehealth.State{}
	for _, n := range all {
		for _, kind := range []nodehealth.Kind{nodehealth.Host4, nodehealth.Host6, nodehealth.Health4, nodehealth.Health6} {
			want[n.Name()+"/"+string(kind)] = nodehealth.Reachable
		}
	}
	for _, n := range all {
		healthOf(t, n.Node, want)
	}
	one, two := all[0], all[1]
	eventually(t, func() error {
		a, err1 := viewOf(one.Node, two.Name())
		b, err2 := viewOf(two.Node, one.Name())
		err := errors.Join(err1, err2)
		if err == nil && (a != b || !strings.HasPrefix(a, "2 3 ") || strings.HasSuffix(a, " "+strings.Repeat("0", 16))) {
			err = fmt.Errorf("the agents answer %q and %q, want the same digest of three nodes, with the third one in it", a, b)
		}
		return err
	})
	t.Run("replies of pods are evidence", func(t *testing.T) { repliesAreEvidence(t, all) })
}

// repliesAreEvidence checks that replies of a pod are evidence for all addresses of its node, and for no address of another node. An agent counts flows once a
// minute.
func repliesAreEvidence(t *testing.T, all []kubeNode) {
	t.Helper()
	one, two := all[0], all[1]
	client, server := one.startPod(t, "client", map[string]string{"app": "client"}), two.startPod(t, "server", map[string]string{"app": "server"})
	eventuallyWithin(t, 2*awaitFor, func() error {
		if err := nodekit.UDP(client, server, server.Addr(false), 100); err != nil {
			return err
		}
		rows, text, err := healthRows(t, one.Node)
		if err != nil {
			return err
		}
		var byTraffic int
		for _, row := range rows {
			switch {
			case row.Node == two.Name() && row.Evidence() == nodehealth.ByTraffic:
				byTraffic++
			case row.Node != two.Name() && !row.Traffic.IsZero():
				t.Fatalf("%s/%s has traffic of pods, and has no pods:\n%s", row.Node, row.Kind, text)
			}
		}
		if byTraffic != 4 {
			time.Sleep(2 * time.Second) // at most a minute passes; each attempt starts a process
			return fmt.Errorf("%d addresses of %s are reachable by the evidence of traffic, want 4:\n%s", byTraffic, two.Name(), text)
		}
		return nil
	})
}
