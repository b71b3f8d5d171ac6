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

// program is built by make. The Kubernetes programs are in a folder beside it.
const program = "../../../../bin/cluster"

// starter returns a function that runs the program for the test's own cluster and requires that the output contains want. The cleanup of the test removes the
// cluster.
func starter(t *testing.T) (dir string, cluster func(want string, args ...string) string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "cluster")
	t.Setenv("WAGGLE_CLUSTER_DIR", dir)
	t.Cleanup(func() { _ = exec.Command("env", "WAGGLE_CLUSTER_DIR="+dir, program, "down").Run() })
	return dir, func(want string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("cluster %s: want %q, got %v:\n%s", strings.Join(args, " "), want, err, out)
		}
		return string(out)
	}
}

// TestPrivilegedCluster_PodsOfDifferentNodes runs the commands that the program prints for a cluster with several nodes.
func TestPrivilegedCluster_PodsOfDifferentNodes(t *testing.T) {
	_, cluster := starter(t)
	_, text, _ := strings.Cut(cluster("pods of different nodes reach each other", "up", "-nodes", "3"), "These commands show it:\n\n")
	want := []string{" created", " condition met", " 0% packet loss", "Network: Tunnel [vxlan]"} // of each command
	commands := strings.Split(strings.TrimSpace(text), "\n")
	if len(commands) != len(want) {
		t.Fatalf("want %d commands, got:\n%s", len(want), text)
	}
	const settles = 3 * time.Minute // for nodes to know the pods of others, on a busy machine
	shell := func(command, want string, again bool) {
		t.Helper()
		for deadline := time.Now().Add(settles); ; time.Sleep(time.Second) {
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			if err == nil && strings.Contains(string(out), want) {
				return
			}
			if !again || time.Now().After(deadline) {
				t.Fatalf("%s: want %q, got %v:\n%s", command, want, err, out)
			}
		}
	}
	for i, command := range commands {
		shell(command, want[i], i >= 2) // the first two do not depend on the state of nodes, or wait themselves
	}
	shell(strings.NewReplacer("on-node-1", "on-node-2", "on-node-2", "on-node-3").Replace(commands[2]), want[2], true)
	cluster("The cluster was removed", "down")
}

// TestPrivilegedCluster_UpAndDown runs the commands of a user in their usual order.
func TestPrivilegedCluster_UpAndDown(t *testing.T) {
	dir, cluster := starter(t)
	cluster("No cluster is running", "down")

	// If the process that runs the cluster is killed, all others end with it, and a new one can start.
	cluster(dir+"/kubectl get nodes", "up", "-bare")
	killed := lockOwnerPID(t)
	if process, err := os.FindProcess(killed); err != nil || process.Kill() != nil {
		t.Fatalf("cannot kill process %d: %v", killed, err)
	}
	waitUnlocked(30 * time.Second)
	cluster(dir+"/kubectl get nodes", "up", "-bare")
	ended := lockOwnerPID(t)
	cluster("running already", "up", "-bare")
	if out, err := exec.Command(dir+"/kubectl", "get", "nodes").CombinedOutput(); err != nil || !strings.Contains(string(out), "node-1 ") {
		t.Errorf("kubectl: %v:\n%s", err, out)
	}
	cluster("192.0.2.11/24", "node", "node-1", "ip", "address", "show", "eth0")
	cluster("The cluster was removed", "down")
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

// lockOwnerPID returns the id of the process that runs the cluster.
func lockOwnerPID(t *testing.T) int {
	t.Helper()
	pid, err := lockOwner()
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRun_RejectsInvalidArguments(t *testing.T) {
	for want, args := range map[string][]string{"use one of": nil, "\"fly\"": {"fly"}, "name a node": {"node"}, "1 to 200 nodes": {"up", "-nodes", "0"}} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q, got %v", args, want, err)
		}
	}
}
