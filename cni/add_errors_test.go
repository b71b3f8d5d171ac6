package cni

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/podlink"
)

func TestPrivilegedAdd_ExistingAttachmentIsUntouched(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.must(add("c1", p))
	before := n.links()
	n.requireError(add("c1", p), 4, "CNI_CONTAINERID c1", "exists already", "send DEL")
	n.requireError(add("c2", p), 4, "CNI_IFNAME eth0", "exists in the pod")
	if after := n.links(); strings.Join(after, ";") != strings.Join(before, ";") {
		t.Errorf("links changed from %v to %v", before, after)
	}
	if addresses, endpoints := n.agent.left(); len(addresses) != 2 || len(endpoints) != 1 {
		t.Errorf("the agent has addresses %v, endpoints %v", addresses, endpoints)
	}
	if n.agent.next != 1 {
		t.Errorf("%d allocations were made, want that of the first ADD only", n.agent.next)
	}
}

func TestPrivilegedAdd_BadNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"missing": "/nowhere/ns", "a file": "/etc/hostname", "another kind": "/proc/self/ns/mnt",
		"a pipe": fifo, "our own": "/proc/self/ns/net"} {
		c := add("c1", pod{path: path})
		t.Run(name, func(t *testing.T) { n.requireError(c, 8, "CNI_NETNS") })
	}
	n.wantNothing()
}

// A failure in any call to the agent must leave no resources.
func TestPrivilegedAdd_FailureIsUndone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, method, path string
		status             int
		code               uint
	}{
		{"pool exhausted", "POST", "/v1/ipam", 502, 11},
		{"endpoint refused", "PUT", "/v1/endpoint/cilium-local:0", 400, codeRejected},
		{"endpoint not ready", "PUT", "/v1/endpoint/cilium-local:0", 500, codeRejected},
		{"call not permitted", "PUT", "/v1/endpoint/cilium-local:0", 403, codeRejected},
		{"agent busy", "PUT", "/v1/endpoint/cilium-local:0", 429, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			n.agent.set(func() {
				n.agent.fail = func(method, path string) (int, string) {
					if method == c.method && path == c.path {
						return c.status, "range is full: 3 used, 4 quarantined, 5 excluded"
					}
					return 0, ""
				}
			})
			n.requireError(add("c1", p), c.code, "3 used, 4 quarantined, 5 excluded")
			n.wantNothing()
			p.Do(func() {
				if _, err := netlink.LinkByName("eth0"); err == nil {
					t.Error("eth0 is left in the pod")
				}
			})
		})
	}
}

// The kernel rejects the link while the agent allocates addresses. The addresses must be released.
func TestPrivilegedAdd_NoLinkIsUndone(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.set(func() { n.agent.mtu = maxMTU + 1 })
	n.requireError(add("c1", p), codeKernel, "create link")
	n.wantNothing()
	if n.agent.next != 1 {
		t.Errorf("%d allocations were made, want one", n.agent.next)
	}
}

// The agent reports the endpoint as ready, but the link has no carrier.
func TestPrivilegedAdd_NoCarrierIsUndone(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.set(func() { n.agent.attach = func(string) error { return nil } })
	n.requireError(add("c1", p), codeKernel, "wait until the pod can send", "carrier", "on the node")
	n.wantNothing()
}

// The pod's end has a carrier, but the host end has none yet. ADD waits for the host end, because replies of the node would be lost.
func TestPrivilegedAdd_WaitsForTheHostEnd(t *testing.T) {
	t.Parallel()
	const byCarrier, byProcess = 0, 1 // link modes, include/uapi/linux/if.h
	n, p := newNode(t), newPod(t)
	hostEnd := make(chan string, 1)
	n.agent.set(func() {
		n.agent.attach = func(name string) error {
			defer func() { hostEnd <- name }()
			return errors.Join(n.setLinkMode(name, byProcess, netlink.OperDormant), n.setUp(name))
		}
	})
	added := make(chan *types.Error, 1)
	go func() {
		_, failed := n.run(add("c1", p))
		added <- failed
	}()
	name := <-hostEnd
	select {
	case failed := <-added:
		t.Fatalf("ADD did not wait for the host end: %v", failed)
	case <-time.After(300 * time.Millisecond):
	}
	if err := n.setLinkMode(name, byCarrier, netlink.OperUp); err != nil {
		t.Fatal(err)
	}
	if failed := <-added; failed != nil {
		t.Fatal(failed)
	}
}

// setLinkMode sets whether the kernel or a process controls a link's operational state, and its initial state (Documentation/networking/operstates.rst).
func (n *node) setLinkMode(name string, mode uint8, state netlink.LinkOperState) (err error) {
	n.net.Do(func() {
		var link netlink.Link
		if link, err = netlink.LinkByName(name); err != nil {
			return
		}
		request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
		message := nl.NewIfInfomsg(unix.AF_UNSPEC)
		message.Index = int32(link.Attrs().Index)
		request.AddData(message)
		request.AddData(nl.NewRtAttr(unix.IFLA_LINKMODE, []byte{mode}))
		request.AddData(nl.NewRtAttr(unix.IFLA_OPERSTATE, []byte{byte(state)}))
		_, err = request.Execute(unix.NETLINK_ROUTE, 0)
	})
	return err
}

// The response to PUT is lost: the agent may have created the endpoint and must delete it.
func TestPrivilegedAdd_AgentDiesDuringPut(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.set(func() {
		n.agent.fail = func(method, _ string) (int, string) {
			if method == "PUT" {
				panic("the connection breaks")
			}
			return 0, ""
		}
	})
	n.agent.server.Config.ErrorLog = discard()
	n.requireError(add("c1", p), 11, n.agent.socket())
	n.wantNothing()
}

func TestPrivilegedAdd_AgentAbsent(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.stop()
	n.requireError(add("c1", p), 11, n.agent.socket(), "waggle-agent") // TestWaitReady_AbsentAgentIsAnErrorAfterFiveSeconds checks the time
	n.wantNothing()
}

// ADD waits for an agent that reports that it is starting.
func TestPrivilegedAdd_AgentStarts(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.agent.set(func() {
		n.agent.state = models.AgentState{State: models.AgentStateStateStarting, WaitingFor: []string{"the pod CIDR"}}
	})
	time.AfterFunc(2*time.Second, func() {
		n.agent.set(func() { n.agent.state = models.AgentState{State: models.AgentStateStateReady} })
	})
	n.must(add("c1", p))
}

func TestPrivilegedAdd_BadInput(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	huge := `{"cniVersion":"1.1.0","name":"` + strings.Repeat("x", maxConf) + `"}`
	for _, c := range []struct {
		name   string
		change func(*call)
		code   uint
		words  string
	}{
		{"truncated", func(c *call) { c.stdin = `{"cniVersion":"1.1.0","name":"waggle","socket-path":"/run` }, 6, "socket-path"},
		{"wrong type", func(c *call) { c.extra = `,"enable-debug":"yes"` }, 6, "enable-debug"},
		{"nothing", func(c *call) { c.stdin = " " }, 6, "unexpected end"},
		{"oversized", func(c *call) { c.stdin = huge }, 7, "1048576"},
		{"no name", func(c *call) { c.stdin = `{"cniVersion":"1.1.0"}` }, 7, "name"},
		{"ipam", func(c *call) { c.extra = `,"ipam":{"type":"host-local"}` }, 7, "ipam.type"},
		{"chained", func(c *call) { c.extra = `,"prevResult":{"cniVersion":"1.1.0"}` }, 7, "prevResult"},
		{"chaining mode", func(c *call) { c.extra = `,"chaining-mode":"flannel"` }, 7, "chaining-mode"},
		{"mtu", func(c *call) { c.extra = `,"mtu":99999` }, 7, "mtu"},
		{"relative path", func(c *call) { c.extra = `,"socket-path":"waggle.sock"` }, 7, "socket-path"},
		{"old version", func(c *call) { c.version = "0.2.0" }, 1, "incompatible"},
		{"container id", func(c *call) { c.containerID = "../../etc" }, 4, "containerID"},
		{"long container id", func(c *call) { c.containerID = strings.Repeat("a", 10_000) }, 4, "CNI_CONTAINERID"},
		{"interface name", func(c *call) { c.ifName = "eth\x1b[2J" }, 4, "CNI_IFNAME"},
		{"long interface name", func(c *call) { c.ifName = "sixteen-letters-" }, 4, "interface name"},
		{"pod name", func(c *call) { c.args = "K8S_POD_NAME=a/b" }, 4, "K8S_POD_NAME"},
		{"unknown argument", func(c *call) { c.args = "COLOUR=red" }, 4, "COLOUR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := add("c1", p)
			c.change(&request)
			n.requireError(request, c.code, c.words)
		})
	}
	n.wantNothing()
}

func TestPrivilegedAdd_UnknownFieldsAndLog(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	log := filepath.Join(n.dir, "cni.log")
	c := add("c1", p)
	c.extra = `,"colour":"red","runtimeConfig":{"portMappings":[]},"mtu":1300,"enable-debug":true,"log-file":"` + log + `"`
	n.must(c)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"containerID=c1", "command=ADD", `step="create the endpoint"`, "succeeded"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	p.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil || link.Attrs().MTU != 1300 {
			t.Errorf("eth0: %v, %v", link, err)
		}
	})
}

// The plugin never changes another program's link whose name matches by chance.
func TestPrivilegedDel_ForeignLink(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	n.net.Do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: hostName("c1", 0), Group: 7}, PeerName: "foreign"}); err != nil {
			t.Error(err)
		}
	})
	n.must(del("c1", p))
	if links := n.links(); !slices.Contains(links, hostName("c1", 0)+" 0x7") {
		t.Errorf("links: %v", links)
	}
	n.requireError(add("c1", p), 4, podlink.Prefix)
}
