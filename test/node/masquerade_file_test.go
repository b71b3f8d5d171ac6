package node_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The agent follows the file of the ip-masq-agent while it runs and over a restart: a server outside sees pods under their own addresses when the file excludes
// the destination from masquerading, and under the node's address otherwise. An invalid file changes nothing.
func TestPrivilegedMasquerade_FollowsIPMasqAgentFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ip-masq-agent")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	const (
		others  = "nonMasqueradeCIDRs: [198.51.100.0/24]\n"
		outside = "{\"nonMasqueradeCIDRs\": [\"192.0.2.0/24\", \"2001:db8:2::/64\"]}\n"
		bad     = "nonMasqueradeCIDRs: [192.0.2.0/99]\n"
	)
	write(others)
	m := newServiceFixture(t, "--enable-ip-masq-agent", "--ip-masq-agent-config-path="+file)
	routeBack(t, m.Node)
	pod := m.pod(t, "one")
	serveName(t, m.OutsideHost(), "outside", 9000)
	seen := func(what string, own bool) {
		t.Helper()
		for _, f := range families {
			to, want := netip.AddrPortFrom(outsideAddr(f.ipv6), 9000), uplinkAddr(f.ipv6)
			if own {
				want = pod.Addr(f.ipv6)
			}
			for _, network := range networks { // from another port each time, so it is a new flow
				eventually(t, func() error {
					a, err := requestBriefly(t.Context(), pod, network, to)
					if err == nil && a.client != want {
						err = fmt.Errorf("%s: %s over %s sees %s, want %s", what, to, network, a.client, want)
					}
					return err
				})
			}
		}
	}
	seen("another prefix", false)
	write(outside)
	seen("its prefixes", true)
	write(bad)
	eventually(t, func() error {
		text, err := m.Waggle(t.Context(), "status")
		if err == nil && !strings.Contains(text, "the file is not applied") {
			err = fmt.Errorf("status says nothing of the file:\n%s", text)
		}
		return err
	})
	seen("a file that makes no sense", true)
	if err := m.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	seen("the same after a restart", true)
	write(others)
	seen("another prefix again", false)
}
