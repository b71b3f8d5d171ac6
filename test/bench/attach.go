package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// crowd is the number of pods on a crowded node, for which the cost of one more pod is measured.
const crowd = 200

// rest is the pause between two measurements: a node is busy for a while after a deletion.
const rest = 50 * time.Millisecond

// attach compares ADD and DEL with the reference plugins, alternating single calls. The comparable node has IPv4 only. The other nodes are a dual-stack one,
// one with many pods, and two with a policy that selects each pod. There each pod has its own identity, and the policies of all other pods must first contain
// this identity.
func (b *bench) attach(ctx context.Context) error {
	var ipv4, dual, crowded, guarded, guardedCrowd, control pair
	only4 := nodekit.Options{IPv6CIDR: "-", AgentArgs: []string{"--enable-ipv6=false"}}
	sides := []struct {
		name    string
		options nodekit.Options
		pods    int  // attached before the measurement
		policy  bool // selects all pods
		list    listFunc
		pair    *pair
	}{
		{"ipv4", only4, 0, false, waggleList, &ipv4}, {"control", only4, 0, false, b.referenceList, &control},
		{"dual", nodekit.Options{}, 0, false, waggleList, &dual}, {"crowded", nodekit.Options{}, crowd, false, waggleList, &crowded},
		{"guarded", nodekit.Options{}, 0, true, waggleList, &guarded}, {"guarded-crowd", nodekit.Options{}, selectedEndpoints, true, waggleList, &guardedCrowd},
	}
	nodes := make([]*nodekit.Node, len(sides))
	for i, side := range sides {
		node, err := b.startNode(ctx, side.options)
		if err != nil {
			return err
		}
		defer node.Close()
		nodes[i] = node
		if side.policy {
			if err := b.guard(node, side.name, side.pods); err != nil {
				return err
			}
		}
		for n := range side.pods {
			pod, err := node.AddPod(ctx, fmt.Sprintf("crowd-%d", n))
			if err != nil {
				return err
			}
			defer pod.Close()
		}
	}
	var floors []time.Duration
	for i := range b.rounds {
		time.Sleep(rest)
		took, err := floor(ctx, nodes[0], fmt.Sprintf("floor-%d", i))
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		floors = append(floors, took)
		for _, n := range rand.Perm(len(sides)) {
			time.Sleep(rest)
			side := sides[n]
			if err := side.pair.round(ctx, nodes[n], fmt.Sprintf("%s-%d", side.name, i), side.list); err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
		}
	}
	for _, line := range []struct {
		what     string
		ours     pair
		add, del figures.Limit // budgets
	}{{"IPv4", ipv4, addIPv4Budget, delBudget}, {"dual-stack", dual, addDualBudget, delBudget},
		{fmt.Sprintf("dual-stack, %d pods there", crowd), crowded, unlimited, unlimited},
		{"dual-stack, a policy selects it", guarded, unlimited, unlimited},
		{fmt.Sprintf("dual-stack, a policy selects it, %d pods there", selectedEndpoints), guardedCrowd, unlimited, unlimited}} {
		b.compare("ADD, "+line.what+", p50", line.ours.adds, control.adds, line.add)
		b.compare("DEL, "+line.what+", p50", line.ours.dels, control.dels, line.del)
	}
	b.compare(fmt.Sprintf("ADD, dual-stack, %d pods there against none, p50", crowd), crowded.adds, dual.adds, addCrowdedBudget)
	b.compare("floor of ADD: start of the plugin, and a veth pair, p50", floors, control.adds, unlimited)
	b.compare("ADD and DEL together, dual-stack, p50", dual.both, control.both, unlimited)
	rate := 1 / median(dual.both).Seconds()
	b.report("ADD+DEL pairs per second", fmt.Sprintf("%.0f (control %.0f)", rate, 1/median(control.both).Seconds()),
		figures.Value{Number: rate, Unit: "pairs/s"}, unlimited)
	return b.burst(ctx, nodes[2])
}

// floor returns the minimum duration of any ADD: a run of the plugin that only prints its versions, and the creation of a veth pair into the pod.
func floor(ctx context.Context, node *nodekit.Node, name string) (took time.Duration, err error) {
	pod, err := node.NewPod(name)
	if err != nil {
		return 0, err
	}
	defer pod.Close()
	err = node.Do(func() error {
		cni, _, err := node.CNI("1.0.0")
		if err != nil {
			return err
		}
		namespace, err := os.Open(pod.NetnsPath)
		if err != nil {
			return err
		}
		defer namespace.Close()
		took, err = timed(func() error {
			_, err := cni.GetVersionInfo(ctx, "waggle-cni")
			return errors.Join(err, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name},
				PeerName: pod.IfName, PeerNamespace: netlink.NsFd(namespace.Fd())}))
		})
		return err
	})
	return took, err
}

// guard writes manifests of a node's pods and a policy that allows them only traffic between each other.
func (b *bench) guard(node *nodekit.Node, name string, pods int) error {
	var names []string
	for n := range pods {
		names = append(names, fmt.Sprintf("crowd-%d", n))
	}
	for i := range b.rounds {
		names = append(names, fmt.Sprintf("%s-%d", name, i))
	}
	return errors.Join(node.WriteManifest("pods.yaml", podManifests("guarded", names...)),
		node.WriteManifest("policies.yaml", policyManifest("guarded", "role: guarded", "Ingress", "{from: [{podSelector: {}}], ports: [{port: 80}]}")+
			policyManifest("out", "role: guarded", "Egress", "{to: [{podSelector: {}}]}")))
}

// burst attaches 100 pods concurrently.
func (b *bench) burst(ctx context.Context, node *nodekit.Node) error {
	took := make([]time.Duration, 100)
	pods := make([]*nodekit.Pod, len(took))
	for i := range pods {
		pod, err := node.NewPod(fmt.Sprintf("burst-%d", i))
		if err != nil {
			return err
		}
		defer pod.Close()
		pods[i] = pod
	}
	var group errgroup.Group
	for i, pod := range pods {
		group.Go(func() (err error) { took[i], err = timed(func() error { return pod.Attach(ctx) }); return err })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	p99 := percentile(took, 99) // a rejected call ends the measurement
	b.report("100 ADD at once, p99 (p50)", fmt.Sprintf("%s (%s)", show(p99), show(median(took))), figures.Time(p99), addBurstBudget)
	for _, pod := range pods {
		group.Go(func() error { return pod.Detach(ctx) })
	}
	return group.Wait()
}

// pair holds the durations of one side.
type pair struct{ adds, dels, both []time.Duration }

// listFunc returns the CNI library and network list of one side.
type listFunc func(*nodekit.Node) (*libcni.CNIConfig, *libcni.NetworkConfigList, error)

func (p *pair) round(ctx context.Context, node *nodekit.Node, name string, list listFunc) error {
	pod, err := node.NewPod(name)
	if err != nil {
		return err
	}
	defer pod.Close()
	return node.Do(func() error {
		cni, conf, err := list(node)
		if err != nil {
			return err
		}
		add, err := timed(func() error { _, err := cni.AddNetworkList(ctx, conf, pod.Runtime()); return err })
		if err != nil {
			return err
		}
		del, err := timed(func() error { return cni.DelNetworkList(ctx, conf, pod.Runtime()) })
		if err != nil {
			return err
		}
		p.adds, p.dels, p.both = append(p.adds, add), append(p.dels, del), append(p.both, add+del)
		return nil
	})
}

func waggleList(node *nodekit.Node) (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	return node.CNI("1.0.0")
}

// referenceList returns ptp with host-local. It is IPv4 only: with IPv6, ptp waits more than a second for duplicate address detection, which would distort
// the comparison in favour of Waggle.
func (b *bench) referenceList(node *nodekit.Node) (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	conf, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"reference","plugins":[{"type":"ptp",
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.99.0.0/16"}]],
		"routes":[{"dst":"0.0.0.0/0"}]}}]}`, filepath.Join(node.Dir, "host-local")))
	if err != nil {
		return nil, nil, err
	}
	return libcni.NewCNIConfigWithCacheDir([]string{b.plugins}, filepath.Join(node.Dir, "reference-cache"), nil), conf, nil
}

// podCIDR has addresses for thousands of pods: a released address is quarantined for a while.
const podCIDR = "10.244.0.0/20"

// installedStop is the stop timeout of an installed agent. Nodes of tests have a longer one.
const installedStop = "--stop-timeout=4.5s"

// startNode starts an agent on a node with [podCIDR] and waits until it is ready.
func (b *bench) startNode(ctx context.Context, options nodekit.Options) (*nodekit.Node, error) {
	options.BinDir, options.IPv4CIDR = b.bin, podCIDR
	options.AgentArgs = append([]string{installedStop}, options.AgentArgs...)
	node, err := nodekit.New(options)
	if err != nil {
		return nil, err
	}
	if err := node.StartAgent(); err != nil {
		return nil, err
	}
	return node, waitReady(ctx, node)
}
