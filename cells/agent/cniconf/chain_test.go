package cniconf

import (
	"slices"
	"strings"
	"testing"
)

// listOf returns the agent's list, as another program encodes it, with given entries instead of its plugins.
func listOf(entries string) string {
	return `{"name":"waggle","plugins":[` + entries + `],"cniVersions":["0.3.1","0.4.0","1.0.0","1.1.0"],"cniVersion":"1.0.0"}`
}

func TestMerge_KeepsPluginsOfOtherPrograms(t *testing.T) {
	t.Parallel()
	const (
		own     = `{"type":"waggle-cni","state-dir":"/run/w","socket-path":"/run/w/waggle.sock"}`
		old     = `{"type":"waggle-cni","state-dir":"/run/w","socket-path":"/old.sock","log-file":"/x"}`
		portmap = `{"capabilities":{"portMappings":true},"type":"portmap"}`
		istio   = `{"type":"istio-cni","kubernetes":{"exclude":["a<b"]},"n":1500}`
		tuning  = `{"type":"tuning"}`
	)
	for name, c := range map[string]struct {
		mode, present string
		want          string // entries of the merged list
		added         []string
	}{
		"no file":                        {"none", "", own, nil},
		"equal":                          {"none", listOf(own), own, nil},
		"plugins behind":                 {"none", listOf(own + "," + istio + "," + tuning), own + "," + istio + "," + tuning, []string{"istio-cni", "tuning"}},
		"own entry of another setting":   {"none", listOf(old + "," + istio), own + "," + istio, []string{"istio-cni"}},
		"own entry twice":                {"none", listOf(own + "," + istio + "," + old), own + "," + istio, []string{"istio-cni"}},
		"own entry is not the first":     {"none", listOf(tuning + "," + own), own + "," + tuning, []string{"tuning"}},
		"own entry is missing":           {"none", listOf(istio), own + "," + istio, []string{"istio-cni"}},
		"portmap turned on":              {"portmap", listOf(own + "," + istio), own + "," + portmap + "," + istio, []string{"istio-cni"}},
		"portmap turned off":             {"none", listOf(own + "," + portmap + "," + istio), own + "," + istio, []string{"istio-cni"}},
		"another portmap":                {"none", listOf(own + `,{"type":"portmap","snat":true}`), own + `,{"type":"portmap","snat":true}`, []string{"portmap"}},
		"entry without a type":           {"none", listOf(own + `,null,{"a":1}`), own, nil},
		"list of another name":           {"none", strings.Replace(listOf(own+","+istio), "waggle", "other", 1), own, nil},
		"another version, and a foreign": {"none", strings.Replace(listOf(own+","+istio), "1.0.0\"}", "0.3.1\"}", 1), own + "," + istio, []string{"istio-cni"}},
		"plugins are not a list":         {"none", `{"name":"waggle","plugins":{}}`, own, nil},
		"half a file":                    {"none", listOf(own)[:40], own, nil},
	} {
		o := options{Config{CNIChainingMode: c.mode}}
		wanted, err := contents(o, "/run/w", "")
		if err != nil {
			t.Fatal(err)
		}
		merged, added, err := merge([]byte(c.present), wanted)
		if err != nil || !sameJSON(merged, []byte(listOf(c.want))) || !slices.Equal(added, c.added) {
			t.Errorf("%s: added %q, %v, merged %s", name, added, err, merged)
		}
		if again, _, err := merge(merged, wanted); err != nil || string(again) != string(merged) {
			t.Errorf("%s: the merged list is merged to another one, %v: %s", name, err, again)
		}
	}
}

func TestDescribe_IsBoundedAndPrintable(t *testing.T) {
	t.Parallel()
	long := `{"type":"` + strings.Repeat("x", 1000) + `"}`
	if got := describe([]byte(listOf(strings.Repeat(long+",", 99) + long))); len(got) > 300 || !strings.HasSuffix(got, " and 95 more") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := describe([]byte(listOf(`{"type":"a"},{"type":"b"}`))); got != "its plugins are a, b" {
		t.Error(got)
	}
	if got := describe([]byte(listOf(`{"type":"a\u001b[2J\n"}`))); got != `its plugins are a\x1b[2J\n` {
		t.Errorf("not printable: %q", got)
	}
	if got := describe([]byte(`{"type":"a"}`)); got != "it is not a CNI configuration list" {
		t.Error(got)
	}
}
