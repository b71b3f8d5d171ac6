package loader

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// guardRule returns the nftables rules that must be installed before a pod link is attached. The rules also cover links that wait for their deletion and, with
// a tunnel, the tunnel device, whose packets have addresses of pods. If nodes may also send past the tunnel, netdev_ingress marks their packets.
func guardRule(a agentconfig.Agent) nftguard.Rule {
	groups := []uint32{podlink.Group, podlink.DeletedGroup}
	if a.Tunnel() {
		groups = append(groups, podlink.OverlayGroup)
	}
	return nftguard.Rule{Groups: groups, Mark: podlink.MarkMagic, Mask: podlink.MarkMask, NodeDevice: podlink.NetDevice, PodDevice: podlink.HostDevice,
		AnyMarked: a.Tunnel()}
}

// guard installs the rules as far as the kernel supports them.
type guard struct {
	agent     agentconfig.Agent
	mu        sync.Mutex // guards unchecked: one job installs, another job reads
	unchecked error      // why source addresses are not checked; nil if they are
}

func (g *guard) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.unchecked
}

func (g *guard) rule() nftguard.Rule {
	r := guardRule(g.agent)
	if g.reason() != nil {
		r.NodeDevice = ""
	}
	return r
}

func (g *guard) read() (nftguard.State, error) { return nftguard.Read(g.rule()) }

// install installs the rules. If the kernel rejects the rules with the check of source addresses and accepts them without, it lacks the expressions of that
// check; pods must not wait for it.
func (g *guard) install(put func(nftguard.Rule) error) error {
	fullErr := put(guardRule(g.agent))
	if fullErr != nil {
		reduced := guardRule(g.agent)
		reduced.NodeDevice = ""
		if err := put(reduced); err != nil {
			return errors.Join(fullErr, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unchecked = fullErr
	return nil
}

// Guard implements podLinks.
func (t *traffic) Guard() error {
	state, err := t.guard.read()
	if err != nil || state.Installed {
		return err
	}
	return t.guard.install(nftguard.Install)
}

// reportGuard reports the number of packets that the rules have dropped.
func reportGuard(health cell.Health, seen observed) {
	if seen.Unchecked != nil {
		health.Degraded("the kernel does not drop packets from outside with a source address of this node: load nft_fib_inet, or use a kernel with CONFIG_NFT_FIB_INET, and restart the agent",
			seen.Unchecked)
		return
	}
	d := seen.Dropped
	health.OK(fmt.Sprintf("dropped %d packets of pod links without their programs, %d from outside with a source address of this node",
		d.Unmarked.Packets, d.NodeSource.Packets))
}
