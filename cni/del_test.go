package cni

import (
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/podlink"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// groupOf prints how links lists a host end.
func groupOf(containerID string, attempt int, group uint32) string {
	return fmt.Sprintf("%s %#x", hostName(containerID, attempt), group)
}

func TestPrivilegedDel_PutsTheLinkAsideAndTheNamespaceCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.must(del("c1", p))
	if addresses, endpoints := n.agent.left(); len(addresses)+len(endpoints) > 0 {
		t.Errorf("the agent still has addresses %v, endpoints %v", addresses, endpoints)
	}
	if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.DeletedGroup) {
		t.Errorf("links: %s", got)
	}
	p.Do(func() {
		if _, err := netlink.LinkByName("eth0"); err == nil {
			t.Error("eth0 is still in the pod")
		}
		if link, err := netlink.LinkByName(hostName("c1", 0)); err != nil || link.Attrs().Flags&1 != 0 {
			t.Errorf("the pod's end that was put aside: %v, %v", link, err)
		}
	})
	// Nobody has emptied the group yet: the next ADD of the same attachment, and one more, must not mind.
	for attempt := 1; attempt <= 2; attempt++ {
		n.must(add("c1", p))
		if got := strings.Join(n.links(), ";"); !strings.Contains(got, groupOf("c1", attempt, podlink.Group)) {
			t.Errorf("attempt %d: links %s", attempt, got)
		}
		n.must(del("c1", p))
	}
	n.must(del("c1", p)) // again: still a success
}

func TestPrivilegedDel_GoneAlready(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(del("never", p))
	c := del("never", pod{})
	n.must(c)
	c.netns = "/nowhere/ns"
	n.must(c)
	n.wantNothing()
}

// Without a namespace the pod's end cannot be put aside; then the host end is what silences the pod.
func TestPrivilegedDel_WithoutNamespace(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.net.Do(func() {
		link, err := netlink.LinkByName(hostName("c1", 0))
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Error(err)
		}
	})
	n.must(del("c1", pod{}))
	n.net.Do(func() {
		link, err := netlink.LinkByName(hostName("c1", 0))
		if err != nil || link.Attrs().Flags&1 != 0 || link.Attrs().Group != podlink.DeletedGroup {
			t.Errorf("host end: %+v, %v", link, err)
		}
	})
}

func TestPrivilegedDel_AgentAbsent(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.must(add("c2", newPod(t)))
	n.agent.stop()
	n.must(del("c1", p))
	n.must(del("c1", p))
	if got := strings.Join(n.links(), ";"); got != groupOf("c2", 0, podlink.Group) {
		t.Errorf("links: %s", got)
	}
	if got := strings.Join(replay(t, n.dir), ";"); got != "c1:eth0" {
		t.Errorf("the queue had %q", got)
	}
}

// replay returns what the agent would be told to delete.
func replay(t *testing.T, stateDir string) (ids []string) {
	t.Helper()
	release, err := deletequeue.Replay(t.Context(), filepath.Join(stateDir, "deleteQueue"), deleteInto(&ids))
	if err != nil {
		t.Fatal(err)
	}
	release()
	return ids
}

// An agent that answers with an error still has the endpoint, so the runtime must repeat; but the link is taken out of use.
func TestPrivilegedDel_AgentFails(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.agent.set(func() {
		n.agent.fail = func(method, _ string) (int, string) {
			if method == "DELETE" {
				return 500, "the disk is full"
			}
			return 0, ""
		}
	})
	n.refuse(del("c1", p), 11, "the disk is full", "repeats DEL")
	if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.DeletedGroup) {
		t.Errorf("links: %s", got)
	}
	n.agent.set(func() { n.agent.fail = nil })
	n.must(del("c1", p))
}

func TestPrivilegedDel_QueueFull(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.agent.stop()
	dir := filepath.Join(n.dir, "deleteQueue")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range deletequeue.MaxEntries {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.delete", i)), []byte(`{"container-id":"x"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.refuse(del("c1", p), 11, "queue is full")
}
