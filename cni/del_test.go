package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/podlink"
)

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// groupOf returns the line of a host end in the output of links.
func groupOf(containerID string, attempt int, group uint32) string {
	return fmt.Sprintf("%s %#x", hostName(containerID, attempt), group)
}

func TestPrivilegedDel_DefersLinkDeletion_NamespaceIsReusable(t *testing.T) {
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
	// The group has not been emptied yet: the next two ADDs of the same attachment must succeed.
	for attempt := 1; attempt <= 2; attempt++ {
		n.must(add("c1", p))
		if got := strings.Join(n.links(), ";"); !strings.Contains(got, groupOf("c1", attempt, podlink.Group)) {
			t.Errorf("attempt %d: links %s", attempt, got)
		}
		n.must(del("c1", p))
	}
	n.must(del("c1", p)) // again: still a success
}

// A pod with NET_ADMIN can use the name to which DEL renames the pod's end. DEL then deletes the link itself.
func TestPrivilegedDel_NameTakenInPod(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(name string) error{
		"by a link": func(name string) error {
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
		},
		"by an alternative name": func(name string) error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkAddAltName(lo, name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			n.must(add("c1", p))
			p.Do(func() {
				if err := take(hostName("c1", 0)); err != nil {
					t.Error(err)
				}
			})
			n.must(del("c1", p))
			n.wantNothing()
			p.Do(func() {
				if _, err := netlink.LinkByName("eth0"); err == nil {
					t.Error("eth0 is still in the pod")
				}
			})
		})
	}
}

func TestPrivilegedDel_MissingAttachment_Succeeds(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(del("never", p))
	c := del("never", pod{})
	n.must(c)
	c.netns = "/nowhere/ns"
	n.must(c)
	n.wantNothing()
}

// Without a namespace, DEL cannot set down the pod's end and sets down the host end instead, so that the pod cannot send.
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

// replay returns the ids that a replay of the queue deletes.
func replay(t *testing.T, stateDir string) (ids []string) {
	t.Helper()
	release, err := deletequeue.Replay(t.Context(), filepath.Join(stateDir, "deleteQueue"), deleteInto(&ids))
	if err != nil {
		t.Fatal(err)
	}
	release()
	return ids
}

// An agent that answers with an error keeps the endpoint, so the runtime must repeat the DEL; but the link is disabled.
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
	n.requireError(del("c1", p), 11, "the disk is full", "repeats DEL")
	if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.DeletedGroup) {
		t.Errorf("links: %s", got)
	}
	n.agent.set(func() { n.agent.fail = nil })
	n.must(del("c1", p))
}

// An agent that is being killed accepts connections and resets them until its process has ended.
func TestPrivilegedDel_AgentDiesDuringDelete(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"no agent follows": true, "the next agent answers": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			n.must(add("c1", p))
			var asked atomic.Int64
			n.agent.before = func(method, _ string) {
				if method != http.MethodDelete {
					return
				}
				switch asked := asked.Add(1); {
				case asked < 3:
					panic(http.ErrAbortHandler)
				case asked == 3 && gone:
					_ = n.agent.server.Listener.Close()
					panic(http.ErrAbortHandler)
				}
			}
			n.must(del("c1", p))
			_, endpoints := n.agent.left()
			queued := replay(t, n.dir)
			want := 0
			if gone {
				want = 1
			}
			if len(queued) != want || len(endpoints) != want {
				t.Errorf("after %d requests endpoints %v are left, and in the queue %v", asked.Load(), endpoints, queued)
			}
		})
	}
}

// A starting agent accepts connections and answers only after it has held the lock of the queue: DEL does not wait for that answer under the lock.
func TestPrivilegedDel_AgentWaitsForTheQueue(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	var asked atomic.Int64
	n.agent.before = func(method, _ string) {
		if method != http.MethodDelete {
			return
		}
		switch asked.Add(1) {
		case 1: // the previous agent
			panic(http.ErrAbortHandler)
		case 2: // the next one
			if release, err := deletequeue.Replay(t.Context(), filepath.Join(n.dir, "deleteQueue"), deleteInto(new([]string))); err != nil {
				t.Error(err)
			} else {
				release()
			}
		}
	}
	n.must(del("c1", p))
	if _, endpoints := n.agent.left(); len(endpoints) > 0 || asked.Load() < 3 {
		t.Errorf("after %d requests endpoints %v are left", asked.Load(), endpoints)
	}
	if queued := replay(t, n.dir); len(queued) > 0 {
		t.Errorf("the queue has %v", queued)
	}
}

// containerd may call DEL twice for one pod. The second call must not restore resources that a cleanup of the node has removed.
func TestPrivilegedDel_AfterCleanup_LeavesNothing(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.agent.stop()
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
	n.must(del("c1", p))
	n.must(del("c1", p))
	if _, err := os.Stat(n.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was created: %v", err)
	}
	if links := n.links(); len(links) > 0 {
		t.Errorf("links: %v", links)
	}
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
	n.requireError(del("c1", p), 11, "queue is full")
}

// A runtime that attaches repeatedly can be faster than a busy agent: no ADD may fail for this reason.
func TestPrivilegedAdd_AllNamesUsedByPendingDeletions(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	for range 2*maxAttempts + 1 { // no agent empties the group
		n.must(add("c1", p))
		n.must(del("c1", p))
	}
	if links := n.links(); len(links) != maxAttempts {
		t.Errorf("links: %v", links)
	}
}

// If the queue is not writable, the runtime must repeat the DEL, but the link is disabled.
func TestPrivilegedDel_QueueCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(queue string) error{
		"a file in its place": func(queue string) error { return os.WriteFile(queue, nil, 0o600) },
		"a directory in place of the lock": func(queue string) error {
			return os.MkdirAll(filepath.Join(queue, "lockfile"), 0o755)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			n.must(add("c1", p))
			n.agent.stop()
			queue := filepath.Join(n.dir, "deleteQueue")
			if err := damage(queue); err != nil {
				t.Fatal(err)
			}
			n.requireError(del("c1", p), 11, queue, "repeats DEL")
			if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.DeletedGroup) {
				t.Errorf("links: %s", got)
			}
		})
	}
}

// The entry contains the newest link at the time of the DEL, so that it does not apply to an endpoint of a later ADD.
func TestPrivilegedDel_QueueEntry_ExcludesLaterAttachment(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	n.agent.stop()
	n.must(del("c1", p))
	n.agent.start(t)
	n.agent.set(func() { n.agent.endpoints = map[string]models.EndpointChangeRequest{} })
	n.must(add("c1", p))
	later := n.agent.endpoints["c1:eth0"].InterfaceIndex
	var entries []deletequeue.Entry
	release, err := deletequeue.Replay(t.Context(), filepath.Join(n.dir, "deleteQueue"),
		func(_ context.Context, e deletequeue.Entry) error { entries = append(entries, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	release()
	if len(entries) != 1 || entries[0].NewestInterface == 0 || entries[0].AppliesTo(int(later)) {
		t.Errorf("entries %+v, the later host end has index %d", entries, later)
	}
}

// An undone ADD has deleted its link before the DEL, and a killed agent may still have the endpoint on disk.
func TestPrivilegedDel_QueueEntryWithoutLink_MatchesAttachment(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	index := n.agent.endpoints["c1:eth0"].InterfaceIndex
	n.agent.stop()
	n.net.Do(func() {
		link, err := netlink.LinkByName(hostName("c1", 0))
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			t.Error(err)
		}
	})
	n.must(del("c1", p))
	var entries []deletequeue.Entry
	release, err := deletequeue.Replay(t.Context(), filepath.Join(n.dir, "deleteQueue"),
		func(_ context.Context, e deletequeue.Entry) error { entries = append(entries, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	release()
	if len(entries) != 1 || !entries[0].AppliesTo(int(index)) {
		t.Errorf("entries %+v, the host end had index %d", entries, index)
	}
}
