package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// trafficManifests isolate the pods of [startTraffic] in both directions, by labels and by addresses: the policies allow the talkers exactly their own traffic,
// and the recluse only talker-a.
const trafficManifests = `
---
{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {kubernetes.io/metadata.name: default}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: talker-a, labels: {role: talker, friend: recluse}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: talker-b, labels: {role: talker}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: talker-c, labels: {role: talker}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: recluse, labels: {role: recluse}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: outcast, labels: {role: outcast}}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: default, name: talkers-hear},
 spec: {podSelector: {matchLabels: {role: talker}}, policyTypes: [Ingress],
  ingress: [{from: [{podSelector: {matchLabels: {role: talker}}}, {ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}, {ipBlock: {cidr: "2001:db8:2::/64"}}]}]}}
---
{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {namespace: default, name: talkers-say},
 spec: {endpointSelector: {matchLabels: {role: talker}}, egress: [{toEndpoints: [{matchLabels: {role: talker}}, {matchLabels: {role: recluse}}]},
  {toEntities: [host]}, {toCIDRSet: [{cidr: 192.0.2.0/24, except: [192.0.2.128/25]}, {cidr: "2001:db8:2::/64"}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: default, name: recluse},
 spec: {podSelector: {matchLabels: {role: recluse}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {friend: recluse}}}]}]}}
`

// isolation holds two pods that must not reach each other and try to do so continuously, in both directions.
type isolation struct {
	friend, recluse, outcast *nodekit.Pod
	atRecluse, atOutcast     *tap
	tries                    atomic.Int64
	stop                     context.CancelFunc
	group                    errgroup.Group
}

// isolate writes the policies and waits until the agent knows them: pods that are attached later are isolated from the first packet.
func isolate(t *testing.T, node *nodekit.Node) {
	t.Helper()
	if err := os.WriteFile(manifestOfTraffic(node), []byte(trafficManifests), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "db", "show", "policies")
		if err == nil && (strings.Count(text, "talkers") != 2 || !strings.Contains(text, "recluse")) {
			err = fmt.Errorf("policies are missing:\n%s", text)
		}
		return err
	})
}

func manifestOfTraffic(node *nodekit.Node) string {
	return filepath.Join(node.ManifestsDir(), "traffic.yaml")
}

// startForbidden starts attempts of the recluse and an outcast to reach each other, until end is called.
func startForbidden(t *testing.T, node *nodekit.Node, friend *nodekit.Pod) *isolation {
	t.Helper()
	i := &isolation{friend: friend, recluse: addPod(t, node, "recluse"), outcast: addPod(t, node, "outcast")}
	i.atRecluse, i.atOutcast = listenAll(t, i.recluse), listenAll(t, i.outcast)
	ctx, cancel := context.WithCancel(t.Context())
	i.stop = cancel
	for _, way := range [][2]*nodekit.Pod{{i.recluse, i.outcast}, {i.outcast, i.recluse}} {
		i.group.Go(func() error { return i.try(ctx, way[0], way[1]) })
	}
	return i
}

// betweenTries limits the additional load of the tries on a machine with two cores.
const betweenTries = 20 * time.Millisecond

// try begins new connections until the context ends.
func (i *isolation) try(ctx context.Context, from, to *nodekit.Pod) error {
	return from.Do(func() error {
		for ; ctx.Err() == nil; time.Sleep(betweenTries) {
			for _, addr := range addrsOf(to) {
				for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
					if err := begin(kind, addr); err == nil {
						i.tries.Add(1)
					}
				}
			}
		}
		return nil
	})
}

// addrsOf returns the addresses of a pod.
func addrsOf(p *nodekit.Pod) []netip.Addr { return []netip.Addr{p.Addr(false), p.Addr(true)} }

// end requires that no packet arrived and that the listeners would have received one; then it removes the pods and the policies.
func (i *isolation) end(t *testing.T, node *nodekit.Node) {
	t.Helper()
	i.stop()
	if err := i.group.Wait(); err != nil {
		t.Error(err)
	}
	tries := i.tries.Load()
	if in, out := i.atRecluse.from(addrsOf(i.outcast)...), i.atOutcast.from(addrsOf(i.recluse)...); in+out > 0 || tries == 0 {
		t.Errorf("of %d tries %d packets reached the recluse and %d the outcast", tries, in, out)
	}
	t.Logf("%d connections were begun that policies deny", tries)
	for _, addr := range addrsOf(i.recluse) {
		if err := nodekit.Ping(i.friend, addr, 56); err != nil {
			t.Errorf("the permitted peer of the recluse does not reach it: %v", err)
		}
	}
	eventually(t, func() error {
		for _, addr := range addrsOf(i.friend) {
			if i.atRecluse.from(addr) == 0 {
				return fmt.Errorf("the recluse replies to %s, and its listener has not seen that address", addr)
			}
		}
		return nil
	})
	if err := errors.Join(i.recluse.Detach(t.Context()), i.outcast.Detach(t.Context()), os.Remove(manifestOfTraffic(node))); err != nil {
		t.Error(err)
	}
}
