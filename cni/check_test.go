package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// check returns a CHECK call with the result of an ADD.
func check(containerID string, p pod, result []byte) call {
	return call{command: "CHECK", containerID: containerID, netns: p.path, ifName: "eth0", extra: `,"prevResult":` + string(result)}
}

func TestPrivilegedCheck_FindsMissingObjects(t *testing.T) {
	t.Parallel()
	inPod := func(change func(link netlink.Link) error) func(*testing.T, *node, pod) {
		return func(t *testing.T, _ *node, p pod) {
			p.Do(func() {
				link, err := netlink.LinkByName("eth0")
				if err == nil {
					err = change(link)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	for _, c := range []struct {
		name   string
		damage func(*testing.T, *node, pod)
		words  string
	}{
		{"nothing", nil, ""},
		{"endpoint missing", func(_ *testing.T, n *node, _ pod) { n.agent.set(func() { clear(n.agent.endpoints) }) }, "no endpoint"},
		{"endpoint unhealthy", func(_ *testing.T, n *node, _ pod) {
			n.agent.set(func() { n.agent.health = models.EndpointHealthStatusFailure })
		}, "not healthy"},
		{"interface missing", inPod(netlink.LinkDel), "does not exist"},
		{"interface down", inPod(netlink.LinkSetDown), "is down"},
		{"address missing", inPod(func(l netlink.Link) error {
			return netlink.AddrDel(l, &netlink.Addr{IPNet: netlink.NewIPNet(mustAddr("10.9.0.11").AsSlice())})
		}), "address 10.9.0.11/32 is missing"},
		{"route missing", inPod(func(l netlink.Link) error {
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: everything(mustAddr("fd09::1"))})
		}), "route ::/0 is missing"},
		{"neighbour changed", inPod(func(l netlink.Link) error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: mustAddr("10.9.0.1").AsSlice(),
				State: netlink.NUD_PERMANENT, HardwareAddr: randomMAC().HardwareAddr()})
		}), "gateway 10.9.0.1"},
		{"host end put aside", func(t *testing.T, n *node, _ pod) {
			n.net.Do(func() {
				link, err := netlink.LinkByName(hostName("c1", 0))
				if err == nil {
					err = netlink.LinkSetGroup(link, int(podlink.DeletedGroup))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}, "host end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			result := n.must(add("c1", p))
			if c.damage == nil {
				n.must(check("c1", p, result))
				return
			}
			c.damage(t, n, p)
			n.requireError(check("c1", p, result), codeUnhealthy, c.words)
		})
	}
}

func TestPrivilegedCheck_BadInput(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.requireError(call{command: "CHECK", containerID: "c1", netns: p.path, ifName: "eth0"}, 7, "prevResult", "missing")
	n.requireError(check("c1", p, []byte(`{"cniVersion":"1.1.0","interfaces":[null]}`)), 7, "prevResult")
	result := n.must(add("c1", p))
	n.requireError(check("c1", pod{path: "/nowhere"}, result), 8, "CNI_NETNS")
	n.agent.stop()
	n.requireError(check("c1", p, result), 11, n.agent.socket())
}

// A full range fails ADD only. A STATUS that fails makes the node not ready, and Kubernetes then evicts its pods.
func TestPrivilegedStatus_FullRange_Succeeds(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.set(func() {
		n.agent.fail = func(method, path string) (int, string) {
			if method == "POST" && path == "/v1/ipam" {
				return 502, "range is full"
			}
			return 0, ""
		}
	})
	n.requireError(add("c1", p), 11, "range is full")
	n.must(call{command: "STATUS"})
}

func TestPrivilegedStatus_NoAgent_Fails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.must(call{command: "STATUS"})
	n.requireError(call{command: "STATUS", extra: `,"state-dir":"/nowhere"`}, 50, "/nowhere/waggle.sock", "waggle-agent")
}

func TestPrivilegedGC_DeletesUnlistedAttachments(t *testing.T) {
	t.Parallel()
	n, p1, p2, p3 := newNode(t), newPod(t), newPod(t), newPod(t)
	n.must(add("c1", p1))
	n.must(add("c2", p2))
	n.must(add("c3", p3))
	gc := call{command: "GC", extra: `,"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`}
	n.agent.set(func() {
		n.agent.fail = func(method, path string) (int, string) {
			if method == "DELETE" && strings.Contains(path, "c1") {
				return 500, "the disk is full"
			}
			return 0, ""
		}
	})
	n.requireError(gc, codeRejected, "c1", "the disk is full")
	if _, endpoints := n.agent.left(); strings.Join(endpoints, " ") != "c1:eth0 c2:eth0" {
		t.Errorf("one failed; of the others %v are left", endpoints)
	}
	n.agent.set(func() { n.agent.fail = nil })
	n.must(gc)
	if _, endpoints := n.agent.left(); strings.Join(endpoints, " ") != "c2:eth0" {
		t.Errorf("left: %v", endpoints)
	}
	links := strings.Join(n.links(), ";")
	if !strings.Contains(links, groupOf("c2", 0, podlink.Group)) || !strings.Contains(links, groupOf("c1", 0, podlink.DeletedGroup)) {
		t.Errorf("links: %s", links)
	}
}

// GC reports every failure, with and without an agent, and deletes all it can.
func TestPrivilegedGC_ReportsAllErrors(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for i := range 3 {
		id := fmt.Sprint("c", i)
		n.must(add(id, newPod(t)))
		storeEndpoint(t, n.dir, fmt.Sprint(i+1, ".json"), id)
	}
	n.agent.set(func() {
		n.agent.fail = func(method, path string) (int, string) {
			if method == "DELETE" {
				return 500, "no luck with " + path
			}
			return 0, ""
		}
	})
	everything := call{command: "GC", extra: `,"cni.dev/valid-attachments":[]`}
	n.requireError(everything, codeRejected, "c0:eth0", "c1:eth0", "c2:eth0")

	n.agent.stop()
	damaged := filepath.Join(n.dir, "endpoints", "2.json")
	content, err := os.ReadFile(damaged)
	if err == nil {
		err = os.WriteFile(damaged, content[:len(content)-5], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n.requireError(everything, codeRejected, "2.json")
	if got := replay(t, n.dir); len(got) != 2 {
		t.Errorf("queued: %v", got)
	}
}

func TestPrivilegedGC_WithoutListDeletesNothing(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.requireError(call{command: "GC"}, 7, "cni.dev/valid-attachments")
	if _, endpoints := n.agent.left(); len(endpoints) != 1 {
		t.Errorf("left: %v", endpoints)
	}
	n.must(call{command: "GC", extra: `,"cni.dev/valid-attachments":null`}) // libcni's encoding of an empty list
	if _, endpoints := n.agent.left(); len(endpoints) != 0 {
		t.Errorf("left: %v", endpoints)
	}
}

func TestPrivilegedGC_AgentAbsent(t *testing.T) {
	t.Parallel()
	n, p1, p2 := newNode(t), newPod(t), newPod(t)
	n.must(add("c1", p1))
	n.must(add("c2", p2))
	storeEndpoint(t, n.dir, "1.json", "c1")
	storeEndpoint(t, n.dir, "2.json", "c2")
	n.agent.stop()
	n.must(call{command: "GC", extra: `,"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}]`})
	if got := strings.Join(replay(t, n.dir), ";"); got != "c1:eth0" {
		t.Errorf("the queue had %q", got)
	}
	if got := strings.Join(n.links(), ";"); got != groupOf("c2", 0, podlink.Group) {
		t.Errorf("links: %s", got)
	}
}
