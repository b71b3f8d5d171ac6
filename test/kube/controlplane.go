package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	serviceCIDR   = "10.96.0.0/16,fd00:10:96::/112"
	securePort    = "6443"
	secondPort    = "6444"
	etcdClientURL = "http://127.0.0.1:2379"
	etcdPeerURL   = "http://127.0.0.1:2380"
)

// AllControllers is a value of [Options.Controllers] that enables all controllers.
const AllControllers = "*"

// controllers lists the controllers that tests need. The others watch objects that no test creates.
const controllers = "daemonset-controller,deployment-controller,replicaset-controller,statefulset-controller,job-controller," +
	"endpointslice-controller,namespace-controller,serviceaccount-controller,root-ca-certificate-publisher-controller,node-ipam-controller," +
	"node-lifecycle-controller,taint-eviction-controller,pod-garbage-collector-controller,garbage-collector-controller," +
	"validatingadmissionpolicy-status-controller"

// auditPolicy makes the API server write one line for each answered request.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`

func (c *Cluster) startEtcd() (err error) {
	c.etcd, err = c.component(c.start("etcd", c.control, c.bin.kube+"/etcd", "--data-dir="+c.path("etcd"), "--listen-client-urls="+etcdClientURL,
		"--advertise-client-urls="+etcdClientURL, "--listen-peer-urls="+etcdPeerURL, "--initial-advertise-peer-urls="+etcdPeerURL,
		"--initial-cluster=default="+etcdPeerURL, "--log-level=warn", "--quota-backend-bytes=8589934592"))
	return err
}

// StartAPIServer starts the API server on the existing data and returns when the server is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	if c.apiserver, err = c.startAPIServer("kube-apiserver", securePort, c.AuditLogPath()); err != nil {
		return err
	}
	return c.WaitFor(ctx, "the API server to be ready", func() error {
		_, err := c.Get(ctx, "/readyz")
		return err
	})
}

// StartSecondAPIServer starts another API server on the same data and returns its URL when the server is ready.
func (c *Cluster) StartSecondAPIServer(ctx context.Context) (url string, err error) {
	url = "https://" + net.JoinHostPort(apiIPv4, secondPort)
	if c.second, err = c.startAPIServer("kube-apiserver-2", secondPort, c.logPath("audit-2")); err != nil {
		return "", err
	}
	return url, c.WaitFor(ctx, "the second API server to be ready", func() error {
		_, err := c.requestAt(ctx, url, http.MethodGet, "/readyz", nil)
		return err
	})
}

func (c *Cluster) startAPIServer(name, port, audit string) (*Process, error) {
	if err := os.WriteFile(c.path("audit-policy.json"), []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	return c.component(c.start(name, c.control, append([]string{c.bin.kube + "/kube-apiserver",
		"--etcd-servers=" + etcdClientURL, "--bind-address=::", "--secure-port=" + port, "--advertise-address=" + apiIPv4,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.path("accounts.key"),
		"--service-account-signing-key-file=" + c.path("accounts.key"), "--service-cluster-ip-range=" + serviceCIDR,
		"--token-auth-file=" + c.path("tokens.csv"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction,PodNodeSelector",
		"--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
		"--audit-policy-file=" + c.path("audit-policy.json"), "--audit-log-path=" + audit}, append(c.serving(), c.options.APIServerArgs...)...)...))
}

// StopAPIServer kills the API server, which simulates an outage: connections break, and the port is closed until [Cluster.StartAPIServer].
func (c *Cluster) StopAPIServer() error { return errors.Join(c.owned(), c.apiserver.Kill()) }

// owned returns an error for a tenant, because other tenants use the control plane as well.
func (c *Cluster) owned() error {
	if c.host != nil {
		return errors.New("this control plane is shared: start a cluster of the test's own to disturb it")
	}
	return nil
}

// HangAPIServer suspends the API server until [Cluster.ResumeAPIServer]: its connections stay open, but it answers no request.
func (c *Cluster) HangAPIServer() error {
	if err := c.owned(); err != nil {
		return err
	}
	return c.apiserver.cmd.Process.Signal(unix.SIGSTOP)
}

// ResumeAPIServer resumes the API server after [Cluster.HangAPIServer].
func (c *Cluster) ResumeAPIServer() error { return c.apiserver.cmd.Process.Signal(unix.SIGCONT) }

// Etcd sends a request to etcd's HTTP gateway, such as "/v3/kv/compaction".
func (c *Cluster) Etcd(ctx context.Context, path, body string, answer any) error {
	text, err := c.requestAt(ctx, etcdClientURL, http.MethodPost, path, []byte(body))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}

// AuditLogPath returns the path of the audit log: one JSON object for each answered request.
func (c *Cluster) AuditLogPath() string { return c.logPath("audit") }

// StartControllerManager starts the controller manager, which allocates node CIDRs if the options set a range.
func (c *Cluster) StartControllerManager() (err error) {
	args := []string{c.bin.kube + "/kube-controller-manager", "--kubeconfig=" + c.path("controllers.kubeconfig"), "--leader-elect=false",
		"--controllers=" + orElse(c.options.Controllers, controllers), "--service-account-private-key-file=" + c.path("accounts.key"), "--root-ca-file=" + c.path("ca.crt"), "--bind-address=127.0.0.1"}
	args = append(args, c.serving()...)
	if c.options.ClusterCIDR != "" {
		args = append(args, "--allocate-node-cidrs=true", "--cluster-cidr="+c.options.ClusterCIDR, "--service-cluster-ip-range="+serviceCIDR)
		if !strings.Contains(c.options.ClusterCIDR, ",") {
			args[len(args)-1] = "--service-cluster-ip-range=" + strings.Split(serviceCIDR, ",")[0]
		}
	}
	c.controllers, err = c.component(c.start("kube-controller-manager", c.control, args...))
	return err
}

// serving returns the flags for the serving certificate of a component. Without these flags the component generates an RSA key at each start.
func (c *Cluster) serving() []string {
	return []string{"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key")}
}

// StopControllerManager ends the controller manager.
func (c *Cluster) StopControllerManager() error { return errors.Join(c.owned(), c.controllers.Kill()) }

// StartScheduler starts the scheduler.
func (c *Cluster) StartScheduler() (err error) {
	c.scheduler, err = c.component(c.start("kube-scheduler", c.control, append([]string{c.bin.kube + "/kube-scheduler",
		"--kubeconfig=" + c.path("scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1"}, c.serving()...)...))
	return err
}

// StopScheduler ends the scheduler.
func (c *Cluster) StopScheduler() error { return errors.Join(c.owned(), c.scheduler.Kill()) }
