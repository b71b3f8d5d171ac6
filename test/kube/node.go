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

// joinCgroups moves a shell into the node's own cgroups, which the first process has listed.
const joinCgroups = `while read -r dir; do echo 0 >"$dir/cgroup.procs" || exit 1; done </run/cgroups`

// Node is a machine, as far as kubelet can tell: namespaces of all kinds but that of users, cgroups of its own, /run,
// /sys and a bpffs of its own, and /etc, /opt and /var that can be written without changing those of the machine.
type Node struct {
	Name       string
	IPv4, IPv6 string // of the uplink eth0
	cluster    *Cluster
	place      place
	init       *Process
	containerd *Process
	kubelet    *Process
	cgroup     string
}

// newNode makes the namespaces, cgroups and uplink of a node; no program but the first process runs on it.
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

// nextIndex counts the nodes that the control plane has had.
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

// boot makes what a machine has before its first program is started.
func (n *Node) boot() error {
	if err := n.startInit(); err != nil {
		return err
	}
	namespaces, err := openNamespaces(n.init.PID())
	if err != nil {
		return err
	}
	n.place = place{namespaces, joinCgroups}
	return n.cluster.connect(n)
}

// startInit starts the node's first process and waits until it has made the node's mounts.
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

// Path is where this program finds a file of the node. An absolute link on the way would lead to a file of the machine;
// the one that every machine has, /var/run, is taken care of.
func (n *Node) Path(path string) string {
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return fmt.Sprintf("/proc/%d/root%s", n.init.PID(), path)
}

// WriteFile puts a file onto the node at once: it is never seen half-written. The temporary file is in the same folder:
// containerd 1.6 does not notice a configuration of networks that is moved in from another one.
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

// Run runs a program on the node to its end and returns what it printed.
func (n *Node) Run(ctx context.Context, argv ...string) (string, error) {
	return run(ctx, n.place, nil, argv...)
}

// StartProcess starts a program on the node that ends with the node at the latest.
func (n *Node) StartProcess(name string, argv ...string) (*Process, error) {
	return n.cluster.start(n.Name+"-"+name, n.place, argv...)
}

// Kill ends the processes of the node whose command lines begin so, as the kernel does when memory is short. It is an error when there are none.
func (n *Node) Kill(ctx context.Context, command string) error {
	_, err := n.Run(ctx, "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline)" in "$0"*) kill -9 ${p#/proc/} && ok=1;; esac; done 2>/dev/null; [ "$ok" ]`, command)
	return err
}

// Do runs f on a thread inside the node's namespaces.
func (n *Node) Do(f func() error) error { return n.place.do(f) }

// PowerOff ends all processes of the node, its first at the head, as if the power had failed. What is left is its disk: /etc,
// /opt and /var.
func (n *Node) PowerOff() error {
	for _, p := range []*Process{n.kubelet, n.containerd} {
		if p != nil {
			p.told.Store(true)
		}
	}
	if err := n.init.Kill(); err != nil { // the kernel ends all others with it
		return err
	}
	return errors.Join(closeNamespaces(n.place.namespaces), n.cluster.disconnect(n), removeCgroups(n.cgroup))
}

// PowerOn starts the node again after [Node.PowerOff], with containerd and without kubelet.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.boot(); err != nil {
		return fmt.Errorf("start %s again: %w", n.Name, err)
	}
	return n.StartContainerd(ctx)
}
