package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// morePolicies is the number of policies that are added to measure the agent's memory for them.
const morePolicies = 1000

// policyMemory prints the memory of policies and flows in the kernel and in the agent, on a node whose endpoints have policies and flows.
func (b *bench) policyMemory(ctx context.Context, node *nodekit.Node) error {
	agent := agentclient.New(filepath.Join(node.StateDir(), "waggle.sock"))
	before, err := residentMemory(node)
	if err != nil {
		return err
	}
	var text strings.Builder
	for i := range morePolicies {
		app := fmt.Sprintf("app: judged-%d", i%selectedEndpoints)
		text.WriteString(policyManifest(fmt.Sprintf("more-%d", i), app, "Ingress",
			fmt.Sprintf("{from: [{podSelector: {matchLabels: {app: judged-%d}}}], ports: [{protocol: TCP, port: %d}]}", (i+1)%selectedEndpoints, 1000+2*i),
			fmt.Sprintf("{from: [{podSelector: {matchLabels: {role: prober}}}], ports: [{protocol: TCP, port: %d, endPort: %d}]}", 10000+2*i, 20000+2*i),
			fmt.Sprintf("{from: [{ipBlock: {cidr: 172.16.%d.0/24}}]}", i%selectedEndpoints)))
	}
	if err := node.WriteManifest("more.yaml", text.String()); err != nil {
		return err
	}
	if err := awaitPolicies(ctx, agent, morePolicies); err != nil {
		return err
	}
	time.Sleep(3 * time.Second) // until temporary memory is released
	after, err := residentMemory(node)
	if err != nil {
		return err
	}
	each := (after - before) * 1024 / morePolicies
	b.report(fmt.Sprintf("resident memory of the agent for each of %d policies more, 3 rules each", morePolicies),
		fmt.Sprintf("%.1f KB", each), figures.Value{Number: each, Unit: "KB"}, unlimited)
	compiled, err := agentclient.Rows[*policyentries.Policy](ctx, agent, "policy-entries")
	if err != nil {
		return err
	}
	entries, ranges := 0, 0
	for _, c := range compiled {
		entries, ranges = entries+c.Entries, ranges+c.Ranges
	}
	b.report("entries of those policies and ids, in policy (policy_ranges)", fmt.Sprintf("%d (%d), %d ids", entries, ranges, len(compiled)),
		figures.Value{Number: float64(entries), Unit: "entries"}, unlimited)
	return b.mapMemory(ctx, node, agent)
}

// awaitPolicies waits until the agent knows at least atLeast policies.
func awaitPolicies(ctx context.Context, agent *agentclient.Client, atLeast int) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		all, err := agentclient.Rows[*policies.Policy](ctx, agent, "policies")
		if err != nil || len(all) >= atLeast {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d policies are known, want %d: %w", len(all), atLeast, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// mapMemory prints the memory that the kernel currently charges for the maps.
func (b *bench) mapMemory(ctx context.Context, node *nodekit.Node, agent *agentclient.Client) error {
	rows, err := agentclient.Rows[*bpfmaps.Map](ctx, agent, "bpf-maps")
	if err != nil {
		return err
	}
	all := uint64(0)
	for _, row := range rows {
		memory, err := memoryOf(node, row.Pin)
		if err != nil {
			return err
		}
		all += memory
		if slices.Contains([]string{bpf.MapPolicy, bpf.MapPolicyRanges, bpf.MapCIDRs, bpf.MapCtEst4, bpf.MapCtEst6, bpf.MapCtNew4, bpf.MapCtNew6}, row.Name) {
			b.report(fmt.Sprintf("kernel memory of map %s, %d entries at most", row.Name, row.MaxEntries), fmt.Sprintf("%.0f KB", float64(memory)/1e3),
				figures.Value{Number: float64(memory) / 1e3, Unit: "KB"}, unlimited)
		}
	}
	b.report("kernel memory of all maps", fmt.Sprintf("%.1f MB", float64(all)/1e6), megabytes(float64(all)/1e6), mapMemoryBudget)
	return nil
}

func memoryOf(node *nodekit.Node, pin string) (bytes uint64, err error) {
	err = node.Do(func() error {
		m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return fmt.Errorf("open the map at %s: %w", pin, err)
		}
		defer m.Close()
		info, err := m.Info()
		if err != nil {
			return fmt.Errorf("ask the kernel about the map at %s: %w", pin, err)
		}
		bytes, _ = info.Memlock() // an empty trie takes none
		return nil
	})
	return bytes, err
}
