package overlay

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// newProbe returns the capabilities of programs to use the tunnel without its device, and to bypass the stack at all. Programs that bypass the stack also
// bypass the node's netfilter and IPsec, so they do not bypass it where netfilter or IPsec must process the packets of pods. Without a tunnel the probe does
// not query the kernel.
func newProbe(settings agentconfig.Agent) bpf.EncapProbe {
	return sync.OnceValue(func() bpf.EncapSupport {
		if err := hindrance(settings, netlink.XfrmPolicyList); err != nil {
			return bpf.EncapSupport{Err: err, Stack: err}
		}
		if !settings.Tunnel() {
			return bpf.EncapSupport{}
		}
		return bpf.NewEncapProbe()()
	})
}

// hindrance returns why packets of pods must pass the stack independently of the kernel's capabilities. A kernel without IPsec has no policies to list.
func hindrance(settings agentconfig.Agent, policies func(family int) ([]netlink.XfrmPolicy, error)) error {
	if settings.HostLegacyRouting {
		return errors.New("--enable-host-legacy-routing=true")
	}
	if !settings.KubeProxyReplacement {
		return errors.New("--kube-proxy-replacement=false: replies to Services of kube-proxy have to pass netfilter")
	}
	list, err := policies(netlink.FAMILY_ALL)
	switch {
	case len(list) > 0: // also of a list that changed during the dump
		return fmt.Errorf("the node has %d IPsec policies, which apply to packets that its stack sends and receives", len(list))
	case errors.Is(err, unix.EPROTONOSUPPORT), err == nil:
		return nil
	}
	return fmt.Errorf("list the IPsec policies of the node, which would apply to packets that its stack sends and receives: %w", err)
}
