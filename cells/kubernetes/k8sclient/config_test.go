package k8sclient

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// inPod returns the environment of a pod. Without files it is a host with the variables of a pod.
func inPod(t *testing.T, files ...string) environment {
	t.Helper()
	env := environment{host: "10.96.0.1", port: "443", serviceAccount: t.TempDir()}
	for _, name := range files {
		write(t, filepath.Join(env.serviceAccount, name), name)
	}
	return env
}

func kubeconfig(t *testing.T, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, filepath.Join(filepath.Dir(path), "ca.crt"), "")
	write(t, path, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],
		"clusters":[{"name":"k","cluster":{"server":"https://k:6443","certificate-authority":"ca.crt"}}],
		"users":[{"name":"u","user":`+user+`}]}`)
	return path
}

func TestNewSettings_CredentialsAndAddress(t *testing.T) {
	t.Parallel()
	path := kubeconfig(t, `{"token":"secret"}`)
	pod := inPod(t, "token", "ca.crt")
	podCA := filepath.Join(pod.serviceAccount, "ca.crt")
	podToken := filepath.Join(pod.serviceAccount, "token")
	for _, test := range []struct {
		name                       string
		change                     func(*Config)
		env                        environment
		host, token, tokenFile, ca string // host is empty when Kubernetes is off
	}{
		{name: "nothing is known"},
		{name: "off wins", change: func(c *Config) { c.Enable, c.Kubeconfig = false, path }, env: pod},
		{name: "a host with the variables of a pod is no pod", env: inPod(t, "ca.crt")},
		{name: "a pod", env: pod, host: "https://10.96.0.1:443", tokenFile: podToken, ca: podCA},
		{name: "a pod and an address", change: func(c *Config) { c.Servers = []string{"https://192.0.2.1:6443"} }, env: pod,
			host: "https://192.0.2.1:6443", tokenFile: podToken, ca: podCA},
		{name: "no token in the clear", change: func(c *Config) { c.Servers = []string{"192.0.2.1:8080"} }, env: pod, host: "http://192.0.2.1:8080"},
		{name: "a bare address", change: func(c *Config) { c.ServerURLs = []string{"192.0.2.1:8080"} }, host: "http://192.0.2.1:8080"},
		{name: "a kubeconfig precedes the pod", change: func(c *Config) { c.Kubeconfig = path }, env: pod,
			host: "https://k:6443", token: "secret", ca: filepath.Join(filepath.Dir(path), "ca.crt")},
		{name: "a kubeconfig and an address", change: func(c *Config) { c.Kubeconfig, c.Servers = path, []string{"https://192.0.2.1"} },
			host: "https://192.0.2.1", token: "secret", ca: filepath.Join(filepath.Dir(path), "ca.crt")},
	} {
		c := DefaultConfig
		if test.change != nil {
			test.change(&c)
		}
		s, err := newSettings(c, test.env)
		switch {
		case err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.host == "":
			if s.config != nil || s.origin == "" {
				t.Errorf("%s: on, %s", test.name, s.origin)
			}
		case s.config == nil:
			t.Errorf("%s: off: %s", test.name, s.origin)
		case s.config.Host != test.host, s.config.BearerToken != test.token, s.config.BearerTokenFile != test.tokenFile, s.config.CAFile != test.ca:
			t.Errorf("%s: %s %q %q %q", test.name, s.config.Host, s.config.BearerToken, s.config.BearerTokenFile, s.config.CAFile)
		case s.config.QPS != 10 || s.config.Burst != 20 || !strings.HasPrefix(s.config.UserAgent, "waggle-agent/"):
			t.Errorf("%s: %g %d %q", test.name, s.config.QPS, s.config.Burst, s.config.UserAgent)
		}
	}
}

func TestNewSettings_ErrorsNameTheFlag(t *testing.T) {
	t.Parallel()
	program := kubeconfig(t, `{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"x","interactiveMode":"Never"}}`)
	garbage, empty := filepath.Join(t.TempDir(), "garbage"), filepath.Join(t.TempDir(), "empty")
	write(t, garbage, "garbage")
	write(t, empty, `{"apiVersion":"v1","kind":"Config"}`)
	for want, change := range map[string]func(*Config){
		"--k8s-client-qps=0:":                         func(c *Config) { c.QPS = 0 },
		"--k8s-client-burst=-1:":                      func(c *Config) { c.Burst = -1 },
		"--k8s-client-connection-timeout=0s:":         func(c *Config) { c.ConnectTimeout = 0 },
		"--k8s-client-connection-keep-alive=1ms:":     func(c *Config) { c.KeepAlive = time.Millisecond },
		"--k8s-api-server=ftp://a:":                   func(c *Config) { c.Servers = []string{"ftp://a"} },
		"--k8s-api-server-urls=a::":                   func(c *Config) { c.ServerURLs = []string{"a:"} },
		"--k8s-api-server with --k8s-api-server-urls": func(c *Config) { c.Servers, c.ServerURLs = []string{"https://a"}, []string{"b"} },
		"--k8s-kubeconfig-path=/none: open /none: no such file or directory: name an existing file": func(c *Config) { c.Kubeconfig = "/none" },
		"--k8s-kubeconfig-path=" + garbage + ": this is not a kubeconfig":                           func(c *Config) { c.Kubeconfig = garbage },
		"--k8s-kubeconfig-path=" + empty + ": current-context \"\" names no cluster":                func(c *Config) { c.Kubeconfig = empty },
		"--k8s-kubeconfig-path=" + program:                                                          func(c *Config) { c.Kubeconfig = program },
	} {
		c := DefaultConfig
		change(&c)
		s, err := newSettings(c, environment{})
		if err == nil {
			_, err = newClient(s)
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v\n\tdoes not begin with %s", err, want)
		}
	}
}
