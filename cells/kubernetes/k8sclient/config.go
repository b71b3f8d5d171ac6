package k8sclient

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/version"
)

// Config configures the access to the API server: addresses, credentials, limits and timeouts.
type Config struct {
	Enable         bool          `mapstructure:"enable-k8s"`
	Servers        []string      `mapstructure:"k8s-api-server"`
	ServerURLs     []string      `mapstructure:"k8s-api-server-urls"`
	Kubeconfig     string        `mapstructure:"k8s-kubeconfig-path"`
	QPS            float32       `mapstructure:"k8s-client-qps"`
	Burst          int           `mapstructure:"k8s-client-burst"`
	ConnectTimeout time.Duration `mapstructure:"k8s-client-connection-timeout"`
	KeepAlive      time.Duration `mapstructure:"k8s-client-connection-keep-alive"`
}

// DefaultConfig turns Kubernetes on without an address: in a pod, the environment provides it.
var DefaultConfig = Config{Enable: true, Servers: []string{}, ServerURLs: []string{}, QPS: 10, Burst: 20,
	ConnectTimeout: kubeapi.DefaultConnection.Timeout, KeepAlive: kubeapi.DefaultConnection.KeepAlive}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-k8s", c.Enable, "Use the API server if there is one")
	flags.StringSlice("k8s-api-server", c.Servers, "Addresses of API servers, in order of preference; the default scheme is http. In a pod, the ServiceAccount's token and CA are used")
	flags.StringSlice("k8s-api-server-urls", c.ServerURLs, "More addresses of API servers, with lower preference than --k8s-api-server")
	flags.String("k8s-kubeconfig-path", c.Kubeconfig, "Kubeconfig with the address of the API server and the credentials")
	flags.Float32("k8s-client-qps", c.QPS, "Requests per second to the API server, watches not counted")
	flags.Int("k8s-client-burst", c.Burst, "Maximum burst of requests to the API server")
	flags.Duration("k8s-client-connection-timeout", c.ConnectTimeout, "Timeout of connecting to an API server")
	flags.Duration("k8s-client-connection-keep-alive", c.KeepAlive, "Idle time after which a connection to an API server is probed; without a response, it is closed after half of this time")
}

// settings is the checked form of [Config].
type settings struct {
	config     *rest.Config // nil when Kubernetes is off
	servers    []string     // empty uses the server of config
	connection kubeapi.Connection
	byService  bool   // the address is the Service "kubernetes", not a configured one
	origin     string // flag that selected the credentials, for errors; or why Kubernetes is off
}

// shortestKeepAlive is the minimum keep-alive interval, which limits the load of the checks.
const shortestKeepAlive = time.Second

func newSettings(c Config, env environment) (settings, error) {
	s := settings{connection: kubeapi.Connection{Timeout: c.ConnectTimeout, KeepAlive: c.KeepAlive}}
	if !c.Enable {
		s.origin = "--enable-k8s=false"
		return s, nil
	}
	var err error
	switch {
	case c.QPS <= 0:
		return s, fmt.Errorf("--k8s-client-qps=%g: must be positive", c.QPS)
	case c.Burst <= 0:
		return s, fmt.Errorf("--k8s-client-burst=%d: must be positive", c.Burst)
	case c.ConnectTimeout <= 0:
		return s, fmt.Errorf("--k8s-client-connection-timeout=%s: must be positive", c.ConnectTimeout)
	case c.KeepAlive < shortestKeepAlive:
		return s, fmt.Errorf("--k8s-client-connection-keep-alive=%s: must be at least %s", c.KeepAlive, shortestKeepAlive)
	}
	if s.servers, err = parseServers(c); err != nil {
		return s, err
	}
	if s.config, s.origin, err = credentials(c.Kubeconfig, s.servers, env); err != nil || s.config == nil {
		return s, err
	}
	s.byService = c.Kubeconfig == "" && len(s.servers) == 0 // in a pod, because config is not nil
	s.config.QPS, s.config.Burst = c.QPS, c.Burst
	s.config.UserAgent = "waggle-agent/" + version.String()
	return s, nil
}

// parseServers joins both lists. An error names the flag to change.
func parseServers(c Config) ([]string, error) {
	for flag, list := range map[string][]string{"k8s-api-server": c.Servers, "k8s-api-server-urls": c.ServerURLs} {
		if _, err := kubeapi.ParseServers(list); err != nil {
			return nil, fmt.Errorf("--%s=%s: %w", flag, strings.Join(list, ","), err)
		}
	}
	both, err := kubeapi.ParseServers(append(append([]string{}, c.Servers...), c.ServerURLs...))
	if err != nil {
		return nil, fmt.Errorf("--k8s-api-server with --k8s-api-server-urls: %w", err)
	}
	return both, nil
}
