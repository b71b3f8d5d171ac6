package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// While no agent runs, a backend becomes unready, and is removed later, while its pod runs. The next agent closes the sockets that are connected to it, of UDP at
// once and of TCP when the pod ends, and no others: in the namespace of the node, and with --bpf-lb-sock-terminate-pod-connections also inside pods, for which the agent keeps
// the capability to enter them. The processes connect again.
func TestPrivilegedService_BackendRemovedWhileAgentIsDown(t *testing.T) {
	t.Parallel()
	for name, pods := range map[string]bool{"of the node": false, "of pods too": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, rights := nodekit.Options{Reduced: true}, uint64(containerCapabilities)
			if pods {
				options.AgentArgs, rights = []string{"--bpf-lb-sock-terminate-pod-connections"}, rights|1<<unix.CAP_SYS_ADMIN
			}
			m := &serviceFixture{Node: newNode(t, options), pods: map[string]*nodekit.Pod{}}
			m.start(t)
			wantCapabilities(t, m.AgentPID(), rights)
			client := m.pod(t, "client")
			m.web(t, "", "one", "two")
			places := map[nodekit.NetNS][]*line{}
			for _, place := range []nodekit.NetNS{m.Host(), client} {
				places[place] = lines(t, place, 80, webAddrs, 4)
			}
			// changes replaces the endpoints between two runs of the agent.
			changes := func(ready int, endpoints ...endpoint) {
				t.Helper()
				if err := m.StopAgent(t.Context()); err != nil {
					t.Fatal(err)
				}
				m.slices(t, "web", webPorts, endpoints...)
				m.start(t)
				for _, addr := range webAddrs {
					m.ready(t, netip.AddrPortFrom(addr, 80), ready)
				}
			}
			check := func(closed func(*line) bool) {
				t.Helper()
				for place, all := range places {
					for _, l := range all {
						if closed(l) && (pods || place != client) {
							l.isClosed(t)
							_ = l.Close()
							l.dial(t, place)
							l.server = l.request(t)
						} else if now := l.request(t); now != l.server {
							t.Errorf("%s over %s went from %s to %s", l.to, l.network, l.server, now)
						}
					}
				}
			}
			changes(1, endpoint{pod: "two"}, endpoint{pod: "one", rest: "conditions: {ready: false}"})
			check(func(l *line) bool { return l.network == "udp" && l.server == "one" })
			changes(1, endpoint{pod: "two"})
			check(func(*line) bool { return false })
			if err := m.pods["one"].Detach(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !pods {
				delete(places, client) // some of these sockets get no replies
			}
			check(func(l *line) bool { return l.server == "one" })
		})
	}
}

// isClosed waits until the agent has closed the socket: a read returns an error, and a write has no peer.
func (l *line) isClosed(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		_, err := requestWithin(l.Conn, briefTimeout)
		for _, closed := range []error{syscall.ECONNABORTED, syscall.EPIPE, syscall.EDESTADDRREQ} {
			if errors.Is(err, closed) {
				return nil
			}
		}
		return fmt.Errorf("a socket for %s over %s, whose backend %s is gone, is still open: %v", l.to, l.network, l.server, err)
	})
}
