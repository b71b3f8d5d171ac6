package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// raced lists the packages with the most goroutines and locks. They run only under the race detector. cells/datapath/ctgc and cells/policy/policymaps are not in the list: most
// of their time is in single-goroutine tests, which the detector slows down several times.
var raced = strings.Fields(`
	pkg/hive pkg/bootlog pkg/ipalloc pkg/deletequeue pkg/kubernetes/kubeapi pkg/kubernetes/objectwriter pkg/watchdog pkg/inventory pkg/datapath/rtnl
	cells/agent/healthreport cells/agent/metrics cells/endpoint/ipamallocator cells/endpoint/endpointmanager cells/endpoint/unmanagedpodfinder cells/endpoint/endpointmaps cells/endpoint/endpointstate
	cells/kubernetes/k8sclient cells/kubernetes/k8stables cells/identity/identityallocator cells/endpoint/ciliumendpoints cells/node/ciliumnode cells/node/k8snode cells/cluster/leaderelection
	cells/cluster/clusterpool cells/cluster/endpointgc cells/cluster/ciliumendpointslices cells/policy/policystatus cells/service/servicestatus cells/agent/liveness cells/agent/driftledger cells/endpoint/linkreaper cells/datapath/loader cells/datapath/maps
	cells/service/servicecontroller cells/service/servicemaps cells/service/sockterm cells/datapath/masquerademaps cells/service/servicehealth cells/node/nodeaddressfinder cells/datapath/ipmasqagent
	cells/agent/apiserver cells/datapath/monitor cells/datapath/deviceobserver cells/node/nodelist cells/node/noderoutes cells/node/nodeidallocator cells/node/nodemaps cells/node/nodehealthprober cells/node/pathtest cells/identity/ipcachemaps pkg/agentclient`)

// special lists packages whose tier does not follow from their tests, each with the reason.
var special = map[string]struct{ tier, reason string }{
	"test/demo":         {"node", "runs whole nodes"},
	"test/node":         {"node", "runs whole nodes"},
	"test/nodekit":      {"node", "the kit of test/node"},
	"test/nodekit/load": {"node", "the load generator of test/node"},
	"api/v1":            {"machine", "runs the generator of the API's code"},
	"bpf/tests":         {"machine", "compiles C and loads programs"},
	"cli":               {"machine", "starts its test program as a command"},
	"cmd/waggle-agent":  {"machine", "starts its test program as an agent"},
	"cni":               {"machine", "starts the plugin as a process"},
	"test/conventions":  {"machine", "runs git and go, and reads the whole tree"},
	"tools/reference":   {"machine", "compares pages with the whole tree"},
}

// unseen lists the packages of tier machine whose results are never cached, each with the input that the test cache does not track. The cache tracks the test
// program, the files of the tree that the tests open, and the environment.
var unseen = map[string]string{
	"api/v1":           "the generator",
	"cni":              "the plugin, which the tests compile",
	"test/conventions": "the output of git and go for the tree",
	"tools/reference":  "the output of the compiler for the tree",
}

// privileged is the start of a declaration of a test that needs root and a kernel.
var privileged = []byte("\nfunc TestPrivileged")

// tree holds the packages with tests.
type tree struct {
	root  string
	tests map[string]string // tier by folder, with slashes; without nested modules
}

// readTree returns the packages with tests below root, and the tier of each.
func readTree(root string) (*tree, error) {
	t := &tree{root: root, tests: map[string]string{}}
	err := walkTests(root, func(dir string, source []byte) {
		switch {
		case special[dir].tier != "":
			t.tests[dir] = special[dir].tier
		case bytes.Contains(source, privileged):
			t.tests[dir] = "machine"
		case t.tests[dir] == "":
			t.tests[dir] = "hermetic"
		}
	})
	if err == nil && len(t.tests) == 0 {
		err = fmt.Errorf("%s holds no package with tests: run this from the top of the tree", root)
	}
	return t, err
}

// walkTests calls found for each test file of the module, with its folder relative to root.
func walkTests(root string, found func(dir string, source []byte)) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != root && (entry.Name() == "bin" || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") || isModule(path)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		source, err := os.ReadFile(path)
		found(filepath.ToSlash(dir), source)
		return err
	})
}

func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// of returns the packages of a tier as arguments for go.
func (t *tree) of(tier string) []string {
	var all []string
	for dir, name := range t.tests {
		if name == tier {
			all = append(all, "./"+dir)
		}
	}
	slices.Sort(all)
	return all
}

// split divides packages into those in raced and the others. Packages below a folder in raced belong to raced.
func (t *tree) split(packages []string) (race, rest []string) {
	for _, p := range packages {
		if slices.ContainsFunc(raced, func(r string) bool { return p == "./"+r || strings.HasPrefix(p, "./"+r+"/") }) {
			race = append(race, p)
		} else {
			rest = append(rest, p)
		}
	}
	return race, rest
}

// visible divides packages of tier machine into those with cacheable results and the others.
func visible(packages []string) (cached, always []string) {
	for _, p := range packages {
		if unseen[strings.TrimPrefix(p, "./")] != "" {
			always = append(always, p)
		} else {
			cached = append(cached, p)
		}
	}
	return cached, always
}

// nested returns the packages with tests of another module in the tree, as arguments for go in the module's folder.
func (t *tree) nested(module string) []string {
	var all []string
	err := walkTests(filepath.Join(t.root, filepath.FromSlash(module)), func(dir string, _ []byte) { all = append(all, "./"+dir) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic(fmt.Errorf("find the tests of module %s: %w", module, err))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
