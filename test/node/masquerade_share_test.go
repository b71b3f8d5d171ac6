package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/test/nodekit"
)

// A pod that opens as many flows to the outside as it can gets its quota of the node's translations at most, and leaves the other pods their quotas. When its
// flows have expired, it can open others; when the pod is deleted, none of its flows remains.
func TestPrivilegedMasquerade_NoisyNeighbour_LimitedToQuota(t *testing.T) {
	t.Parallel()
	const entries, percent = 1024, 5
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--prometheus-serve-addr", metricsAddress,
		fmt.Sprintf("--bpf-nat-global-max=%d", entries), fmt.Sprintf("--bpf-ct-endpoint-share=%d", percent)}})
	noisy, victim := addPod(t, node, "hog"), addPod(t, node, "victim")
	id := endpointID(t, node, "default/hog")
	counts := ctMap(t, node, bpf.MapNatFlows)
	for i, family := range families {
		t.Run(family.name, func(t *testing.T) {
			name := natmap.Of(family.ipv6).Name
			m := ctMap(t, node, name)
			share := int(natmap.Share(m.MaxEntries(), percent))
			target, done := echoServer(t, "udp", node.OutsideHost(), outsideAddr(family.ipv6))
			defer done()
			open := func(from nodekit.NetNS, limit time.Duration) error {
				conn, err := talkWithin(limit, "udp", from, target)
				if err == nil {
					t.Cleanup(func() { _ = conn.Close() }) // keeps its own port until the end
				}
				return err
			}
			var first net.Conn
			for n := range share {
				conn, err := talk("udp", noisy, target)
				if err != nil {
					t.Fatalf("flow %d of %d: %v", n+1, share, err)
				}
				if first == nil {
					first = conn
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
			before := dropsFor(t, node, events.NATShare)
			for n := range 3 {
				if err := open(noisy, noReplyTimeout); err == nil {
					t.Errorf("the hog's flow %d passes beyond its share of %d", share+n+1, share)
				}
				if err := open(victim, answerTimeout); err != nil {
					t.Errorf("the victim's flow %d: %v", n+1, err)
				}
			}
			// The count is exact, also while scans of the collector correct it.
			var count bpf.NatCount
			if err := counts.Lookup(uint32(id), &count); err != nil {
				t.Fatal(err)
			}
			if got := map[bool]int32{false: count.Ipv4, true: count.Ipv6}[family.ipv6]; int(got) != share {
				t.Errorf("%d flows of the hog count, want its share of %d", got, share)
			}
			if err := exchange(first); err != nil {
				t.Errorf("the hog's flow that stands: %v", err)
			}
			awaitDrops(t, node, events.NATShare, before+3)
			eventually(t, func() error { // the collector updates the counts
				for _, row := range natTop(t, node) {
					if row.Pod == "default/hog" && row.Percent == 100 && row.Refused > 0 && row.Counted >= share {
						return nil
					}
				}
				return fmt.Errorf("nat top: %+v", natTop(t, node))
			})
			expireTranslations(t, m, family.ipv6)
			awaitCapacity(t, noisy, target)
			if i < len(families)-1 {
				return
			}
			if err := noisy.Detach(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				var count bpf.NatCount
				if err := counts.Lookup(uint32(id), &count); err != nil || count != (bpf.NatCount{}) {
					return fmt.Errorf("of a pod that is gone there are %+v translated flows: %w", count, err)
				}
				return nil
			})
		})
	}
}

// natTalker is a row of "waggle bpf nat top".
type natTalker struct {
	Pod              string
	Counted, Percent int
	Refused          uint64
}

func natTop(t *testing.T, node *nodekit.Node) (rows []natTalker) {
	t.Helper()
	text, err := node.Waggle(t.Context(), "bpf", "nat", "top", "-o", "json")
	if err := errors.Join(err, json.Unmarshal([]byte(text), &rows)); err != nil {
		t.Fatal(err)
	}
	return rows
}

// expireTranslations expires all translated flows of a map at once.
func expireTranslations(t *testing.T, m *ebpf.Map, ipv6 bool) {
	t.Helper()
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	r := natmap.NewReader(natmap.Of(ipv6), m, 1024)
	defer r.Close()
	for last := false; !last; {
		var flows []natmap.Flow
		if flows, last, err = r.Next(); err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			f.Expires = now - 1
			if err := m.Update(f.Key.Value(), f.Entry(1), ebpf.UpdateExist); err != nil {
				t.Fatal(err)
			}
		}
	}
}
