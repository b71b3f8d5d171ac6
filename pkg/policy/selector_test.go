package policy

import "testing"

func TestSelector_Matches(t *testing.T) {
	t.Parallel()
	pod := map[string]string{"k8s:app": "web", "k8s:reserved:host": "", "container:app": "db", "k8s:io.kubernetes.pod.namespace": "red"}
	host := map[string]string{"reserved:host": ""}
	in := func(source, key string, values ...string) Requirement { return Requirement{source, key, In, values} }
	is := func(source, key string, operator Operator) Requirement {
		return Requirement{Source: source, Key: key, Operator: operator}
	}
	for name, c := range map[string]struct {
		demands   []Requirement
		pod, host bool
	}{
		"nothing":                      {nil, true, true},
		"a value":                      {[]Requirement{in("k8s", "app", "db", "web")}, true, false},
		"another value":                {[]Requirement{in("k8s", "app", "db")}, false, false},
		"any source has the value":     {[]Requirement{in(AnySource, "app", "db")}, true, false},
		"no source has the value":      {[]Requirement{in(AnySource, "app", "x")}, false, false},
		"not in":                       {[]Requirement{{"k8s", "app", NotIn, []string{"db"}}}, true, true},
		"not in, of any source":        {[]Requirement{{AnySource, "app", NotIn, []string{"db"}}}, false, true},
		"in an empty list":             {[]Requirement{in("k8s", "app")}, false, false},
		"a reserved label":             {[]Requirement{is("reserved", "host", Exists)}, false, true},
		"any source is never reserved": {[]Requirement{is(AnySource, "host", Exists)}, false, false},
		"nor is its absence":           {[]Requirement{is(AnySource, "host", DoesNotExist)}, true, true},
		"a key with a colon":           {[]Requirement{is("k8s", "reserved:host", Exists)}, true, false},
		"a key with a colon, of any":   {[]Requirement{is(AnySource, "reserved:host", Exists)}, true, false},
		"all must match":               {[]Requirement{in("k8s", "app", "web"), is("k8s", "app", DoesNotExist)}, false, false},
		"no such operator":             {[]Requirement{is("k8s", "app", "Like")}, false, false},
	} {
		s := Selector{c.demands}
		if got := s.Matches(pod); got != c.pod {
			t.Errorf("%s: %s chooses the pod: %t", name, &s, got)
		}
		if got := s.Matches(host); got != c.host {
			t.Errorf("%s: %s chooses the host: %t", name, &s, got)
		}
	}
}
