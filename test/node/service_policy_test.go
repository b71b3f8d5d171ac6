package node_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
)

// shopManifests are the pods of the namespace "shop" with the labels that policies select.
const shopManifests = `
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {kubernetes.io/metadata.name: shop}}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: one, labels: {role: server}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: other, labels: {role: other}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: friend, labels: {role: friend}}, spec: {containers: [{name: c}]}}
---
{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: stranger, labels: {role: stranger}}, spec: {containers: [{name: c}]}}
`

// The policies allow friends and one address of the outside to reach the server, which may open no connection; the friend may reach servers only.
const shopPolicies = `
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: server},
 spec: {podSelector: {matchLabels: {role: server}}, policyTypes: [Ingress, Egress], ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}, %s],
  ports: [{protocol: TCP, port: 8080}, {protocol: UDP, port: 8080}]}]}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: friend},
 spec: {podSelector: {matchLabels: {role: friend}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {role: server}}}],
  ports: [{protocol: TCP, port: 8080}, {protocol: UDP, port: 8080}]}]}}
`

// Policies apply to the ends of a connection through a service: to the address and port of the backend, and the client's own address.
func TestPrivilegedService_PoliciesMatchClientAndBackend(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m := newStoppedServiceFixture(t, mode.args...)
			outside := func(block string) { m.write(t, "shop.yaml", shopManifests+fmt.Sprintf(shopPolicies, block)) }
			outside("{ipBlock: {cidr: 192.0.2.1/32}}, {ipBlock: {cidr: \"2001:db8:2::1/128\"}}")
			m.start(t)
			friend, deniedPod := m.pod(t, "friend"), m.pod(t, "stranger")
			m.pod(t, "other", 8080)
			m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
			m.backends(t, "one")
			each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
				m.served(t, to.String()+"/"+strings.ToUpper(network), 1)
				m.reaches(t, m.OutsideHost(), network, to, "one")
				m.reaches(t, friend, network, to, "one")
				m.getsNoReply(t, deniedPod, network, to)
			})
			each(webAddrs, 80, func(network string, to netip.AddrPort) {
				m.reaches(t, friend, network, to, "one")
				m.getsNoReply(t, deniedPod, network, to)
				m.reaches(t, m.pods["one"], network, to, "one") // a pod always reaches itself
				m.explains(t, "shop/friend", network, to, models.PolicyVerdictAllowed, "shop/one")
				m.explains(t, "shop/stranger", network, to, models.PolicyVerdictDenied, "shop/one")
				m.explains(t, "shop/one", network, to, models.PolicyVerdictAllowed, "shop/one")
			})
			// The service with the same address gets another backend, which the friend may not reach.
			m.backends(t, "other")
			outside("{ipBlock: {cidr: 192.0.2.2/32}}, {ipBlock: {cidr: \"2001:db8:2::2/128\"}}")
			each(webAddrs, 80, func(network string, to netip.AddrPort) {
				m.getsNoReply(t, friend, network, to)
				m.reaches(t, deniedPod, network, to, "other")
				m.explains(t, "shop/friend", network, to, models.PolicyVerdictDenied, "shop/other")
				m.explains(t, "shop/stranger", network, to, models.PolicyVerdictAllowed, "shop/other")
			})
			m.backends(t, "one")
			each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
				eventually(t, func() error {
					if a, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); err == nil {
						return fmt.Errorf("%s over %s: one who may not is answered: %+v", to, network, a)
					}
					return nil
				})
				m.getsNoReply(t, m.OutsideHost(), network, to)
			})
		})
	}
}

// explains requests the verdict on a service with one backend, without a packet. Both the policies and the kernel evaluate the backend.
func (m *serviceFixture) explains(t *testing.T, from, network string, to netip.AddrPort, verdict models.PolicyVerdict, backend string) {
	t.Helper()
	c := api(m.Node)
	eventually(t, func() error { // tables and kernel agree after a short delay
		e, err := c.PolicyExplain(t.Context(), models.GetPolicyExplainParams{From: from, To: to.Addr().String(),
			Port: fmt.Sprintf("%d/%s", to.Port(), strings.ToUpper(network))})
		if err != nil {
			return err
		}
		if e.Verdict != verdict || e.Service.Name != "shop/web" || e.Service.Message != "" || len(e.Backends) != 1 || e.Backends[0].To.Pod != backend {
			return fmt.Errorf("from %s to %s over %s it says %s, want %s by way of %s: %+v", from, to, network, e.Summary, verdict, backend, e.Service)
		}
		for name, side := range map[string]*models.PolicySide{"egress": &e.Backends[0].Egress, "ingress": &e.Backends[0].Ingress} {
			if from != backend && !side.Kernel.Agrees {
				return fmt.Errorf("from %s to %s, %s: the kernel does not agree: %+v", from, to, name, side.Kernel)
			}
		}
		return nil
	})
}
