package loader

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// agentRun is one run of the agent: its handles of the kernel, and its own programs for the hooks between a pod and its node.
type agentRun struct {
	kernel   kernel
	programs map[string]program
}

// TestPrivilegedGeneration_ReplacedWithoutLosingAPacket lets a pod and its node exchange packets without a pause while two runs of the agent replace each
// other's programs: the cls_bpf filters of both directions of the pod's link, and the program on waggle_host, which is a cls_bpf filter before Linux 6.6.
func TestPrivilegedGeneration_ReplacedWithoutLosingAPacket(t *testing.T) {
	t.Parallel()
	replacements := 30
	if testnet.Emulated() {
		replacements = 6
	}
	n := newNode(t)
	n.routeToPod()
	var runs [2]*agentRun
	n.host.Do(func() {
		n.mountBPF()
		runs = [2]*agentRun{n.newRun(), n.newRun()}
		n.put(runs[0].kernel, runs[0].programs)
	})
	n.pod.Do(n.awaitCarrier)
	n.host.Do(func() {
		n.mountBPF()
		n.replaceBy(runs[0]) // creates the pins again, which were in the mounts of another thread
		echoes := n.exchange()
		for i := range replacements {
			echoes.pass()
			n.replaceBy(runs[(i+1)%2])
		}
		echoes.pass()
		if err := echoes.stop(); err != nil {
			t.Errorf("while programs were replaced: %v", err)
		}
		t.Logf("%d packets came back during %d replacements", echoes.count.Load(), replacements)
		n.runs(runs[replacements%2])
	})
}

// newRun returns another run of the agent.
func (n *node) newRun() *agentRun {
	n.t.Helper()
	r := &agentRun{n.newKernel(), map[string]program{}}
	n.check(r.kernel.Pods.Open())
	n.t.Cleanup(func() {
		r.kernel.Programs.Close()
		r.kernel.Pods.Close()
	})
	programs := r.kernel.Programs.(*objects)
	loaded, err := programs.load([]string{bpf.PodEgress, bpf.PodIngress, bpf.HostEgress}, n.maps, r.programs)
	n.check(err)
	programs.loaded = loaded
	return r
}

// hostKey is the key of the program on waggle_host.
const hostKey = "waggle_host_egress"

// replaceBy attaches the programs of r, as a starting agent does.
func (n *node) replaceBy(r *agentRun) {
	n.t.Helper()
	n.put(r.kernel, r.programs)
	p := r.programs[bpf.HostEgress]
	n.check(r.kernel.Devices.Attach(hostKey, onHost(n), &p))
}

// runs requires that all hooks run the programs of r.
func (n *node) runs(r *agentRun) {
	n.t.Helper()
	seen, err := r.kernel.Pods.Observe()
	n.check(err)
	for _, b := range blockRows {
		if id := seen.Filters[uint32(b.IfIndex)]; id != r.programs[b.Program].ID {
			n.t.Errorf("%s runs program %d, want %d", b.Hook, id, r.programs[b.Program].ID)
		}
	}
	have, err := r.kernel.Devices.Attached()
	n.check(err)
	if have[hostKey].Program != r.programs[bpf.HostEgress].ID {
		n.t.Errorf("%s runs program %d, want %d", hostKey, have[hostKey].Program, r.programs[bpf.HostEgress].ID)
	}
}

// routeToPod routes packets for the pod to waggle_host, as the node does.
func (n *node) routeToPod() {
	n.host.Do(func() {
		n.check(netlink.RouteAdd(&netlink.Route{LinkIndex: n.hostIndex, Dst: netlink.NewIPNet(podAddr.AsSlice()), Scope: netlink.SCOPE_LINK, Src: router.AsSlice()}))
		n.check(netlink.NeighAdd(&netlink.Neigh{LinkIndex: n.hostIndex, IP: podAddr.AsSlice(), HardwareAddr: podMAC, State: netlink.NUD_PERMANENT}))
	})
}

// echoes is an exchange of packets: the pod sends a packet when the echo of the previous one has arrived, so no buffer overflows.
type echoes struct {
	count atomic.Int64 // number of echoes that have arrived
	ended chan error
	end   chan struct{}
}

// exchange starts an exchange between the pod and the node.
func (n *node) exchange() *echoes {
	e := &echoes{ended: make(chan error, 1), end: make(chan struct{})}
	go echo(n.server)
	go func() {
		buffer := make([]byte, 16)
		for {
			select {
			case <-e.end:
				e.ended <- nil
				return
			default:
			}
			_ = n.client.SetReadDeadline(time.Now().Add(waitLimit))
			_, err := n.client.Write([]byte("x"))
			if err == nil {
				_, err = n.client.Read(buffer)
			}
			if err != nil {
				e.ended <- fmt.Errorf("packet %d or its echo was lost: %w", e.count.Load()+1, err)
				return
			}
			e.count.Add(1)
		}
	}()
	return e
}

// echo returns every packet to its sender until the socket is closed.
func echo(conn *net.UDPConn) {
	buffer := make([]byte, 16)
	for {
		size, peer, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(buffer[:size], peer) // the pod notices a missing echo
	}
}

// pass waits until packets that were sent after the call have returned, or the exchange has ended.
func (e *echoes) pass() {
	for before := e.count.Load(); e.count.Load() < before+2 && len(e.ended) == 0; time.Sleep(100 * time.Microsecond) {
	}
}

// stop ends the exchange and returns its error.
func (e *echoes) stop() error {
	close(e.end)
	return <-e.ended
}
