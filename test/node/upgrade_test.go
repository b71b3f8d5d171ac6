package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// Repeated changes of a node to another generation of the datapath and back do not interrupt traffic.
func TestPrivilegedUpgrade_DoesNotDisruptTraffic(t *testing.T) {
	t.Parallel()
	needBuilds(t)
	other, err := builds.Agent(nodekit.Build{Generation: otherGeneration})
	if err != nil {
		t.Fatal(err)
	}
	node := startNode(t, roomy())
	before := lasting(t, node)
	traffic := startTraffic(t, node, load.Full())
	churn := startChurn(t, node)
	random := testseed.New(t)
	for range times(t, 1, 2) {
		for _, to := range []struct {
			agent      string
			generation int
		}{{other, otherGeneration}, {"", thisGeneration}} {
			time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
			traffic.logf(t, "to generation %d", to.generation)
			if err := node.UpgradeAgent(t.Context(), to.agent); err != nil {
				t.Fatal(err)
			}
			requireGeneration(t, node, to.generation)
		}
	}
	churn.end(t)
	traffic.end(t)
	eventuallyLasting(t, node, before)
}

const (
	// thisGeneration is the generation in pkg/version.
	thisGeneration = 2
	// otherGeneration is a generation that will never be released.
	otherGeneration = 7777
)

// requireGeneration requires every hook to have programs of a generation in the table, and the kernel to run the same programs.
func requireGeneration(t *testing.T, node *nodekit.Node, want int) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "db", "show", "attachments")
		if err != nil {
			return err
		}
		ids := map[string]string{} // of programs on blocks, by hook
		for line := range strings.Lines(text) {
			f := strings.Fields(line) // Kind, Device, Hook, Program, Generation, ProgramID, Endpoint, Status
			if len(f) != 8 || f[0] != "block" && f[0] != "tcx" && f[0] != "cgroup" {
				continue
			}
			if f[4] != fmt.Sprint(want) || f[7] != "Done" {
				return fmt.Errorf("want generation %d everywhere: %s", want, line)
			}
			if f[0] == "block" {
				ids[f[2]] = f[5]
			}
		}
		return node.Do(func() error { return kernelRuns(ids["ingress"], ids["egress"]) })
	})
}

// kernelRuns requires the programs with these IDs on both hooks of a pod's link.
func kernelRuns(ingress, egress string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if !podlink.IsHostName(link.Attrs().Name) || link.Attrs().Group != podlink.Group {
			continue
		}
		for parent, want := range map[uint32]string{netlink.HANDLE_MIN_INGRESS: ingress, netlink.HANDLE_MIN_EGRESS: egress} {
			filters, err := netlink.FilterList(link, parent)
			if err != nil {
				return err
			}
			if len(filters) != 1 || fmt.Sprint(filters[0].(*netlink.BpfFilter).Id) != want {
				return fmt.Errorf("%s, parent %#x: want one filter with program %q, got %+v", link.Attrs().Name, parent, want, filters)
			}
		}
		return nil
	}
	return errors.New("there is no pod")
}
