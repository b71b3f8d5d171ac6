package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

const module = "github.com/waggle-net/waggle"

// suite is one package's tests.
type suite struct {
	Package string // folder in the tree, with slashes
	Run     string // regular expression of the tests
}

// agents is the package whose tests run real agents. One such test keeps an emulated machine busy.
const agents = "test/node"

// privileged is how tests are called that need a kernel.
const privileged = "TestPrivileged"

// about are, of packages with many tests, those that say something about a kernel. Their others say the same about all
// kernels, and take minutes.
var about = map[string]string{
	// What verifiers, hooks, helpers and sockets do; what the programs decide, outside kernels show.
	"bpf": "^TestPrivileged(Programs|Maps|Events|MadeHere|Sock|Real)_",
	// The real agent and plugin.
	agents: "^TestPrivileged(Traffic_BetweenPodsNodeAndOutside|Source_.*|Guard_.*|Service_RestartLosesNoPacket)$",
}

// elsewhere are packages whose tests stay outside, each with the reason.
var elsewhere = map[string]string{
	"cmd/waggle-agent": "its processes say nothing about the kernel that those of test/node do not",
}

// chooseSuites are those of the packages asked for, or all.
func chooseSuites(tree string, o options) ([]suite, error) {
	suites, err := discover(tree)
	if err != nil {
		return nil, err
	}
	if len(o.packages) > 0 {
		known := suites
		suites = nil
		for _, p := range o.packages {
			i := slices.IndexFunc(known, func(s suite) bool { return s.Package == filepath.ToSlash(filepath.Clean(p)) })
			if i < 0 {
				return nil, fmt.Errorf("package %s: it has no test whose name begins with %s, or it is left out", p, privileged)
			}
			suites = append(suites, known[i])
		}
	}
	if o.run != "" {
		for i := range suites {
			suites[i].Run = o.run
		}
	}
	return suites, nil
}

// discover finds the packages with tests that need a kernel.
func discover(tree string) ([]suite, error) {
	var suites []suite
	err := filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		name, err2 := filepath.Rel(tree, path)
		switch {
		case err != nil || err2 != nil:
			return errors.Join(err, err2)
		case entry.IsDir() && (name == "test" || name == "bin" || strings.HasPrefix(entry.Name(), ".") && name != "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		folder := filepath.ToSlash(filepath.Dir(name))
		if elsewhere[folder] != "" || slices.ContainsFunc(suites, func(s suite) bool { return s.Package == folder }) {
			return nil
		}
		source, err := os.ReadFile(path)
		if bytes.Contains(source, []byte("\nfunc "+privileged)) {
			suites = append(suites, suite{Package: folder, Run: cmp.Or(about[folder], "^"+privileged)})
		}
		return err
	})
	return append(suites, suite{Package: agents, Run: about[agents]}), err
}

// binary is the path of a suite's program inside a machine.
func (s suite) binary() string { return "/tests/" + strings.ReplaceAll(s.Package, "/", "-") + ".test" }

// build makes the programs of a machine, all of them static, as they stand in its file system, and a list of the suites.
func build(ctx context.Context, root string, suites []suite) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	calls := [][]string{
		{"build", "-o", root + "/init", module + "/test/kernels"},
		{"build", "-o", root + "/bin/test2json", "cmd/test2json"},
		{"build", "-o", root + programs + "/", module + "/cmd/waggle-agent", module + "/cmd/waggle-cni", module + "/cmd/waggle"},
	}
	for _, s := range suites {
		calls = append(calls, []string{"test", "-c", "-o", root + s.binary(), module + "/" + s.Package})
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for _, c := range calls {
		group.Go(func() error {
			args := append([]string{"CGO_ENABLED=0", "GOARCH=amd64", "go", c[0], "-trimpath", "-buildvcs=false", "-ldflags=-s -w"}, c[1:]...)
			_, err := command(ctx, "", "env", args...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, s := range suites {
		if err := copyTestdata(root, s); err != nil {
			return err
		}
	}
	return writeSuites(root, suites)
}

// copyTestdata gives a suite the files that its package has for tests, where it will run.
func copyTestdata(root string, s suite) error {
	from, to := filepath.Join(s.Package, "testdata"), filepath.Join(root, "tree", s.Package)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return os.CopyFS(filepath.Join(to, "testdata"), os.DirFS(from))
}
