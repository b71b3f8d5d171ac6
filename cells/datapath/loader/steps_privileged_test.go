package loader

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// A step answers a pod's ARP request, also after the agent has ended. Of several generations only the last has a pin.
func TestPrivilegedSteps_OutliveTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pins := n.kernel.Pods.(*traffic).steps
	n.host.Do(func() {
		n.mountBPF()
		var last program
		for range 3 {
			last = n.attachInNamespace()[bpf.PodEgress]
		}
		n.pod.Do(n.awaitCarrier)
		n.kernel.Programs.Close()
		n.pod.Do(n.forgetRouter)
		if got := n.send(1, 1); got != 1 {
			t.Error("the router's address is not resolved without an agent")
		}
		entries, err := os.ReadDir(pins.dir)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		require.NoError(t, pins.missing(last.Name, last.ID))
	})
}

// A removed pin is noticed and created again. Without it the steps would end with the agent.
func TestPrivilegedSteps_PinIsRepaired(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	pins := n.kernel.Pods.(*traffic).steps
	n.host.Do(func() {
		n.mountBPF()
		p := n.attachInNamespace()[bpf.PodEgress]
		for _, unpinned := range []bool{false, true, false} {
			seen, err := n.kernel.Pods.Observe()
			require.NoError(t, err)
			require.Equal(t, unpinned, repairable(seen.Unpinned[podlink.IngressBlock]))
			if unpinned {
				n.check(n.kernel.Pods.SetFilter(podlink.IngressBlock, &p))
			} else {
				n.check(os.Remove(pins.path(p.Name, p.ID)))
			}
		}
	})
}

// forgetRouter removes the router from the pod's neighbors, so that the next packet waits for an ARP reply. The kernel waits for a minute instead of 3 s.
func (n *node) forgetRouter() {
	n.check(os.WriteFile("/proc/sys/net/ipv4/neigh/eth0/mcast_solicit", []byte("60"), 0))
	link, err := netlink.LinkByName("eth0")
	n.check(err)
	neighbors, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	n.check(err)
	for _, neighbor := range neighbors {
		n.check(netlink.NeighDel(&neighbor))
	}
}
