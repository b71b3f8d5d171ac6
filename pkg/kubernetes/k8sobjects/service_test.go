package k8sobjects

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// TestService_OneBadItem: an API server accepts addresses that are invalid for the agent, and spaces around ranges. The rest of the Service is served.
func TestService_OneBadItem(t *testing.T) {
	t.Parallel()
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	for name, test := range map[string]struct {
		ranges, external, ingress []string
		want                      []netip.Prefix
		addrs                     string // external and ingress addresses
		problems                  []string
	}{
		"nothing":                 {},
		"spaces":                  {ranges: []string{" 10.0.0.0/8", "fd00::1/16\t"}, want: prefixes("10.0.0.0/8", "fd00::/16")},
		"one bad range":           {ranges: []string{"10.0.0.0/8", "010.1.0.0/16"}, want: prefixes("10.0.0.0/8"), problems: []string{"spec.loadBalancerSourceRanges[1]: "}},
		"all ranges bad":          {ranges: []string{" ", "all"}, want: prefixes("0.0.0.0/32"), problems: []string{"spec.loadBalancerSourceRanges[0]: ", `[1]: Invalid value: "all"`}},
		"a bad external IP":       {external: []string{"192.0.2.1", "::ffff:192.0.2.2"}, addrs: "192.0.2.1", problems: []string{"spec.externalIPs[1]: "}},
		"a bad address of status": {ingress: []string{"192.0.2.010", "192.0.2.3"}, addrs: "192.0.2.3", problems: []string{"status.loadBalancer.ingress[0]: "}},
		"repeated values": {ranges: []string{"10.0.0.0/8", "10.0.0.0/8 "}, external: []string{"192.0.2.1", "192.0.2.1"}, ingress: []string{"192.0.2.3", "192.0.2.3"},
			want: prefixes("10.0.0.0/8"), addrs: "192.0.2.1 192.0.2.3"},
		"many":       {external: slices.Repeat([]string{"x"}, 1000), problems: append(slices.Repeat([]string{"spec.externalIPs["}, maxProblems), "and 992 more")},
		"a long one": {external: []string{strings.Repeat("x", 1000)}, problems: []string{`"` + strings.Repeat("x", maxShown) + `..."`}},
	} {
		o := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}, Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: test.ranges,
			ExternalIPs: test.external}}
		for _, ip := range test.ingress {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		row, err := Service(o)
		if err != nil {
			t.Errorf("%s: the Service is rejected: %v", name, err)
			continue
		}
		var addrs []string
		for _, a := range slices.Concat(row.ExternalIPs, row.IngressIPs) {
			addrs = append(addrs, a.String())
		}
		if len(row.ClusterIPs) != 1 || !slices.Equal(row.SourceRanges, test.want) || strings.Join(addrs, " ") != test.addrs {
			t.Errorf("%s: got %v, ranges %v, addresses %v", name, row.ClusterIPs, row.SourceRanges, addrs)
		}
		if !slices.EqualFunc(row.Problems, test.problems, strings.Contains) {
			t.Errorf("%s: problems %q, want those with %q", name, row.Problems, test.problems)
		}
	}
}

// TestService_Labelled: a row has all labels as one text, unless they are long.
func TestService_Labelled(t *testing.T) {
	t.Parallel()
	o := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}}
	o.Labels = map[string]string{"tier": "back", "app.kubernetes.io/name": "db", "empty": ""}
	row, err := Service(o)
	if err != nil || row.Labelled != "app.kubernetes.io/name=db,empty=,tier=back" || len(row.Labels) != 0 {
		t.Errorf("%v: %+v", err, row)
	}
	for i := range 100 {
		o.Labels[strings.Repeat("x", 50)+strconv.Itoa(i)] = ""
	}
	if row, err = Service(o); err != nil || row.Labelled != k8s.TooManyLabels {
		t.Errorf("%v: %.100q", err, row.Labelled)
	}
}
