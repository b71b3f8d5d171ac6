package loader

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/settings"
)

// guardRule is the rule without which no pod link is attached. A link that waits for its deletion is covered as well, and with a tunnel its device:
// what comes from there has addresses of pods. Where nodes may send without the tunnel too, netdev_ingress marks what they send.
func guardRule(a settings.Agent) nftguard.Rule {
	groups := []uint32{podlink.Group, podlink.DeletedGroup}
	if a.Tunnel() {
		groups = append(groups, podlink.OverlayGroup)
	}
	return nftguard.Rule{Groups: groups, Mark: podlink.MarkMagic, Mask: podlink.MarkMask, NodeDevice: podlink.NetDevice, PodDevice: podlink.HostDevice,
		AnyMarked: a.Tunnel()}
}

// guard is the rule as far as the kernel takes it.
type guard struct {
	agent     settings.Agent
	mu        sync.Mutex // guards unchecked: one job installs, another reads
	unchecked error      // why sources are not checked; nil when they are
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

// install puts the rule in place. When the kernel refuses it with the check of sources and takes it without, the kernel
// lacks what that check needs; pods must not wait for it.
func (g *guard) install(put func(nftguard.Rule) error) error {
	refused := put(guardRule(g.agent))
	if refused != nil {
		reduced := guardRule(g.agent)
		reduced.NodeDevice = ""
		if err := put(reduced); err != nil {
			return errors.Join(refused, err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unchecked = refused
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

// reportGuard says what the rule has dropped.
func reportGuard(health cell.Health, seen observed) {
	if seen.Unchecked != nil {
		health.Degraded("The kernel does not check who speaks with this node's addresses: load nft_fib_inet, or use a kernel with CONFIG_NFT_FIB_INET, and restart the agent",
			seen.Unchecked)
		return
	}
	d := seen.Dropped
	health.OK(fmt.Sprintf("Dropped %d packets of pod links without their programs, %d from outside with an address of this node",
		d.Unmarked.Packets, d.NodeSource.Packets))
}
