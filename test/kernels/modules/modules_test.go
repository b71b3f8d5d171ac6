package modules

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/kernels/plan"
)

// requireModules skips the test unless the environment lists the modules: on a real machine, no modules are loaded for the test.
func requireModules(t *testing.T, names ...string) {
	t.Helper()
	loaded := strings.Fields(os.Getenv(plan.ModulesEnv))
	if len(loaded) == 0 {
		t.Skip("needs modules " + strings.Join(names, ", ") + ", which test/kernels loads: run make test-kernels")
	}
	for _, name := range names {
		if !slices.Contains(loaded, name) {
			t.Fatalf("module %s is not in the suite's row of test/kernels/table.go, which names %v", name, loaded)
		}
	}
}

// inNamespace runs f in a new network namespace.
func inNamespace(t *testing.T, f func() error) {
	t.Helper()
	testnet.New(t).Do(func() {
		if err := f(); err != nil {
			t.Error(err)
		}
	})
}

func TestPrivilegedModules_WireGuardLink(t *testing.T) {
	t.Parallel()
	requireModules(t, "wireguard")
	inNamespace(t, func() error {
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "wg0"}}); err != nil {
			return fmt.Errorf("add a WireGuard link: %w", err)
		}
		link, err := netlink.LinkByName("wg0")
		if err == nil && link.Type() != "wireguard" {
			err = fmt.Errorf("link wg0 has type %s", link.Type())
		}
		return err
	})
}

func TestPrivilegedModules_FairQueue(t *testing.T) {
	t.Parallel()
	requireModules(t, "sch_fq")
	inNamespace(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		attrs := netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
		if err := netlink.QdiscAdd(netlink.NewFq(attrs)); err != nil {
			return fmt.Errorf("add a queueing discipline fq: %w", err)
		}
		all, err := netlink.QdiscList(lo)
		if err == nil && !slices.ContainsFunc(all, func(q netlink.Qdisc) bool { return q.Type() == "fq" }) {
			err = fmt.Errorf("lo has no fq, but %v", all)
		}
		return err
	})
}

// An ESP state needs the protocol's module of the family, and the modules of the cipher.
func TestPrivilegedModules_ESPState(t *testing.T) {
	t.Parallel()
	requireModules(t, "esp4", "esp6", "xfrm_user")
	for _, ends := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		inNamespace(t, func() error {
			state := &netlink.XfrmState{Src: net.ParseIP(ends[0]), Dst: net.ParseIP(ends[1]), Proto: netlink.XFRM_PROTO_ESP,
				Mode: netlink.XFRM_MODE_TUNNEL, Spi: 3, ReplayWindow: 32,
				Aead: &netlink.XfrmStateAlgo{Name: "rfc4106(gcm(aes))", Key: make([]byte, 20), ICVLen: 128}}
			if err := netlink.XfrmStateAdd(state); err != nil {
				return fmt.Errorf("add a state of ESP to %s: %w", ends[1], err)
			}
			all, err := netlink.XfrmStateList(netlink.FAMILY_ALL)
			if err == nil && (len(all) != 1 || all[0].Spi != 3) {
				err = fmt.Errorf("the kernel lists %v, want the state of SPI 3", all)
			}
			return err
		})
	}
}
