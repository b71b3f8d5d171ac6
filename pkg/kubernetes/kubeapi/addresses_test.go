package kubeapi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

func TestParseServers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		in    []string
		want  []string
		fails string
	}{
		{in: []string{"10.0.0.1:8080"}, want: []string{"http://10.0.0.1:8080"}},
		{in: []string{"https://a:6443, https://b:6443/", "https://a:6443"}, want: []string{"https://a:6443", "https://b:6443"}},
		{in: []string{"[fd00::1]:8080"}, want: []string{"http://[fd00::1]:8080"}},
		{in: []string{"https://host/path/"}, want: []string{"https://host/path"}},
		{in: []string{"", " , "}, want: nil},
		{in: []string{"https://a", "b:80"}, fails: `"b:80": scheme and path must be the same as in "https://a"`},
		{in: []string{"https://a/x,https://b/y"}, fails: "scheme and path"},
		{in: []string{"ftp://a"}, fails: `"ftp"`},
		{in: []string{"https://user:secret@a"}, fails: "only scheme"},
		{in: []string{"https://a?x=y"}, fails: "only scheme"},
		{in: []string{"https://"}, fails: "the host is missing"},
		{in: []string{"a:"}, fails: "the port is missing"},
		{in: []string{"a:0"}, fails: "the port is a number"},
		{in: []string{"a:65536"}, fails: "the port is a number"},
		{in: []string{"http://[zz::1]:80"}, fails: "not an"},
	} {
		got, err := kubeapi.ParseServers(test.in)
		switch {
		case test.fails == "" && (err != nil || !slices.Equal(got, test.want)):
			t.Errorf("%q: %q, %v, want %q", test.in, got, err, test.want)
		case test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)):
			t.Errorf("%q: %q, error %v, want one that says %s", test.in, got, err, test.fails)
		}
	}
}

// FuzzParseServers checks that the result of parsing is parsed to the same result again.
func FuzzParseServers(f *testing.F) {
	for _, seed := range []string{"10.0.0.1:80", "https://a:6443,https://b:6443", "[fd00::1]:8080", "http://[fe80::1%25eth0]:80", "a:,b", "https://h/p%2f/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		once, err := kubeapi.ParseServers([]string{in})
		if err != nil {
			return
		}
		again, err := kubeapi.ParseServers(once)
		if err != nil || !slices.Equal(once, again) {
			t.Errorf("%q gives %q, and that gives %q, %v", in, once, again, err)
		}
		for _, server := range once {
			if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") {
				t.Errorf("%q gives %q", in, server)
			}
		}
	})
}
