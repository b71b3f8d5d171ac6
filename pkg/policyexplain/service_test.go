package policyexplain

import (
	"strings"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
)

// TestExplain_ThroughAService explains connections to addresses of services: the policies of the backends are evaluated.
func TestExplain_ThroughAService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tc := range []struct {
		from, to, port string
		scope          string
		backends       int
		verdict        models.PolicyVerdict
		summary        string
	}{
		{"shop/cart", "10.96.0.1", "8080/TCP", "internal", 1, "allowed", "allowed through service shop/web at 10.96.0.1:8080/TCP: 10.0.0.1 80/TCP: allowed: egress " +
			"of the sender: CiliumNetworkPolicy shop/out spec.egress[0] allows it; ingress of the receiver: NetworkPolicy shop/web spec.ingress[0] allows it"},
		{"shop/free", "10.96.0.1", "8080/TCP", "internal", 1, "denied", "denied towards 1 of 1 backends of service shop/web at 10.96.0.1:8080/TCP: 10.0.0.1 80/TCP: " +
			"denied in ingress of the receiver"},
		{"shop/web", "10.96.0.1", "8080/TCP", "internal", 1, "allowed", "allowed through service shop/web"}, // the client is its own backend
		{"shop/cart", "10.96.0.2", "8080/TCP", "internal", 2, "denied", "denied towards 1 of 2 backends of service shop/both at 10.96.0.2:8080/TCP: 10.0.9.9 80/TCP: " +
			"denied in egress of the sender"},
		{"10.0.0.100", "10.96.0.2", "8080/TCP", "internal", 2, "allowed", "allowed through service shop/both at 10.96.0.2:8080/TCP, towards all of 2 backends"},
		{"shop/cart", "10.96.0.3", "8080/TCP", "internal", 0, "denied", "denied by service shop/none at 10.96.0.3:8080/TCP: it has no backend"},
		{"shop/cart", "10.96.0.4", "8080/TCP", "internal", 1, "denied", "its backends are no longer known"},
		{"shop/free", "10.96.0.5", "53/UDP", "internal", 20, "allowed", "towards all of the first 16 backends"},
		{"192.0.2.7", "198.51.100.80", "443/TCP", "external", 1, "allowed", "10.0.0.1 80/TCP: allowed by this node: ingress of the receiver: NetworkPolicy shop/web spec.ingress[1]"},
		{"203.0.113.1", "198.51.100.80", "443/TCP", "external", 1, "denied", "203.0.113.1 lies outside of its loadBalancerSourceRanges"},
		{"192.0.2.7", "198.51.100.80", "444/TCP", "external", 1, "allowed", "10.0.0.1 80/TCP: allowed by this node"},
		{"203.0.113.1", "198.51.100.80", "444/TCP", "external", 1, "denied", "203.0.113.1 lies in its loadBalancerSourceRanges, which deny"},
		{"shop/free", "198.51.100.80", "443/TCP", "internal", 2, "denied", "denied towards 1 of 2 backends"},
		{"192.0.2.7", "10.96.0.1", "8080/TCP", "external", 1, "denied", "clients outside the cluster are not served there"},
		{"192.0.2.7", "10.0.0.100", "30080/TCP", "external", 0, "denied", "no backend of this node answers for it, and its traffic policy is Local"},
		{"shop/far", "10.0.0.100", "30080/TCP", "external", 0, "denied", "no backend of this node answers for it"}, // the connection arrives from the network
		{"shop/cart", "10.0.0.100", "30080/TCP", "internal", 1, "allowed", "10.0.0.1 80/TCP: allowed"},
		{"10.0.0.100", "127.0.0.1", "30080/TCP", "internal", 1, "allowed", "10.0.0.1 80/TCP: allowed"},
		{"shop/cart", "10.96.0.6", "8080/TCP", "internal", 1, "allowed", "allowed through service shop/near"},
		{"10.0.0.100", "10.96.0.6", "8080/TCP", "internal", 1, "allowed", "allowed through service shop/near"},
		{"id:302", "10.96.0.1", "8080/TCP", "internal", 1, "allowed", "allowed through service shop/web"},
	} {
		e, err := f.tables.View().Explain(tc.from, tc.to, tc.port, f.kernel)
		if err != nil {
			t.Errorf("%s -> %s %s: %v", tc.from, tc.to, tc.port, err)
			continue
		}
		if e.Verdict != tc.verdict || !strings.Contains(e.Summary, tc.summary) || e.Service.Scope != tc.scope || e.Service.Backends != tc.backends {
			t.Errorf("%s -> %s %s: %s, %s, %+v\nwant %s, %s, %s, %d backends", tc.from, tc.to, tc.port, e.Verdict, e.Summary, e.Service, tc.verdict, tc.summary,
				tc.scope, tc.backends)
		}
		if e.Port != tc.port || e.To.Address != tc.to || e.Egress.Here || e.Ingress.Here {
			t.Errorf("%s -> %s %s: it is about %s %s, %+v, %+v", tc.from, tc.to, tc.port, e.To.Address, e.Port, e.Egress, e.Ingress)
		}
		for _, b := range e.Backends {
			for name, side := range map[string]*models.PolicySide{"egress": &b.Egress, "ingress": &b.Ingress} {
				if side.Here && side.Message != "" && side.Verdict != "" && !side.Kernel.Agrees {
					t.Errorf("%s -> %s %s, %s: the maps do not agree: %+v", tc.from, tc.to, tc.port, name, side.Kernel)
				}
			}
		}
	}
}

// TestExplain_NotAService: another port of a service's address, and the loopback address of a pod.
func TestExplain_NotAService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, to := range [][2]string{{"10.96.0.1", "8081/TCP"}, {"10.96.0.1", "8080/UDP"}, {"10.96.0.1", "8/ICMP"}, {"127.0.0.1", "30080/TCP"}} {
		e, err := f.tables.View().Explain("shop/free", to[0], to[1], f.kernel)
		if err != nil || e.Service != (models.PolicyService{}) || e.Backends != nil || !e.Egress.Here {
			t.Errorf("%s: %v, %+v", to, err, e)
		}
	}
}

// TestExplain_UnknownToThisNode: a client without an address for a service with source ranges, and a client whose own node has other backends.
func TestExplain_UnknownToThisNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tc := range []struct{ from, to, port, message string }{
		{"id:9", "198.51.100.80", "443/TCP", "service shop/lb at 198.51.100.80:443/TCP: the allowed clients depend on the client's address"},
		{"shop/far", "10.96.0.6", "8080/TCP", "service shop/near at 10.96.0.6:8080/TCP: the client's own node chooses among its own backends"},
		{"id:302", "10.96.0.6", "8080/TCP", "ask there"},
	} {
		if e, err := f.tables.View().Explain(tc.from, tc.to, tc.port, f.kernel); err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s -> %s %s: %+v, %v, want %s", tc.from, tc.to, tc.port, e, err, tc.message)
		}
	}
}

func TestExplain_ReportsServiceAndConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func(to string) *models.PolicyExplanation {
		e, err := f.tables.View().Explain("shop/cart", to, "8080/TCP", f.kernel)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := ask("10.96.0.1")
	want := models.PolicyService{Name: "shop/web", ID: 1, Frontend: "10.96.0.1:8080/TCP", Type: "ClusterIP", Scope: "internal", Backends: 1}
	if e.Service != want || len(e.Backends) != 1 || e.Backends[0].To.Pod != "shop/web" || e.Backends[0].Port != "80/TCP" {
		t.Errorf("got %+v, %+v", e.Service, e.Backends)
	}
	if c := e.Backends[0].Conntrack; len(c) != 1 || c[0] != "10.0.0.2 -> 10.0.0.1 80/6" {
		t.Errorf("connections: %q", c)
	}
	if e = ask("10.96.0.2"); e.Backends[0].Conntrack != nil || e.Backends[0].ConntrackError == "" {
		t.Errorf("towards two backends: %+v", e.Backends)
	}
	if e = ask("10.96.0.3"); e.Service.Message != "not in the kernel as desired: full" {
		t.Errorf("a frontend that failed: %+v", e.Service)
	}
	if e = ask("10.96.0.7"); e.Service.Backends != 3 || e.Service.Missing != 2 || len(e.Backends) != 1 {
		t.Errorf("two of three backends are not known any more: %+v, %+v", e.Service, e.Backends)
	}
	six, err := f.tables.View().Explain("id:302", "fd96::1", "8080/TCP", f.kernel)
	if err != nil || six.Service.Name != "shop/six" || len(six.Backends) != 1 || six.Backends[0].To.Address != "fd00::9" {
		t.Errorf("IPv6: %v, %+v", err, six)
	}
}
