package k8sclient

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// environment has the variables and files that Kubernetes provides to a pod.
type environment struct {
	host, port     string // address of the Service "kubernetes"; empty outside of a pod
	serviceAccount string // directory with token and ca.crt
}

func newEnvironment() environment {
	return environment{host: os.Getenv("KUBERNETES_SERVICE_HOST"), port: os.Getenv("KUBERNETES_SERVICE_PORT"),
		serviceAccount: "/var/run/secrets/kubernetes.io/serviceaccount"}
}

// credentials selects the credentials: the kubeconfig, otherwise the ServiceAccount, otherwise none, for a server that requires none. A nil config
// means that Kubernetes is off; origin is then the reason.
func credentials(kubeconfig string, servers []string, env environment) (config *rest.Config, origin string, err error) {
	switch {
	case kubeconfig != "":
		origin = "--k8s-kubeconfig-path=" + kubeconfig
		if config, err = fromKubeconfig(kubeconfig); err != nil {
			return nil, origin, fmt.Errorf("%s: %w", origin, err)
		}
	case env.inPod():
		config, origin = env.config(), "ServiceAccount in "+env.serviceAccount
	case len(servers) > 0:
		config, origin = &rest.Config{}, "--k8s-api-server="+strings.Join(servers, ",")
	default:
		return nil, "neither --k8s-api-server nor --k8s-kubeconfig-path is set, and this is not a pod with a ServiceAccount", nil
	}
	if len(servers) > 0 {
		config.Host = servers[0]
	}
	return withoutPlaintextSecrets(config), origin, nil
}

func fromKubeconfig(path string) (*rest.Config, error) {
	file, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: name an existing file, or omit the flag in a pod with a ServiceAccount", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("this is not a kubeconfig (kubectl config view --raw --minify prints one): %w", err)
	}
	if context := file.Contexts[file.CurrentContext]; context == nil || file.Clusters[context.Cluster] == nil {
		return nil, fmt.Errorf("current-context %q names no cluster of the file: kubectl config use-context sets it", file.CurrentContext)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	return clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
}

func (e environment) inPod() bool {
	if e.host == "" || e.port == "" {
		return false
	}
	_, err := os.Stat(e.token())
	return err == nil
}

func (e environment) token() string { return filepath.Join(e.serviceAccount, "token") }

func (e environment) config() *rest.Config {
	config := &rest.Config{Host: "https://" + net.JoinHostPort(e.host, e.port), BearerTokenFile: e.token()}
	if ca := filepath.Join(e.serviceAccount, "ca.crt"); exists(ca) {
		config.CAFile = ca
	}
	return config
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// withoutPlaintextSecrets removes the credentials unless the server uses https: they must not be sent unencrypted, and a server with http requires
// none.
func withoutPlaintextSecrets(config *rest.Config) *rest.Config {
	if strings.HasPrefix(config.Host, "https://") {
		return config
	}
	return &rest.Config{Host: config.Host, Proxy: config.Proxy}
}
