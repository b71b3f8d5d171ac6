package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The API server of one node is unavailable, and pods start on the other node: the first node knows them by the VNI of their packets. Policies apply to them,
// and they never count as the entity world. Pods with an identity that is new to the disconnected node stay unknown.
func TestPrivilegedTunnel_UnknownRemotePods(t *testing.T) {
	t.Parallel()
	all := startKubeCluster(t, 2, "--routing-mode=tunnel", "--prometheus-serve-addr", metricsAddress)
	one, two := all[0], all[1]
	two.server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server"}, Spec: json.RawMessage(
		`{"endpointSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"fromEndpoints": [{"matchLabels": {"app": "client"}}]}, {"fromEntities": ["world"]}]}`)},
		&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shielded"}, Spec: json.RawMessage(
			`{"endpointSelector": {"matchLabels": {"app": "shielded"}}, "enableDefaultDeny": {"ingress": false}, "ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "other"}}]}]}`)})
	two.awaitRow(t, "policies", "default/shielded")
	server := two.startPod(t, "server", map[string]string{"app": "server"})
	shielded := two.startPod(t, "shielded", map[string]string{"app": "shielded"})
	open := two.startPod(t, "open", map[string]string{"app": "open"})
	relabelled := one.startPod(t, "former", map[string]string{"app": "client"})
	for _, pod := range []*nodekit.Pod{relabelled, one.startPod(t, "other", map[string]string{"app": "other"})} {
		for _, family := range families {
			awaitIdentity(t, two, pod.Addr(family.ipv6), one.identityOf(t, pod).Identity)
		}
	}
	awaitTunnel(t, one.Node, 2)
	awaitTunnel(t, two.Node, 2)

	two.server.Stop()
	reaches := map[string][]*nodekit.Pod{"client": {open, server, shielded}, "other": {open}, "stranger": {open}}
	pods := map[string]*nodekit.Pod{}
	for app := range reaches {
		pods[app] = one.startPod(t, "late-"+app, map[string]string{"app": app})
		one.identityOfCluster(t, pods[app])
	}
	// The identity that a node knows for an address takes precedence over the VNI.
	one.putPod("former", map[string]string{"app": "other"})
	eventually(t, func() error {
		if has, want := one.identityOf(t, relabelled).Identity, one.identityOf(t, pods["other"]).Identity; has != want {
			return fmt.Errorf("the pod with other labels has identity %d, want %d", has, want)
		}
		return nil
	})
	verdicts := func(t *testing.T) {
		var denied sync.WaitGroup // each takes a while
		defer denied.Wait()
		for _, family := range families {
			for app, pod := range pods {
				for _, target := range []*nodekit.Pod{open, server, shielded} {
					addr := target.Addr(family.ipv6)
					if !slices.Contains(reaches[app], target) {
						denied.Go(func() {
							if nodekit.PingBriefly(pod, addr, 56) == nil {
								t.Errorf("%s: pod %s reaches pod %s", family.name, pod.Name, target.Name)
							}
						})
						continue
					}
					if err := errors.Join(nodekit.Ping(pod, addr, 56), nodekit.TCP(pod, target, addr, 1<<16), nodekit.UDP(pod, target, addr, 100)); err != nil {
						t.Errorf("%s: pod %s to pod %s: %v", family.name, pod.Name, target.Name, err)
					}
				}
				if err := nodekit.Ping(server, pod.Addr(family.ipv6), 56); err != nil {
					t.Errorf("%s: the way back to %s: %v", family.name, pod.Name, err)
				}
			}
		}
	}
	t.Run("the API server is unreachable", func(t *testing.T) {
		text, err := two.Waggle(t.Context(), "db", "show", "ipcache")
		for _, pod := range pods {
			if err != nil || strings.Contains(text, pod.Addr(false).String()+"/32") {
				t.Errorf("the node has heard of pod %s: %v\n%s", pod.Name, err, text)
			}
		}
		verdicts(t)
		for _, family := range families {
			if err := nodekit.Ping(relabelled, server.Addr(family.ipv6), 56); err != nil {
				t.Errorf("%s: the pod with other labels: %v", family.name, err)
			}
		}
		const differs = "waggle_tunnel_identity_differs_total"
		if samples, err := scrape(two.Node); err != nil || samples[differs] == 0 {
			t.Errorf("%s is %v: %v", differs, samples[differs], err)
		}
	})
	if err := two.StopAgent(t.Context()); err != nil { // a killed agent may leave a copy of the objects without the last identities
		t.Fatal(err)
	}
	t.Run("its agent is stopped", verdicts)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	t.Run("its agent runs again", verdicts)
	if err := two.Do(func() error { two.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	for app, pod := range pods {
		for _, family := range families {
			awaitIdentity(t, two, pod.Addr(family.ipv6), one.identityOf(t, pods[app]).Identity)
		}
	}
	reaches["stranger"] = []*nodekit.Pod{open, shielded}
	t.Run("the node has learned the pods", verdicts)
	for _, family := range families {
		if nodekit.PingBriefly(relabelled, server.Addr(family.ipv6), 56) == nil {
			t.Errorf("%s: the pod with other labels reaches the server", family.name)
		}
	}
}
