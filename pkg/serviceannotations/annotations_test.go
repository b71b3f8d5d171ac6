package serviceannotations

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// TestParse_OneAnnotation: a value takes effect, or is a problem and as if the annotation were absent.
func TestParse_OneAnnotation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value string
		want       Wanted
	}{
		"a kind":                        {Type, "NodePort", Wanted{Kind: frontends.NodePort}},
		"no kind":                       {Type, "", Wanted{}},
		"a kind in other letters":       {Type, "nodeport", Wanted{Problems: []string{`annotation service.cilium.io/type="nodeport": use ClusterIP, NodePort or LoadBalancer`}}},
		"an unknown kind":               {Type, "ExternalIPs", Wanted{Problems: []string{`annotation service.cilium.io/type="ExternalIPs": use ClusterIP, NodePort or LoadBalancer`}}},
		"maglev":                        {Algorithm, "Maglev", Wanted{Algorithm: "maglev"}},
		"random":                        {Algorithm, "random", Wanted{Algorithm: "random"}},
		"another algorithm":             {Algorithm, "least", Wanted{Problems: []string{`annotation service.cilium.io/lb-algorithm="least": use random or maglev`}}},
		"default forwarding":            {Forwarding, "SNAT", Wanted{}},
		"direct server return":          {Forwarding, "dsr", Wanted{Problems: []string{`annotation service.cilium.io/forwarding-mode="dsr": there is snat only`}}},
		"ranges that allow":             {SourceRanges, "allow", Wanted{}},
		"ranges that deny":              {SourceRanges, "Deny", Wanted{DenyRanges: true}},
		"ranges that do neither":        {SourceRanges, "drop", Wanted{Problems: []string{`annotation service.cilium.io/src-ranges-policy="drop": use allow or deny`}}},
		"an unknown key":                {prefix + "global", "true", Wanted{Problems: []string{"annotation service.cilium.io/global: not supported"}}},
		"a key of EndpointSlices":       {prefix + "weight", "7", Wanted{Problems: []string{"annotation service.cilium.io/weight: not supported"}}},
		"a key in other letters":        {prefix + "Type", "NodePort", Wanted{Problems: []string{"annotation service.cilium.io/Type: not supported"}}},
		"a key of another prefix":       {"io.cilium/type", "x", Wanted{}},
		"a key with the same beginning": {"service.cilium.io", "x", Wanted{}},
	} {
		got := Parse(map[string]string{c.key: c.value})
		if got.Kind != c.want.Kind || got.Algorithm != c.want.Algorithm || got.DenyRanges != c.want.DenyRanges || !slices.Equal(got.Problems, c.want.Problems) || !got.OnNode(nil) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestParse_Problems: problems are sorted, one for each annotation.
func TestParse_Problems(t *testing.T) {
	t.Parallel()
	w := Parse(map[string]string{prefix + "b": "", Type: "x", prefix + "a": "", Algorithm: "maglev"})
	if len(w.Problems) != 3 || !slices.IsSorted(w.Problems) || w.Algorithm != "maglev" {
		t.Errorf("got %+v", w)
	}
}

// TestParse_ManyProblems: 10,000 annotations without effect result in 8 problems and a number; other annotations have their effect.
func TestParse_ManyProblems(t *testing.T) {
	t.Parallel()
	annotations := map[string]string{Type: "NodePort"}
	for i := range 10000 {
		annotations[fmt.Sprint(prefix, i)] = ""
	}
	w := Parse(annotations)
	if len(w.Problems) != 9 || w.Problems[0] != "annotation service.cilium.io/0: not supported" || w.Problems[8] != "annotations: 9992 more have no effect" ||
		w.Kind != frontends.NodePort {
		t.Errorf("got %+v", w)
	}
}

func TestOnNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		annotations map[string]string
		labels      map[string]string
		want        bool
		problems    int
	}{
		"no annotation":               {nil, nil, true, 0},
		"the label":                   {map[string]string{Node: "edge"}, map[string]string{Node: "edge"}, true, 0},
		"another label":               {map[string]string{Node: "edge"}, map[string]string{Node: "core"}, false, 0},
		"an empty value and no label": {map[string]string{Node: ""}, nil, true, 0},
		"a selector that matches":     {map[string]string{NodeSelector: "rack in (1,2),!gpu"}, map[string]string{"rack": "2"}, true, 0},
		"a selector that does not":    {map[string]string{NodeSelector: "rack in (1,2),!gpu"}, map[string]string{"rack": "2", "gpu": ""}, false, 0},
		"a node without labels":       {map[string]string{NodeSelector: "rack=1"}, nil, false, 0},
		"an empty selector":           {map[string]string{NodeSelector: ""}, nil, true, 0},
		"the selector precedes node":  {map[string]string{NodeSelector: "rack=1", Node: "edge"}, map[string]string{"rack": "1"}, true, 0},
		"an empty value of a label":   {map[string]string{NodeSelector: "rack=="}, map[string]string{"rack": ""}, true, 0},
		"a selector with a mistake":   {map[string]string{NodeSelector: "rack in"}, nil, true, 1},
		"too long selector":           {map[string]string{NodeSelector: strings.Repeat("rack,", 1000) + "rack"}, nil, true, 1},
		"node, and such a selector":   {map[string]string{NodeSelector: "rack in", Node: "edge"}, nil, false, 1},
	} {
		w := Parse(c.annotations)
		if got := w.OnNode(c.labels); got != c.want || len(w.Problems) != c.problems {
			t.Errorf("%s: got %t, %q, want %t and %d problems", name, got, w.Problems, c.want, c.problems)
		}
	}
}

// FuzzParse: annotations are untrusted. A problem is a bounded line of printable text, and keys of other prefixes have no effect.
func FuzzParse(f *testing.F) {
	for _, key := range []string{Type, Node, NodeSelector, Algorithm, Forwarding, SourceRanges, prefix + "global", "other"} {
		for _, value := range []string{"", "NodePort", "a in (b,c),!d", "a notin (", "maglev", "dsr", "deny", "\xff\n"} {
			f.Add(key, value)
		}
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		w := Parse(map[string]string{key: value})
		w.OnNode(map[string]string{"a": "b"})
		for _, problem := range w.Problems {
			if !strings.HasPrefix(key, prefix) || printable.Text(problem) != problem || len(problem) > 10*longest {
				t.Errorf("%q=%q: problem %q", key, value, problem)
			}
		}
		if !strings.HasPrefix(key, prefix) && (w.Kind != "" || w.Algorithm != "" || w.DenyRanges || !w.OnNode(nil)) {
			t.Errorf("%q=%q is read as %+v", key, value, w)
		}
	})
}
