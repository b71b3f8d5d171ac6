package loader

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
)

// On a kernel without nft fib the rest of the rules is installed, and the error is recorded; a kernel without nftables gets no rules.
func TestGuard_KernelWithoutFib(t *testing.T) {
	t.Parallel()
	errUnsupported := errors.New("no such expression")
	for name, tc := range map[string]struct {
		takes     func(nftguard.Rule) bool
		devices   []string // of the rules that were tried
		unchecked bool
		fails     bool
	}{
		"all":          {func(nftguard.Rule) bool { return true }, []string{"waggle_net"}, false, false},
		"without fib":  {func(r nftguard.Rule) bool { return r.NodeDevice == "" }, []string{"waggle_net", ""}, true, false},
		"no nf_tables": {func(nftguard.Rule) bool { return false }, []string{"waggle_net", ""}, false, true},
	} {
		var g guard
		var tried []string
		err := g.install(func(r nftguard.Rule) error {
			tried = append(tried, r.NodeDevice)
			if len(r.Groups) != 2 {
				t.Errorf("%s: groups %v", name, r.Groups)
			}
			if tc.takes(r) {
				return nil
			}
			return errUnsupported
		})
		if (err != nil) != tc.fails || (g.reason() != nil) != tc.unchecked || !slices.Equal(tried, tc.devices) {
			t.Errorf("%s: %v, unchecked %v, tried %q", name, err, g.reason(), tried)
		}
		if reduced := g.rule().NodeDevice == ""; reduced != tc.unchecked {
			t.Errorf("%s: read back reduced: %v", name, reduced)
		}
	}
}

// If nodes may send past the tunnel, programs mark their packets, and the rules accept packets with the mark.
func TestGuardRule_AcceptsMarkedPackets(t *testing.T) {
	t.Parallel()
	for mode, c := range map[string]struct {
		agent    agentconfig.Agent
		accepted uint32
	}{
		agentconfig.RoutingNative: {agentconfig.Agent{}, 0},
		agentconfig.RoutingTunnel: {agentconfig.Agent{TunnelPort: 8472}, bpf.AcceptsRouted},
		agentconfig.RoutingHybrid: {agentconfig.Agent{TunnelPort: 8472, Hybrid: true}, bpf.AcceptsAll},
	} {
		require.EqualValues(t, c.accepted, directAccepted(c.agent), mode)
		require.Equal(t, c.accepted != 0, guardRule(c.agent).AnyMarked, mode)
	}
}
