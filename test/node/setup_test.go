package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// setupCommand returns "waggle-agent setup" for a node.
func setupCommand(ctx context.Context, node *nodekit.Node, args ...string) *exec.Cmd {
	args = append([]string{"setup", "--state-dir", node.StateDir(), "--bpf-root", node.BPFRoot(), "--cni-bin-dir", pluginDir(node), "--host-root", node.Dir}, args...)
	return exec.CommandContext(ctx, filepath.Join(binDir, "waggle-agent"), args...)
}

func pluginDir(node *nodekit.Node) string { return filepath.Join(node.Dir, "cni-bin") }

// TestPrivilegedSetup_PreparesAndTestsNode follows the order of the DaemonSet: the setup begins and prepares the node, the agent starts with a container's
// capabilities, the setup attaches a test pod and reports the result, and the setup keeps none of its own privileges.
func TestPrivilegedSetup_PreparesAndTestsNode(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{Reduced: true})
	run := func(args ...string) (string, error) {
		var out []byte
		err := node.Do(func() (err error) { out, err = setupCommand(t.Context(), node, args...).CombinedOutput(); return err })
		return string(out), err
	}
	if out, err := run("--prepared"); err == nil {
		t.Errorf("a node on which nothing was done is prepared: %s", out)
	}
	setup := setupCommand(t.Context(), node)
	var log bytes.Buffer
	setup.Stdout, setup.Stderr = &log, &log
	if err := node.Do(setup.Start); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = setup.Process.Kill()
			_ = setup.Wait()
		}
		if t.Failed() {
			t.Logf("the setup's log:\n%s", log.String())
		}
	})
	eventually(t, func() error { _, err := run("--prepared"); return err })
	if out, err := run("--once"); err == nil || !strings.Contains(out, "another \"waggle-agent setup\"") {
		t.Errorf("a second setup: %v\n%s", err, out)
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	before, err := node.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	wantSelfTest(t, node, "passed")
	eventually(t, func() error { return hasNoCapabilities(setup.Process.Pid) })
	// The self-test may have begun before the first snapshot.
	before = slices.DeleteFunc(before, func(fact string) bool { return strings.HasPrefix(fact, "link "+podlink.Prefix) })
	eventually(t, func() error { // the link of the self-test is deleted in the background
		after, err := node.Snapshot()
		if err == nil {
			err = nodekit.Changes(withoutFile(before), withoutFile(after))
		}
		return err
	})
	if err := setup.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended = true
	if err := setup.Wait(); err != nil {
		t.Errorf("end of the setup: %v", err)
	}
}

// TestPrivilegedSetup_ReportsFailures breaks the network of the node, then repairs it; and kills a setup in the middle, whose endpoint the next one removes.
func TestPrivilegedSetup_ReportsFailures(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	wantSelfTest(t, node, "waiting")
	once := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), awaitFor)
		defer cancel()
		var out []byte
		err := node.Do(func() (err error) { out, err = setupCommand(ctx, node, "--once").CombinedOutput(); return err })
		return string(out), err
	}
	leave := attachSelfTest(t, node)
	// The node drops packets of the self-test.
	block := func(args ...string) {
		t.Helper()
		if err := node.Do(func() error { return exec.Command("nft", args...).Run() }); err != nil {
			t.Fatalf("nft %v: %v", args, err)
		}
	}
	block("add", "table", "inet", "broken")
	block("add", "chain", "inet", "broken", "in", "{ type filter hook input priority 0; policy drop; }")
	if out, err := once(); err == nil || !strings.Contains(out, "no answer") {
		t.Errorf("a node that answers no ping passed: %v\n%s", err, out)
	}
	wantSelfTest(t, node, "failed")
	block("delete", "table", "inet", "broken")
	if out, err := once(); err != nil {
		t.Errorf("after the repair: %v\n%s", err, out)
	}
	wantSelfTest(t, node, "passed")
	if endpoints, err := node.Waggle(t.Context(), "endpoint", "list", "-o", "json"); err != nil || strings.Contains(endpoints, leave) {
		t.Errorf("the endpoint of a killed self-test is still there: %v\n%s", err, endpoints)
	}
}

// TestPrivilegedSetup_NamesTheFoldersOfTheRuntime: the runtime searches plugins in another folder. Pods can be attached, status reports the folder and the
// option, and the setup keeps no mount of the host.
func TestPrivilegedSetup_NamesTheFoldersOfTheRuntime(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	etc := filepath.Join(node.Dir, "host", "etc")
	config := filepath.Join(etc, "containerd", "config.toml")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []struct {
		path  string
		wrong bool
	}{{"/usr/lib/cni", true}, {pluginDir(node), false}} {
		text := fmt.Sprintf("[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = %q\n", folder.path)
		if err := node.Do(func() error {
			return errors.Join(unix.Mount("none", etc, "tmpfs", 0, ""), os.MkdirAll(filepath.Dir(config), 0o755), os.WriteFile(config, []byte(text), 0o600))
		}); err != nil {
			t.Fatal(err)
		}
		if err := node.Do(func() error {
			if out, err := setupCommand(t.Context(), node, "--host-root", filepath.Dir(etc), "--once").CombinedOutput(); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			if _, err := os.Stat(config); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the folder of the host is still mounted: %v", err)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		wantSelfTest(t, node, "passed")
		eventually(t, func() error {
			status, err := node.Waggle(t.Context(), "status")
			named := strings.Contains(status, "cni-folders failed") && strings.Contains(status, "use --cni-bin-dir "+folder.path)
			if err == nil && named != folder.wrong {
				err = fmt.Errorf("with plugins in %s status says:\n%s", folder.path, status)
			}
			return err
		})
	}
}

// attachSelfTest leaves an endpoint like a self-test that is killed between ADD and DEL.
func attachSelfTest(t *testing.T, node *nodekit.Node) (container string) {
	t.Helper()
	pod, err := node.NewPod("left")
	if err != nil {
		t.Fatal(err)
	}
	pod.ContainerID = "waggle-self-test-0123456789abcdef"
	if err := pod.Attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	return pod.ContainerID
}

func wantSelfTest(t *testing.T, node *nodekit.Node, state string) {
	t.Helper()
	eventually(t, func() error {
		out, err := node.Waggle(t.Context(), "db", "show", "self-tests")
		if err == nil && !strings.Contains(out, state) {
			err = fmt.Errorf("the self-test is not %s:\n%s", state, out)
		}
		return err
	})
}

func withoutFile(facts []string) (out []string) {
	for _, f := range facts {
		if !strings.HasPrefix(f, "file ") {
			out = append(out, f)
		}
	}
	return out
}

func hasNoCapabilities(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(string(text), set+":\t0000000000000000\n") {
			return fmt.Errorf("%s is not empty:\n%s", set, text)
		}
	}
	return nil
}
