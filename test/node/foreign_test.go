package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// neighbours are commands that create foreign objects on the node that resemble Waggle's objects: the same name in another family, the same destination in
// another table, a name with the same prefix.
var neighbours = []string{
	"ip link add waggle_hosts type veth peer name waggle_nets",
	"ip link add lxcforeign type bridge",
	"ip link set waggle_hosts up",
	"ip addr add 203.0.113.9/32 dev waggle_hosts",
	"ip route add 10.244.1.0/24 dev waggle_hosts table 100",
	"ip -6 route add fd00:10:244:1::/64 dev waggle_hosts table 100",
	"ip route add 198.51.100.0/24 dev waggle_hosts proto 86",
	"ip rule add from 203.0.113.0/24 table 100 pref 700",
	"ip -6 rule add from 2001:db8:9::/64 table 100 pref 700",
	"ip neigh add 203.0.113.77 lladdr 02:00:00:00:00:77 dev waggle_hosts nud permanent",
	"nft add table ip waggle", // another family: not a table of Waggle
	"nft add table inet waggles",
	"nft add chain inet waggles prerouting { type filter hook prerouting priority -300 ; }",
	"nft add rule inet waggles prerouting iifname absent0 drop",
	"tc qdisc add dev waggle_hosts clsact",
	"tc qdisc add dev eth0 clsact",
}

// views are commands that show these objects.
var views = []string{
	"ip -o link show waggle_hosts", "ip -o link show lxcforeign", "ip -o addr show dev waggle_hosts", "ip route show table 100",
	"ip -6 route show table 100", "ip route show proto 86", "ip rule show", "ip -6 rule show", "ip neigh show nud permanent",
	"nft list table ip waggle", "nft list table inet waggles", "tc qdisc show dev waggle_hosts", "tc filter show dev waggle_hosts ingress",
	"tc filter show dev eth0 egress",
}

// lifetime matches address lifetimes, which count down by themselves.
var lifetime = regexp.MustCompile(`valid_lft \S+ preferred_lft \S+`)

func (f *foreigners) run(t *testing.T, command string) string {
	t.Helper()
	var out []byte
	if err := f.node.Do(func() (err error) {
		words := strings.Fields(command)
		out, err = exec.Command(words[0], words[1:]...).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return lifetime.ReplaceAllString(string(out), "")
}

// foreigners holds all foreign objects on a node.
type foreigners struct {
	node  *nodekit.Node
	files []string
	pins  []string
}

func newForeigners(t *testing.T, node *nodekit.Node) *foreigners {
	t.Helper()
	f := &foreigners{node: node}
	for _, command := range neighbours {
		f.run(t, command)
	}
	f.filters(t)
	for _, name := range []string{"net.d/05-other.conflist", "net.d/10-waggle.conflist.bak", "run/other", "run/endpoints.old/1.json"} {
		path := filepath.Join(node.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(`{"name":"other","cniVersion":"1.0.0","plugins":[{"type":"none"}]}`), 0o644)); err != nil {
			t.Fatal(err)
		}
		f.files = append(f.files, path)
	}
	return f
}

// filters attaches cls_bpf filters to foreign devices, with the priority and the handle of Waggle's filters.
func (f *foreigners) filters(t *testing.T) {
	t.Helper()
	program := foreignProgram(t)
	if err := f.node.Do(func() error {
		for device, parent := range map[string]uint32{"waggle_hosts": netlink.HANDLE_MIN_INGRESS, "eth0": netlink.HANDLE_MIN_EGRESS} {
			if err := linkNamed(device, func(l netlink.Link) error {
				return netlink.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: parent,
					Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: program.FD(), Name: "foreign", DirectAction: true})
			}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// pin creates pins of foreign maps beside and among Waggle's pins; the file system must be mounted.
func (f *foreigners) pin(t *testing.T) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "foreign", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	for _, name := range []string{"foreign", "waggles/ipcache_v1", "tc/globals/waggle_map"} {
		path := filepath.Join(f.node.BPFRoot(), name)
		if err := f.node.Do(func() error {
			c, err := m.Clone()
			if err != nil {
				return err
			}
			return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), c.Pin(path), c.Close())
		}); err != nil {
			t.Fatal(err)
		}
		f.pins = append(f.pins, path)
	}
}

// state describes all foreign objects, one fact a line.
func (f *foreigners) state(t *testing.T) (lines []string) {
	t.Helper()
	for _, view := range views {
		for line := range strings.Lines(f.run(t, view)) {
			lines = append(lines, view+": "+strings.TrimSpace(line))
		}
	}
	for _, path := range f.files {
		text, err := os.ReadFile(path)
		lines = append(lines, fmt.Sprintf("file %s %q %v", path, text, err))
	}
	for _, path := range f.pins {
		if err := f.node.Do(func() error {
			m, err := ebpf.LoadPinnedMap(path, nil)
			if err != nil {
				return err
			}
			info, err := m.Info()
			id, _ := info.ID()
			lines = append(lines, fmt.Sprintf("pin %s map %d", path, id))
			return errors.Join(err, m.Close())
		}); err != nil {
			lines = append(lines, fmt.Sprintf("pin %s: %v", path, err))
		}
	}
	return lines
}

// counting is a foreign program that counts packets and passes them to the next program.
type counting struct {
	program *ebpf.Program
	seen    *ebpf.Map
	id      ebpf.ProgramID
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Name: "seen", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = seen.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "counting", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, seen.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	return &counting{program, seen, idOfProgram(t, program)}
}

func idOfProgram(t *testing.T, p *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func (c *counting) count(t *testing.T) (n uint64) {
	t.Helper()
	if err := c.seen.Lookup(uint32(0), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// attach attaches the program to the egress of waggle_host.
func (c *counting) attach(t *testing.T, node *nodekit.Node, anchor link.Anchor) {
	t.Helper()
	if err := node.Do(func() error {
		return linkNamed(podlink.HostDevice, func(l netlink.Link) error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: c.program, Attach: ebpf.AttachTCXEgress, Anchor: anchor})
			if err == nil {
				t.Cleanup(func() { _ = attached.Close() })
			}
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// order lists the programs on the egress of waggle_host; Waggle's program is 0.
func order(node *nodekit.Node, theirs ...*counting) (ids []ebpf.ProgramID, err error) {
	err = node.Do(func() error {
		return linkNamed(podlink.HostDevice, func(l netlink.Link) error {
			all, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
			if err != nil {
				return err
			}
			for _, p := range all.Programs {
				if !slices.ContainsFunc(theirs, func(c *counting) bool { return c.id == p.ID }) {
					p.ID = 0
				}
				ids = append(ids, p.ID)
			}
			return nil
		})
	})
	return ids, err
}

// Foreign objects on the node, however similar to Waggle's, are unchanged after the agent's start, a pod, a restart, repairs and the stop. Foreign programs
// before and behind Waggle's keep running.
func TestPrivilegedForeign_ObjectsUnchangedFromStartToStop(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	node.AddAgentArgs("--verify-interval=1s", "--write-cni-conf-when-ready="+filepath.Join(node.Dir, "net.d", "10-waggle.conflist"))
	foreign := newForeigners(t, node)
	before := foreign.state(t)
	same := func(when string) {
		t.Helper()
		if err := nodekit.Changes(before, foreign.state(t)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	same("after the first start")
	foreign.pin(t)
	before = foreign.state(t)

	first, last := newCounting(t), newCounting(t)
	last.attach(t, node, link.Tail())
	first.attach(t, node, link.Head())
	want := []ebpf.ProgramID{0, first.id, last.id}
	requireOrder := func(when string) {
		t.Helper()
		eventually(t, func() error {
			if have, err := order(node, first, last); err != nil || !slices.Equal(have, want) {
				return fmt.Errorf("%s the programs of waggle_host are %v (ours is 0), want %v: %w", when, have, want, err)
			}
			return nil
		})
	}
	requireOrder("after another program was attached ahead")
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	stillRun := func(when string) {
		t.Helper()
		pingBoth(t, a, b)
		if err := errors.Join(nodekit.Ping(node.Host(), a.Addr(false), 56), nodekit.Ping(node.Host(), b.Addr(true), 56)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		n, m := first.count(t), last.count(t)
		if err := sendPassed(t, node); err != nil {
			t.Fatal(err)
		}
		if first.count(t) <= n || last.count(t) <= m {
			t.Errorf("%s: the programs of others do not see what ours leaves to them", when)
		}
		same(when)
	}
	stillRun("with pods")

	if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	requireOrder("after a restart")
	stillRun("after a restart")

	n := &repairNode{Node: node, a: a, b: b, podLink: endsOf(t, a).host, foreign: first.program}
	ours, err := oursState(node)
	if err != nil {
		t.Fatal(err)
	}
	n.before = ours
	for _, s := range announced {
		if slices.Contains([]string{"waggle_host is deleted", "all of nftables is flushed", "the filter of what pods get is replaced"}, s.name) {
			continue // this damage would affect foreign objects as well
		}
		if err := node.Do(func() error { return s.do(n) }); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		n.awaitRepair(t, s)
	}
	requireOrder("after repairs")
	stillRun("after repairs")

	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	stillRun("after the stop")
	requireOrder("after the stop")
}

// sendPassed sends a multicast packet out of waggle_host, which Waggle's program passes to other programs.
func sendPassed(t *testing.T, node *nodekit.Node) error {
	t.Helper()
	from, to := net.HardwareAddr{2, 0, 0, 0, 0, 1}, net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
	frame := udp(t, from, to, netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("224.0.0.1"), 1)
	return nodekit.SendFrame(node.Host(), podlink.HostDevice, frame)
}
