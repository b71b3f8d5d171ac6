package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

func TestRole_HasItsOwnFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for key, value := range map[string]string{"role": "cluster", "bpf-root": "/x", "cluster-pool-ipv4-mask-size": "25",
		"enable-wireguard": "true"} { // node agents reject this option
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	api := "--k8s-api-server=127.0.0.1:1"
	for name, c := range map[string]struct {
		args, environ []string
		code          int
		want, not     string
	}{
		"flag":                     {[]string{"hive", "--role=cluster", api}, nil, 0, "leader-election", "endpoint-manager"},
		"environment":              {[]string{"hive", api}, []string{"WAGGLE_ROLE=cluster"}, 0, "leader-election", "endpoint-manager"},
		"directory":                {[]string{"hive", api, "--config-dir", dir}, nil, 0, "IPv4Size: (int) 25", "endpoint-manager"},
		"flag before environment":  {[]string{"hive", "--role=node"}, []string{"WAGGLE_ROLE=cluster"}, 0, "endpoint-manager", "leader-election"},
		"both in the environment":  {[]string{"hive"}, []string{"WAGGLE_CLUSTER_POOL_IPV4_MASK_SIZE=25"}, 0, "endpoint-manager", "WAGGLE_"},
		"after an unknown flag":    {[]string{"--debug", "hive", "--role", "cluster", api}, nil, 0, "leader-election", "endpoint-manager"},
		"help of the cluster role": {[]string{"--role=cluster", "--help"}, nil, 0, "--cluster-pool-ipv4-cidr", "--bpf-root"},
		"help of the node role":    {[]string{"--help"}, nil, 0, "--bpf-root", "--cluster-pool-ipv4-mask-size"},
		"unknown role":             {[]string{"hive", "--role=queen"}, nil, 1, `--role="queen": use node or cluster`, "Cells"},
		"unknown role in a file":   {[]string{"hive"}, []string{"WAGGLE_ROLE=queen"}, 1, `--role="queen" from WAGGLE_ROLE: use node or cluster`, "Cells"},
		"flag of the other role":   {[]string{"hive", "--cluster-pool-ipv4-mask-size=25"}, nil, 1, "--cluster-pool-ipv4-mask-size is an option of --role=cluster", "Cells"},
		"flag of the node role":    {[]string{"hive", "--role=cluster", "--bpf-root=/x"}, nil, 1, "--bpf-root is an option of --role=node", "Cells"},
		"no API server":            {[]string{"--role=cluster"}, nil, 1, "no API server is known", "Cells"},
		"hive, no API server":      {[]string{"hive", "--role=cluster"}, nil, 0, "leader-election", "no API server is known"},
		"swallowed":                {[]string{"hive", "--node-name", "--role=cluster"}, nil, 0, "endpoint-manager", "leader-election"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := run(c.args, c.environ, &out, &out); code != c.code || !strings.Contains(out.String(), c.want) ||
				strings.Contains(out.String(), c.not) {
				t.Errorf("exit code %d, want %d with %q and without %q:\n%.2000s", code, c.code, c.want, c.not, out.String())
			}
		})
	}
}

// TestRoles_AgreeOnFlags checks that flags of both roles have the same type and default, since the roles share a ConfigMap.
func TestRoles_AgreeOnFlags(t *testing.T) {
	t.Parallel()
	seen := map[string]*pflag.Flag{}
	for _, cells := range roles() {
		h, err := hive.Build(cells)
		if err != nil {
			t.Fatal(err)
		}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		h.RegisterFlags(flags)
		flags.VisitAll(func(f *pflag.Flag) {
			if o := seen[f.Name]; o != nil && (o.DefValue != f.DefValue || o.Value.Type() != f.Value.Type() || o.Usage != f.Usage) {
				t.Errorf("--%s: %s %q %q and %s %q %q", f.Name, o.Value.Type(), o.DefValue, o.Usage, f.Value.Type(), f.DefValue, f.Usage)
			}
			seen[f.Name] = f
		})
	}
}

// clusterProcess starts the cluster role without privileges.
func clusterProcess(t *testing.T, s *kubetest.Server, name string) (*exec.Cmd, *os.File) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // the agent can use the port now
	dir := t.TempDir()
	program := filepath.Join(dir, "waggle-agent")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Link(os.Args[0], program)); err != nil { // accessible for the other user
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--role=cluster", "--k8s-api-server="+s.URL(), "--operator-api-serve-addr="+l.Addr().String(),
		"--leader-election-lease-duration=3s", "--leader-election-renew-deadline=2s", "--leader-election-retry-period=200ms")
	cmd.Env = []string{asAgent + "=1", "K8S_POD_NAME=" + name}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", name, read(t, log))
		}
	})
	return cmd, log
}

// TestCluster_TwoReplicas runs two processes of the cluster role: one is the leader; when it is killed, the other one takes over.
func TestCluster_TwoReplicas(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	leader := func() string {
		var l coordinationv1.Lease
		if !s.Get(kubeapi.Leases, "kube-system", "waggle-cluster", &l) || l.Spec.HolderIdentity == nil {
			return ""
		}
		name, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
		return name
	}
	served := 0
	serve := func() {
		name := fmt.Sprintf("node-%d", served)
		served++
		s.Put(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.Await(t, name+" has its CIDRs", func() bool {
			var n ciliumv2.CiliumNode
			return s.Get(kubeapi.CiliumNodes, "", name, &n) && len(n.Spec.IPAM.PodCIDRs) == 2
		})
	}
	one, _ := clusterProcess(t, s, "one")
	s.Await(t, "one leads", func() bool { return leader() == "one" })
	two, _ := clusterProcess(t, s, "two")
	serve()
	if err := one.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.Await(t, "two leads", func() bool { return leader() == "two" })
	serve()
	if err := two.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := two.Wait(); err != nil {
		t.Errorf("the end of two: %v", err)
	}
	if got := leader(); got != "" {
		t.Errorf("the Lease is still that of %s", got)
	}
}
