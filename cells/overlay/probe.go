package overlay

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	agent "github.com/waggle-net/waggle/pkg/settings"
)

// newProbe returns what programs do of the tunnel without its device, and whether they may pass the stack at all. They pass neither netfilter nor IPsec of
// the node, so they do nothing where one of them has to see the packets of pods. Without a tunnel nothing is asked of the kernel.
func newProbe(settings agent.Agent) bpf.EncapProbe {
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

// hindrance says why packets of pods have to pass the stack whatever the kernel lets programs do. A kernel without IPsec has no policies to list.
func hindrance(settings agent.Agent, policies func(family int) ([]netlink.XfrmPolicy, error)) error {
	if settings.HostLegacyRouting {
		return errors.New("--enable-host-legacy-routing=true")
	}
	if !settings.KubeProxyReplacement {
		return errors.New("--kube-proxy-replacement=false: replies to Services of kube-proxy have to pass netfilter")
	}
	list, err := policies(netlink.FAMILY_ALL)
	switch {
	case len(list) > 0: // also of a list that was changed meanwhile
		return fmt.Errorf("the node has %d IPsec policies, which apply to what its stack sends and receives", len(list))
	case errors.Is(err, unix.EPROTONOSUPPORT), err == nil:
		return nil
	}
	return fmt.Errorf("list the IPsec policies of the node, which would apply to what its stack sends and receives: %w", err)
}
