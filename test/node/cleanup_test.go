package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// cleanupNode is a node with a CNI directory and foreign objects that resemble Waggle's objects.
type cleanupNode struct {
	*nodekit.Node
	conf   string // path of the CNI configuration that the agent writes
	before []string
}

func newCleanupNode(t *testing.T, options nodekit.Options) cleanupNode {
	t.Helper()
	node := cleanupNode{Node: newNode(t, options)}
	node.conf = filepath.Join(node.Dir, "net.d", "05-waggle.conflist")
	node.AddAgentArgs("--write-cni-conf-when-ready", node.conf, "--cni-exclusive", "--ipam-release-quarantine=0s")
	foreignFiles(t, node.Node)
	foreignKernel(t, node.Node)
	eventually(t, func() (err error) {
		first, err := node.Machine()
		if err != nil {
			return err
		}
		time.Sleep(2 * time.Second) // the kernel reports the state of a link up to a second late
		if node.before, err = node.Machine(); err == nil {
			err = nodekit.Changes(first, node.before)
		}
		if slices.ContainsFunc(node.before, func(fact string) bool { return strings.Contains(fact, "tentative") }) {
			err = errors.Join(err, errors.New("the kernel is still at work on addresses"))
		}
		return err
	})
	return node
}

// paths appends the path flags of inventory and cleanup to args.
func (n cleanupNode) paths(args ...string) []string {
	return append(args, "--state-dir", n.StateDir(), "--lib-dir", filepath.Join(n.Dir, "lib"), "--bpf-root", n.BPFRoot(),
		"--write-cni-conf-when-ready", n.conf, "--cni-bin-dir", pluginDir(n.Node), "-o", "json")
}

type owned struct{ Kind, Name, Owner, Proof, Note string }

func (n cleanupNode) objects(t *testing.T, args ...string) (all []owned, err error) {
	t.Helper()
	out, err := n.Waggle(t.Context(), n.paths(args...)...)
	if out != "" {
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v printed %q: %v", args, out, err)
		}
	}
	return all, err
}

// run starts the agent and its setup, attaches pods and exchanges traffic between them; an agent is killed and started again.
func (n cleanupNode) run(t *testing.T) []*nodekit.Pod {
	t.Helper()
	foreign, err := n.PodLinks()
	if err := errors.Join(err, n.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
	if err := n.Do(func() error {
		if out, err := setupCommand(t.Context(), n.Node, "--once").CombinedOutput(); err != nil {
			return fmt.Errorf("setup: %w\n%s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	a, b := addPod(t, n.Node, "a"), addPod(t, n.Node, "b")
	pingBoth(t, a, b)
	if err := errors.Join(n.KillAgent(t.Context()), n.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, n.Node)
	pingBoth(t, a, b)
	eventually(t, func() error { _, err := os.Stat(n.conf); return err })
	// The self-test has its own addresses. Their files are removed when the quarantine ends.
	eventually(t, func() error {
		status, err := n.Waggle(t.Context(), "status")
		if err == nil && !strings.Contains(status, "attach passed") {
			err = fmt.Errorf("the self-test has not passed:\n%s", status)
		}
		return err
	})
	eventually(t, func() error {
		table, err := n.Waggle(t.Context(), "db", "show", "ipam-addresses")
		if err == nil && strings.Contains(table, "quarantine") {
			err = fmt.Errorf("addresses are in quarantine:\n%s", table)
		}
		return err
	})
	eventually(t, func() error { // the link of the self-test is deleted in the background
		links, err := n.PodLinks()
		if err == nil && len(links) != len(foreign)+2 {
			err = fmt.Errorf("there are the links %q, want %q and those of two pods", links, foreign)
		}
		return err
	})
	return []*nodekit.Pod{a, b}
}

// requireUnchanged requires the machine to be as it was before the installation.
func (n cleanupNode) requireUnchanged(t *testing.T) {
	t.Helper()
	after, err := n.Machine()
	if err == nil {
		err = nodekit.Changes(n.before, after)
	}
	if err != nil {
		t.Errorf("the machine is not what it was:\n%v", err)
	}
}

// atRest waits until two consecutive scans of the machine return the same facts.
func (n cleanupNode) atRest(t *testing.T) (facts []string) {
	t.Helper()
	eventually(t, func() error {
		first, err := n.Machine()
		if err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond)
		facts, err = n.Machine()
		return errors.Join(err, nodekit.Changes(first, facts))
	})
	return facts
}

// withoutFiles removes facts about files.
func withoutFiles(facts []string) []string {
	return slices.DeleteFunc(slices.Clone(facts), func(fact string) bool { return strings.HasPrefix(fact, "file ") })
}

func (n cleanupNode) stop(t *testing.T) {
	t.Helper()
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The inventory equals the output of a dry run and the list of removed objects. After a cleanup the machine is as it was before the installation, and a second
// cleanup finds nothing.
func TestPrivilegedCleanup_RestoresMachine(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]nodekit.Options{"dual": {}, "ipv4": {IPv6CIDR: "-", AgentArgs: []string{"--enable-ipv6=false"}},
		"reduced": {Reduced: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := newCleanupNode(t, options)
			pods := node.run(t)
			if err := pods[0].Detach(t.Context()); err != nil {
				t.Fatal(err)
			}
			running, err := node.objects(t, "inventory")
			if err != nil || len(running) < 20 {
				t.Errorf("beside a running agent: %d objects, %v", len(running), err)
			}
			node.stop(t)
			if err := pods[1].Detach(t.Context()); err != nil { // stays in the queue
				t.Fatal(err)
			}
			listed, err := node.objects(t, "inventory")
			if err != nil {
				t.Fatal(err)
			}
			wouldGo, err := node.objects(t, "cleanup", "--dry-run")
			if err != nil || !slices.Equal(listed, wouldGo) {
				t.Errorf("a dry run prints %v, %v\nthe inventory %v", wouldGo, err, listed)
			}
			removed, err := node.objects(t, "cleanup")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(listed, removed) {
				t.Errorf("removed %v\nlisted %v", removed, listed)
			}
			node.requireUnchanged(t)
			if left, err := node.objects(t, "inventory"); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if again, err := node.objects(t, "cleanup"); err != nil || len(again) != 0 {
				t.Errorf("a second cleanup removed %v, %v", again, err)
			}
			node.requireUnchanged(t)
		})
	}
}

// While the agent runs or pods are attached, cleanup removes nothing. With --with-pods it disconnects the pods, and none of their packets passes without a
// policy verdict meanwhile.
func TestPrivilegedCleanup_InUse_Fails(t *testing.T) {
	t.Parallel()
	node := newCleanupNode(t, nodekit.Options{})
	pods := node.run(t)
	requireRejected := func(want string, args ...string) {
		t.Helper()
		before := node.atRest(t)
		if removed, err := node.objects(t, args...); err == nil || len(removed) != 0 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v removed %v, %v; want %q", args, removed, err, want)
		}
		eventually(t, func() error {
			after, err := node.Machine()
			if err := errors.Join(err, nodekit.Changes(withoutFiles(before), withoutFiles(after))); err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return nodekit.Changes(before, after) // a running agent may be writing one of its own files
		})
	}
	requireRejected(fmt.Sprintf("waggle-agent (pid %d) runs", node.AgentPID()), "cleanup", "--with-pods")
	node.stop(t)
	requireRejected("2 pods are attached", "cleanup")

	listed, err := node.objects(t, "inventory")
	if err != nil {
		t.Fatal(err)
	}
	wouldGo, err := node.objects(t, "cleanup", "--dry-run")
	if err == nil || !strings.Contains(err.Error(), "2 pods are attached") || !slices.Equal(listed, wouldGo) {
		t.Errorf("a dry run beside pods: %v, %v", wouldGo, err)
	}
	if wouldGo, err = node.objects(t, "cleanup", "--dry-run", "--with-pods"); err != nil || !slices.Equal(listed, wouldGo) {
		t.Errorf("a dry run that would cut off pods: %v, %v", wouldGo, err)
	}
	quiet := spoofAll(t, node, pods)
	removed, err := node.objects(t, "cleanup", "--with-pods")
	quiet()
	if err != nil || !slices.Equal(listed, removed) {
		t.Errorf("removed %v, %v\nlisted %v", removed, err, listed)
	}
	node.requireUnchanged(t)
}

// spoofAll lets a pod send packets with a foreign source address in both families until quiet is called. quiet requires that none of these packets has reached
// the node.
func spoofAll(t *testing.T, node cleanupNode, pods []*nodekit.Pod) (quiet func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	targets := map[netip.Addr]netip.Addr{nodekit.UplinkIPv4.Addr(): nodekit.OutsideIPv4.Addr(), nodekit.UplinkIPv6.Addr(): nodekit.OutsideIPv6.Addr()}
	var received []<-chan netip.Addr
	var begun sync.WaitGroup
	begun.Add(len(targets))
	ended := make(chan int, len(targets))
	for to, source := range targets {
		received = append(received, nodekit.Listen(t, node.Host(), to, 2222))
		go func() {
			sent := 0
			for ; ctx.Err() == nil; time.Sleep(200 * time.Microsecond) { // the cleanup and other tests need CPUs as well
				if nodekit.Spoof(pods[0], source, to) != nil {
					continue
				}
				if sent++; sent == 1 {
					begun.Done()
				}
			}
			ended <- sent
		}()
	}
	begun.Wait()
	return func() {
		t.Helper()
		cancel()
		for _, r := range received {
			if sent := <-ended; len(r) != 0 {
				t.Errorf("%d spoofed packets were sent, %d or more came through", sent, len(r))
			}
		}
	}
}

// Cleanup reports an object that it cannot remove and removes the rest; the next call finishes. A mount of another program stays.
func TestPrivilegedCleanup_ContinuesAfterErrors(t *testing.T) {
	t.Parallel()
	node := newCleanupNode(t, nodekit.Options{})
	for _, pod := range node.run(t) {
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	node.stop(t)
	busy, foreign := filepath.Join(node.StateDir(), "endpoints"), filepath.Join(node.BPFRoot(), "foreign")
	if err := node.Do(func() error {
		return errors.Join(os.Mkdir(foreign, 0o700), unix.Mount("tmpfs", busy, "tmpfs", 0, ""))
	}); err != nil {
		t.Fatal(err)
	}
	removed, err := node.objects(t, "cleanup")
	if err == nil || !strings.Contains(err.Error(), busy) || len(removed) < 20 {
		t.Errorf("%d objects were removed, %v", len(removed), err)
	}
	left, err := node.objects(t, "inventory")
	if err != nil || len(left) != 2 || left[0].Name != busy || left[1].Name != node.StateDir() {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := node.Do(func() error { return errors.Join(unix.Unmount(busy, 0), os.Remove(foreign)) }); err != nil {
		t.Fatal(err)
	}
	removed, err = node.objects(t, "cleanup")
	if err != nil || len(removed) != 3 || removed[0].Kind != "mount" {
		t.Errorf("the second call removed %v, %v", removed, err)
	}
	node.requireUnchanged(t)
}

// Cleanup also removes the remains of killed programs and of other versions. Foreign objects in directories of Waggle stay and are reported.
func TestPrivilegedCleanup_RemainsAndForeignObjects(t *testing.T) {
	t.Parallel()
	node := newCleanupNode(t, nodekit.Options{})
	pods := node.run(t)
	for _, pod := range pods {
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	part := leaveOvers(t, node)
	foreign := filepath.Join(node.StateDir(), "manifests", "mine.yaml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(foreign), 0o755), os.WriteFile(foreign, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	// Another program changes a setting after Waggle, and owns it from then on.
	const setting = "/proc/sys/net/ipv4/conf/all/rp_filter"
	if err := node.Do(func() error { return os.WriteFile(setting, []byte("1"), 0) }); err != nil {
		t.Fatal(err)
	}
	listed, err := node.objects(t, "inventory")
	if err != nil {
		t.Fatal(err)
	}
	removed, err := node.objects(t, "cleanup")
	if err != nil || !slices.Equal(listed, removed) {
		t.Errorf("removed %v, %v\nlisted %v", removed, err, listed)
	}
	part()
	if err := os.Remove(foreign); err != nil {
		t.Errorf("the foreign file in the state directory: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Dir(foreign)), os.Remove(node.StateDir())); err != nil {
		t.Errorf("something else is left in the state directory: %v", err)
	}
	if err := node.Do(func() error {
		value, err := os.ReadFile(setting)
		if string(value) != "1\n" {
			err = errors.Join(err, fmt.Errorf("%s is %q, another program set 1", setting, value))
		}
		return errors.Join(err, os.WriteFile(setting, []byte("2"), 0))
	}); err != nil {
		t.Error(err)
	}
	node.requireUnchanged(t)
}

// A cleanup may be killed at any moment; the next one finishes its work.
func TestPrivilegedCleanup_KilledAndCalledAgain(t *testing.T) {
	t.Parallel()
	node := newCleanupNode(t, nodekit.Options{})
	random := testseed.New(t)
	for _, pod := range node.run(t) {
		if err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	node.stop(t)
	killed := 0
	for range 20 * soak(t) {
		cmd := exec.Command(filepath.Join(binDir, "waggle"), node.paths("cleanup")...)
		if err := node.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.IntN(120)) * time.Millisecond) // the test covers random moments
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
		}
	}
	if killed == 0 {
		t.Error("no cleanup was killed")
	}
	if _, err := node.objects(t, "cleanup"); err != nil {
		t.Error(err)
	}
	node.requireUnchanged(t)
}
