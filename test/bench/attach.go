package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit"
)

// attach compares dual-stack ADD and DEL with the reference plugins, one call of each in turn, on the same private node.
func (b *bench) attach(ctx context.Context) error {
	node, err := b.startNode(ctx)
	if err != nil {
		return err
	}
	defer node.Close()

	var ours, control pair
	for i := range b.rounds {
		if err := ours.round(ctx, node, fmt.Sprintf("w%d", i), waggleList); err != nil {
			return err
		}
		if err := control.round(ctx, node, fmt.Sprintf("p%d", i), b.referenceList); err != nil {
			return fmt.Errorf("reference plugins: %w", err)
		}
	}
	b.compare("ADD, one after the other, p50", ours.adds, control.adds, "0.5x")
	b.compare("DEL, p50", ours.dels, control.dels, "0.4x")
	b.compare("ADD and DEL together, p50", ours.both, control.both, "")
	b.report("ADD+DEL pairs per second", fmt.Sprintf("%.0f (control %.0f)",
		1/median(ours.both).Seconds(), 1/median(control.both).Seconds()), "")
	return b.burst(ctx, node)
}

// burst attaches 100 pods at once.
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
	b.report("100 ADD at once, p99 (p50)", fmt.Sprintf("%s (%s)", show(percentile(took, 99)), show(median(took))), "600 ms, none refused")
	for _, pod := range pods {
		group.Go(func() error { return pod.Detach(ctx) })
	}
	return group.Wait()
}

// pair collects one side's times.
type pair struct{ adds, dels, both []time.Duration }

// listFunc makes the library and network list of one side.
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

// referenceList is ptp with host-local. It serves IPv4 only, half of what ours does: with IPv6 ptp waits more than a
// second for duplicate address detection, which would flatter us.
func (b *bench) referenceList(node *nodekit.Node) (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	conf, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"reference","plugins":[{"type":"ptp",
		"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.99.0.0/16"}]],
		"routes":[{"dst":"0.0.0.0/0"}]}}]}`, filepath.Join(node.Dir, "host-local")))
	if err != nil {
		return nil, nil, err
	}
	return libcni.NewCNIConfigWithCacheDir([]string{b.plugins}, filepath.Join(node.Dir, "reference-cache"), nil), conf, nil
}

func (b *bench) startNode(ctx context.Context) (*nodekit.Node, error) {
	node, err := nodekit.New(nodekit.Options{BinDir: b.bin})
	if err != nil {
		return nil, err
	}
	if err := node.StartAgent(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return node, node.WaitReady(ctx)
}
