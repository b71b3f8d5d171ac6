package nodekit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// Pod is a network namespace on a node, with the state that a runtime keeps for it.
type Pod struct {
	node        *Node
	ns          namespaces
	Namespace   string
	Name        string
	ContainerID string
	NetnsPath   string
	IfName      string           // of the pod's end
	Result      *types100.Result // of the last ADD
}

// NewPod creates a pod's network namespace without attaching it. The name may have the prefix of a Kubernetes namespace, as in "kube-system/dns"; the default
// is "default".
func (n *Node) NewPod(name string) (*Pod, error) {
	namespace := "default"
	if before, after, found := strings.Cut(name, "/"); found {
		namespace, name = before, after
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	p := &Pod{node: n, ns: namespaces{group: n.ns.group}, Namespace: namespace, Name: name, IfName: "eth0", ContainerID: hex.EncodeToString(id), NetnsPath: n.path("netns", "cni-"+hex.EncodeToString(id[:8]))}
	err := n.Do(func() error {
		if err := bindNetwork(p.NetnsPath); err != nil {
			return err
		}
		var err error
		p.ns.net, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the namespace of pod %s: %w", name, err)
	}
	return p, nil
}

// AddPod creates a pod, see [Node.NewPod], and attaches it.
func (n *Node) AddPod(ctx context.Context, name string) (*Pod, error) {
	p, err := n.NewPod(name)
	if err != nil {
		return nil, err
	}
	if err := p.Attach(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Do runs f inside the pod's network namespace.
func (p *Pod) Do(f func() error) error { return p.ns.Do(f) }

// Sandboxed returns the pod as an end of traffic whose sockets are in no control group of the node, as those of a virtual machine.
func (p *Pod) Sandboxed() NetNS { return netNS{namespaces{net: p.ns.net}} }

// Runtime returns the parameters that a runtime passes to the plugin for this pod.
func (p *Pod) Runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.ContainerID, NetNS: p.NetnsPath, IfName: p.IfName, Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_INFRA_CONTAINER_ID", p.ContainerID}}}
}

// CNI returns a runtime's library and network list for this node. Calls must be made inside [Node.Do].
func (n *Node) CNI(version string) (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	conf, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":%q,"name":"waggle","plugins":[{"type":"waggle-cni",`+
		`"socket-path":%q,"state-dir":%q}]}`, version, filepath.Join(n.StateDir(), "waggle.sock"), n.StateDir()))
	if err != nil {
		return nil, nil, err
	}
	return libcni.NewCNIConfigWithCacheDir([]string{n.options.BinDir}, n.path("cni-cache"), nil), conf, nil
}

// Attach calls ADD.
func (p *Pod) Attach(ctx context.Context) error {
	return p.node.Do(func() error {
		cni, conf, err := p.node.CNI("1.1.0")
		if err != nil {
			return err
		}
		raw, err := cni.AddNetworkList(ctx, conf, p.Runtime())
		if err != nil {
			return fmt.Errorf("ADD of pod %s: %w", p.Name, err)
		}
		p.Result, err = types100.NewResultFromResult(raw)
		return err
	})
}

// Check calls CHECK.
func (p *Pod) Check(ctx context.Context) error {
	return p.node.Do(func() error {
		cni, conf, err := p.node.CNI("1.1.0")
		if err != nil {
			return err
		}
		return cni.CheckNetworkList(ctx, conf, p.Runtime())
	})
}

// Detach calls DEL.
func (p *Pod) Detach(ctx context.Context) error {
	return p.node.Do(func() error {
		cni, conf, err := p.node.CNI("1.1.0")
		if err != nil {
			return err
		}
		if err := cni.DelNetworkList(ctx, conf, p.Runtime()); err != nil {
			return fmt.Errorf("DEL of pod %s: %w", p.Name, err)
		}
		return nil
	})
}

// Close removes the namespace, as a runtime does after DEL.
func (p *Pod) Close() error {
	return errors.Join(p.ns.Close(), p.node.Do(func() error {
		return errors.Join(unix.Unmount(p.NetnsPath, unix.MNT_DETACH), os.Remove(p.NetnsPath))
	}))
}

// Addr returns the pod's address in a family, or an invalid address if it has none.
func (p *Pod) Addr(ipv6 bool) netip.Addr {
	for _, ip := range p.Result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok && addr.Unmap().Is6() == ipv6 {
			return addr.Unmap()
		}
	}
	return netip.Addr{}
}

// Gateway returns the router address in the pod's ADD result for a family.
func (p *Pod) Gateway(ipv6 bool) netip.Addr {
	for _, ip := range p.Result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Gateway); ok && addr.Unmap().Is6() == ipv6 {
			return addr.Unmap()
		}
	}
	return netip.Addr{}
}
