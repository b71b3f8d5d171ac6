package kube

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

//go:embed node-init.sh
var nodeInit string

// joinCgroups moves a shell into the node's own cgroups. The node's first process has written the list of cgroups.
const joinCgroups = `while read -r dir; do echo 0 >"$dir/cgroup.procs" || exit 1; done </run/cgroups`

// Node is a machine from kubelet's view. It has namespaces of all kinds except user namespaces, its own cgroups, /run, /sys and bpffs, and writable copies of
// /etc, /opt and /var that do not affect the machine.
type Node struct {
	Name       string
	IPv4, IPv6 string // of the uplink eth0
	cluster    *Cluster
	netNS      netNS
	init       *Process
	containerd *Process
	kubelet    *Process
	kubeProxy  *Process // nil without kube-proxy
	proxyMode  string   // of kube-proxy
	cgroup     string
}

// newNode creates the namespaces, cgroups and uplink of a node and starts only its first process.
func (c *Cluster) newNode() (*Node, error) {
	index, err := c.nextIndex()
	if err != nil {
		return nil, err
	}
	n := &Node{Name: nodeName(index), IPv4: nodeIPv4(index), IPv6: nodeIPv6(index), cluster: c}
	n.cgroup = filepath.Join(os.Getenv(insideEnv), filepath.Base(c.dir), n.Name)
	if err := n.boot(); err != nil {
		return n, fmt.Errorf("make %s: %w", n.Name, err)
	}
	return n, n.writeFiles()
}

// nextIndex returns the next node number of the control plane.
func (c *Cluster) nextIndex() (int, error) {
	if c.host != nil {
		return c.host.nextIndex()
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.made == maxNodes {
		return 0, fmt.Errorf("the control plane has had %d nodes: more have no address", maxNodes)
	}
	c.made++
	return c.made - 1, nil
}

// boot sets up cgroups, namespaces and the uplink before the node's programs start.
func (n *Node) boot() error {
	if err := n.startInit(); err != nil {
		return err
	}
	namespaces, err := openNamespaces(n.init.PID())
	if err != nil {
		return err
	}
	n.netNS = netNS{namespaces, joinCgroups}
	return n.cluster.connect(n)
}

// startInit starts the node's first process and waits until this process has created the node's mounts.
func (n *Node) startInit() error {
	cgroups, err := makeCgroups(n.cgroup)
	if err != nil {
		return err
	}
	all, err := hierarchies()
	if err != nil {
		return err
	}
	var mounts []string
	for _, h := range all {
		mounts = append(mounts, strings.TrimSpace(map[int]string{1: "cgroup ", 2: "cgroup2 "}[h.version]+h.path+" "+h.options))
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", nodeInit)
	cmd.Env = append(os.Environ(), "SCRIPT="+nodeInit, "CGROUPS="+strings.Join(cgroups, " "), "HIERARCHIES="+strings.Join(mounts, "\n"),
		"STATE="+n.cluster.path(n.Name), "NAME="+n.Name, "PAUSE="+n.cluster.bin.kube+"/pause",
		"BPFFS="+map[bool]string{true: "no", false: "yes"}[n.cluster.options.NoBPFFS])
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	n.init, err = n.cluster.component(startCommand(onThread, cmd, n.Name, n.cluster.logPath(n.Name)))
	_ = write.Close()
	if err != nil {
		return err
	}
	if answer, _ := io.ReadAll(read); string(answer) != "ready\n" {
		<-n.init.done
		return n.init.ended()
	}
	return nil
}

// Path returns the path by which this program reaches a file of the node. An absolute symbolic link in the path would lead to a file of the machine; Path
// resolves the one that every machine has, /var/run.
func (n *Node) Path(path string) string {
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return fmt.Sprintf("/proc/%d/root%s", n.init.PID(), path)
}

// WriteFile writes a file of the node atomically. The temporary file is in the same folder: containerd 1.6 does not notice a network configuration that is
// moved in from another folder.
func (n *Node) WriteFile(path, content string, mode os.FileMode) error {
	temporary := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := os.MkdirAll(n.Path(filepath.Dir(path)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(n.Path(temporary), []byte(content), mode); err != nil {
		return err
	}
	return os.Rename(n.Path(temporary), n.Path(path))
}

// ReadFile reads a file of the node.
func (n *Node) ReadFile(path string) (string, error) {
	text, err := os.ReadFile(n.Path(path))
	return string(text), err
}

// Run runs a program on the node until it exits and returns its output.
func (n *Node) Run(ctx context.Context, argv ...string) (string, error) {
	return run(ctx, n.netNS, nil, argv...)
}

// StartProcess starts a program on the node. The program ends with the node at the latest.
func (n *Node) StartProcess(name string, argv ...string) (*Process, error) {
	return n.cluster.start(n.Name+"-"+name, n.netNS, argv...)
}

// Kill sends SIGKILL to the processes of the node whose command lines start with command, as the OOM killer does. It returns an error if none match.
func (n *Node) Kill(ctx context.Context, command string) error {
	_, err := n.Run(ctx, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline)" in "$0"*) kill -9 ${p#/proc/} && ok=1;; esac; done 2>/dev/null; [ "$ok" ]`, command)
	return err
}

// Do runs f on a thread inside the node's namespaces.
func (n *Node) Do(f func() error) error { return n.netNS.do(f) }

// PowerOff simulates a power failure: it kills the node's first process and with it all others. Only the disk remains: /etc, /opt and /var.
func (n *Node) PowerOff() error {
	for _, p := range []*Process{n.kubelet, n.kubeProxy, n.containerd} {
		if p != nil {
			p.stopped.Store(true)
		}
	}
	if err := n.init.Kill(); err != nil { // the kernel kills all other processes of the PID namespace with it
		return err
	}
	return errors.Join(closeNamespaces(n.netNS.namespaces), n.cluster.disconnect(n), removeCgroups(n.cgroup))
}

// PowerOn starts the node again after [Node.PowerOff], with containerd but without kubelet.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.boot(); err != nil {
		return fmt.Errorf("start %s again: %w", n.Name, err)
	}
	return n.StartContainerd(ctx)
}
