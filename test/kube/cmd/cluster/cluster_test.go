package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/kube"
)

// program is what make has built: the programs of Kubernetes are beside it.
const program = "../../../../bin/cluster"

// TestPrivilegedCluster_UpAndDown does what a person does, in the order in which persons do it.
func TestPrivilegedCluster_UpAndDown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	cluster := func(want string, args ...string) {
		t.Helper()
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "WAGGLE_CLUSTER_DIR="+dir)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("cluster %s: want %q, got %v:\n%s", strings.Join(args, " "), want, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("env", "WAGGLE_CLUSTER_DIR="+dir, program, "down").Run() })

	t.Setenv("WAGGLE_CLUSTER_DIR", dir)
	cluster("No cluster is running", "down")

	// A process that is killed takes all others with it, and a new one can take its place.
	cluster(dir+"/kubectl get nodes", "up", "-bare")
	killed := held(t)
	if process, err := os.FindProcess(killed); err != nil || process.Kill() != nil {
		t.Fatalf("cannot kill process %d: %v", killed, err)
	}
	waitUnlocked(30 * time.Second)
	cluster(dir+"/kubectl get nodes", "up", "-bare")
	ended := held(t)
	cluster("running already", "up", "-bare")
	if out, err := exec.Command(dir+"/kubectl", "get", "nodes").CombinedOutput(); err != nil || !strings.Contains(string(out), "node-1 ") {
		t.Errorf("kubectl: %v:\n%s", err, out)
	}
	cluster("192.0.2.11/24", "node", "node-1", "ip", "address", "show", "eth0")
	cluster("The cluster is gone", "down")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	for _, pid := range []int{killed, ended} {
		left, err := kube.Cgroups(fmt.Sprintf("waggle-kube-%d-*", pid))
		if err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %v, %v", left, err)
		}
	}
}

// held is the process that holds the cluster.
func held(t *testing.T) int {
	t.Helper()
	pid, err := holder()
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRun_Refuses(t *testing.T) {
	for want, args := range map[string][]string{"use one of": nil, "\"fly\"": {"fly"}, "name a node": {"node"}, "1 to 200 nodes": {"up", "-nodes", "0"}} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q, got %v", args, want, err)
		}
	}
}
