package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/stamps"
)

// A tier with a stored result runs again after a change of a relevant file, after a failure, and if all tests are to run.
func TestKept_RerunConditions(t *testing.T) {
	t.Setenv(testseed.Env, "")
	t.Setenv("GOFLAGS", "")
	dir, cache := t.TempDir(), t.TempDir()
	git(t, dir, "init", "-q")
	for i, c := range []struct {
		write, text string // committed before the run
		untracked   string // an uncommitted file
		seed        string // in the environment
		all         bool
		ran, fails  bool
		none        bool // no test passes
		developer   bool // not CI
	}{
		{write: "agent.go", text: "1", ran: true},
		{write: "page.md", text: "1"},
		{write: "page.md", text: "2", all: true, ran: true},
		{write: "page.md", text: "3", untracked: "new.go", ran: true},
		{write: "agent.go", text: "2", ran: true},
		{write: "page.md", text: "4"},
		{write: "page.md", text: "4, with a seed", seed: "7", ran: true},
		{write: "page.md", text: "5", all: true, ran: true, fails: true},
		{write: "page.md", text: "6", ran: true},
		{write: "page.md", text: "7", developer: true, ran: true},
		{write: "page.md", text: "8"},
		{write: "page.md", text: "9", all: true, ran: true, fails: true, none: true},
		{write: "page.md", text: "10", ran: true},
	} {
		write(t, dir, c.write, c.text)
		git(t, dir, "add", ".")
		git(t, dir, "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "c")
		if c.untracked != "" {
			write(t, dir, c.untracked, "")
		}
		t.Setenv(testseed.Env, c.seed)
		var out strings.Builder
		r := &runner{tree: &tree{root: dir}, all: c.all, clean: !c.developer, out: &locked{out: &out}, stamps: stamps.In[passedTier](cache)}
		err := r.run(t.Context(), []tier{{name: "x", budget: time.Hour, decides: decidesKube, calls: func(*tree, bool) []call {
			passed, exit := 12, 0
			if c.fails {
				exit = 1
			}
			if c.none {
				passed = 0
			}
			return []call{{args: []string{"sh", "-c", fmt.Sprintf("echo kernels: %d tests passed, 0 tests in 0 suites unchanged, 0 skipped; exit %d", passed, exit)}}}
		}}}, strconv.Itoa(i))
		if (err != nil) != c.fails {
			t.Errorf("run %d: %v", i, err)
		}
		if ran := strings.Contains(out.String(), "tests in 0 suites"); ran != c.ran {
			t.Errorf("run %d: ran %v, want %v:\n%s", i, ran, c.ran, out.String())
		}
		if !c.fails && !strings.Contains(out.String(), "\n12 passed, 0 failed, 0 skipped\n") {
			t.Errorf("run %d counts otherwise:\n%s", i, out.String())
		}
		if c.untracked != "" {
			git(t, dir, "clean", "-fq")
		}
	}
	if files, err := filepath.Glob(filepath.Join(cache, "passed", "*")); err != nil || len(files) == 0 {
		t.Errorf("the cache holds %v, %v", files, err)
	}
}

func TestDecides_SourcesAndItsOwnTests(t *testing.T) {
	t.Parallel()
	const neither, kube, node, both = 0, 1, 2, 3
	for name, want := range map[string]int{
		"cells/endpoint/ipamallocator/cell.go": both, "bpf/lib/flow.h": both, "bpf/pod_egress_bpfel.o": both, "pkg/install/manifests/agent.yaml": both, "go.sum": both,
		"Makefile": both, "hack/kube-binaries": both, "tools/image/main.go": both, ".ci/run": both, "test/tiers/lists.go": both, "test/stamps/stamps.go": both,
		"test/kube/wait.go": kube, "test/kube/waggle/order_test.go": kube, "test/kube/nodes/testdata/a.yaml": kube,
		"test/node/main_test.go": node, "test/nodekit/node.go": node, "test/nodekit/load/load.go": node, "test/demo/demo_test.go": node, "test/attributes/attributes.go": node,
		"pkg/datapath/nftforward/testdata/ufw.rules": node,
		"cells/endpoint/ipamallocator/cell_test.go":  neither, "Documentation/ipam.md": neither, "README.md": neither, "Documentation/testdata/a.json": neither,
		"test/conventions/text_test.go": neither, "test/kernels/table.go": neither,
	} {
		if got := decidesKube(name); got != (want&kube != 0) {
			t.Errorf("kube, %s: %v", name, got)
		}
		if got := decidesNode(name); got != (want&node != 0) {
			t.Errorf("node, %s: %v", name, got)
		}
	}
}

// The folders of the packages of tier node decide its result.
func TestDecidesNode_AllItsPackages(t *testing.T) {
	t.Parallel()
	for name, s := range special {
		if s.tier == "node" && !decidesNode(name+"/any_test.go") {
			t.Errorf("tests of %s do not decide the result of tier node", name)
		}
	}
}
