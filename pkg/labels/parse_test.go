package labels

import "testing"

func FuzzParse(f *testing.F) {
	f.Add("k8s:app=web", "a:b")
	f.Add("reserved:host", "k8s:io.cilium.k8s.namespace.labels.x=y=z")
	f.Fuzz(func(t *testing.T, a, b string) {
		parsed, err := Parse([]string{a, b})
		if err != nil {
			return
		}
		for key := range parsed {
			if s := SourceOf(key); s == "" || s == SourceReserved || s == "cidr" || s == key {
				t.Fatalf("accepted %q from %q, %q", key, a, b)
			}
		}
	})
}
