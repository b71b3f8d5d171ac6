package node_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// foreignFiles creates files with names similar to Waggle's file names.
func foreignFiles(t *testing.T, node *nodekit.Node) {
	t.Helper()
	for path, text := range map[string]string{"net.d/10-other.conflist": "{}", "net.d/05-waggle.conflist2": "x", "net.d/waggle_tmp": "x",
		"cni-bin/waggle-cni2": "x", "cni-bin/other": "x", "lib/other": "x"} {
		path = filepath.Join(node.Dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// foreignKernel creates kernel objects that differ from Waggle's objects in one property each: name, group, type, protocol, family or device.
func foreignKernel(t *testing.T, node *nodekit.Node) {
	t.Helper()
	program := foreignProgram(t)
	if err := node.Do(func() error {
		for _, l := range []netlink.Link{
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "waggle_hosts"}},
			&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lxc0123456789ab", Group: podlink.Group}},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lxc1123456789ab"}, PeerName: "lxc2123456789ab"},
			&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lxcfoo", Group: podlink.DeletedGroup}, PeerName: "lxcbar"},
		} {
			if err := netlink.LinkAdd(l); err != nil {
				return fmt.Errorf("%s: %w", l.Attrs().Name, err)
			}
		}
		for _, command := range []string{
			"sysctl -qw net.ipv4.conf.eth0.forwarding=1 net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.all.rp_filter=2",
			"ip link set waggle_hosts up",
			"ip route add 10.244.9.0/24 dev waggle_hosts proto 86",
			"ip route add 10.244.9.0/24 dev waggle_hosts table 87",
			"ip rule add from 10.244.9.0/24 table 87",
			"nft add table ip waggle", "nft add table inet waggles",
			"nft add chain inet waggles prerouting { type filter hook prerouting priority raw ; }",
			"nft add rule inet waggles prerouting iifname absent0 drop",
		} {
			words := strings.Fields(command)
			if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		h, err := tc.Open()
		if err != nil {
			return err
		}
		defer h.Close()
		attached, err := link.AttachTCX(link.TCXOptions{Interface: eth0.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		t.Cleanup(func() {
			if info, err := attached.Info(); err != nil || info.TCX().Ifindex == 0 {
				t.Errorf("the foreign tcx program: %+v, %v", info, err)
			}
			attached.Close()
		})
		return errors.Join(h.EnsureClsact(eth0.Attrs().Index, tc.Blocks{}),
			h.ReplaceFilter(tc.Ingress(eth0.Attrs().Index), "pod_egress", program.FD()))
	}); err != nil {
		t.Fatal(err)
	}
}

// leaveOvers creates the remains of interrupted programs: an unfinished link, a link that awaits deletion, temporary files, pins of another generation, a route
// in another table, and a foreign device that has joined a shared block. The returned function requires that device to keep its clsact with the shared blocks,
// without the filters of Waggle, and removes the device.
func leaveOvers(t *testing.T, node cleanupNode) (part func()) {
	t.Helper()
	joined := joinBlock(t, node)
	if err := node.Do(func() error {
		for i, group := range []uint32{podlink.Group, podlink.DeletedGroup} {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podlink.HostName("left", "eth0", i), Group: group}, PeerName: fmt.Sprintf("left%d", i)}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
		}
		if out, err := exec.Command("ip", "route", "add", "10.99.0.0/24", "dev", "lo", "table", "99", "proto", "87").CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		old, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			return err
		}
		defer old.Close()
		generation := filepath.Join(node.BPFRoot(), "waggle", "generation_7")
		return errors.Join(os.Mkdir(generation, 0o700), old.Pin(filepath.Join(generation, "old_v0")))
	}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{node.conf + ".waggle_tmp", filepath.Join(filepath.Dir(node.conf), ".waggle_tmp", "x"),
		filepath.Join(pluginDir(node.Node), ".waggle-cni.tmp"), filepath.Join(node.StateDir(), "endpoints", ".tmp-1"),
		filepath.Join(node.Dir, "lib", "k8s-snapshot.tmp"), filepath.Join(node.StateDir(), "waggle.sock.new")} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return joined
}

func joinBlock(t *testing.T, node cleanupNode) (part func()) {
	t.Helper()
	within := func(do func(h *tc.Handle, joined netlink.Link) error) {
		t.Helper()
		if err := node.Do(func() error {
			h, err := tc.Open()
			if err != nil {
				return err
			}
			defer h.Close()
			l, err := netlink.LinkByName("joined")
			if err != nil {
				return err
			}
			return do(h, l)
		}); err != nil {
			t.Error(err)
		}
	}
	if err := node.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "joined"}, PeerName: "joined2"})
	}); err != nil {
		t.Fatal(err)
	}
	blocks := tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock}
	within(func(h *tc.Handle, l netlink.Link) error { return h.EnsureClsact(l.Attrs().Index, blocks) })
	return func() {
		t.Helper()
		within(func(h *tc.Handle, l netlink.Link) error {
			have, found, err := h.Clsact(l.Attrs().Index)
			filters, err2 := h.Filters(tc.Block(podlink.IngressBlock))
			if !found || have != blocks || len(filters) != 0 {
				t.Errorf("the foreign device has a clsact: %v, blocks %+v, filters %v", found, have, filters)
			}
			return errors.Join(err, err2, netlink.LinkDel(l))
		})
	}
}
