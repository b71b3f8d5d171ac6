package conventions

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testPages are the pages that describe how to run tests.
var testPages = []string{"Documentation/testing.md", "Documentation/kubernetes-tests.md"}

// shortCells are the pages for operators on which each table cell is short. The generated pages among them take their cells from the code.
var shortCells = []string{"SECURITY.md", "Documentation/api.md", "Documentation/between-nodes.md", "Documentation/cni.md", "Documentation/flags.md", "Documentation/glossary.md", "Documentation/guide.md",
	"Documentation/install.md", "Documentation/liveness.md", "Documentation/metrics.md", "Documentation/network-policies.md", "Documentation/permissions.md", "Documentation/pod-cidrs.md",
	"Documentation/repair.md", "Documentation/restart.md", "Documentation/services.md", "Documentation/setup.md"}

// mostWords is the largest number of words in a cell of these pages.
const mostWords = 24

// notTests lists the make targets that test nothing and need not be on these pages.
var notTests = strings.Fields("help build generate docs packages image demo clean")

// `go test -run` of a removed test passes without running anything, so documented commands must name existing tests.
func TestPages_CommandsNameExistingTests(t *testing.T) {
	t.Parallel()
	tree := readPageTree(t)
	for _, page := range testPages {
		for _, c := range commands(read(t, page)) {
			for _, wrong := range tree.wrong(c) {
				t.Errorf("%s: %s: %s", page, c, wrong)
			}
		}
	}
}

func TestPages_NameEachTestTarget(t *testing.T) {
	t.Parallel()
	tree := readPageTree(t)
	var named []string
	for _, page := range testPages {
		for _, c := range commands(read(t, page)) {
			named = append(named, targetsOf(c)...)
		}
	}
	documented := regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(read(t, "Makefile"), -1)
	if len(documented) < 10 {
		t.Fatalf("make help names only %d targets: the search is broken", len(documented))
	}
	for _, match := range documented {
		if !slices.Contains(named, match[1]) && !slices.Contains(notTests, match[1]) {
			t.Errorf("make help names %s, and no page of %q does", match[1], testPages)
		}
	}
	for _, name := range notTests {
		if !slices.Contains(tree.targets, name) {
			t.Errorf("notTests names %s, which is no target", name)
		}
	}
}

func TestPages_TableCellsAreShort(t *testing.T) {
	t.Parallel()
	for _, page := range shortCells {
		cells, long := longCells(read(t, page))
		if cells < 10 {
			t.Errorf("%s: only %d table cells found: the search is broken", page, cells)
		}
		for _, cell := range long {
			t.Errorf("%s: a table cell has more than %d words: split it, or move details below the table or to a page of a cell: %s", page, mostWords, cell)
		}
	}
}

// The soak lane skips the tests in its list of exceptions, so each pattern must match an existing test.
func TestSoak_ExceptionsNameTests(t *testing.T) {
	t.Parallel()
	tree := readPageTree(t)
	_, list, _ := strings.Cut(read(t, "hack/soak"), "cat <<'END'\n")
	list, _, _ = strings.Cut(list, "\nEND\n")
	lines := strings.Split(list, "\n")
	if len(lines) < 10 {
		t.Fatalf("only %d exceptions found: the search is broken", len(lines))
	}
	for _, line := range lines {
		pattern, reason, _ := strings.Cut(line, " ")
		top, _, _ := strings.Cut(pattern, "/")
		matched := regexp.MustCompile("^TestPrivileged(" + top + ")$")
		if !slices.ContainsFunc(tree.tests["test/node"], matched.MatchString) || strings.TrimSpace(reason) == "" {
			t.Errorf("hack/soak: %q: want the name of a test of test/node, and a reason", line)
		}
	}
}

func TestPages_CommandsNameExistingTests_Finds(t *testing.T) {
	t.Parallel()
	tree := pageTree{targets: []string{"test", "soak"}, steps: []string{"node", "hostile"}, folders: []string{"cells/endpoint/ipamallocator", "cells/endpoint/ipamallocator/testdata", "test/kube/waggle", "bpf"},
		tests: map[string][]string{"cells/endpoint/ipamallocator": {"TestScripts", "TestNext"}, "test/kube/waggle": {"TestPrivilegedPrepared"}, "bpf": {"TestPrivilegedPrograms_PassTheVerifier"}},
		words: map[string]string{"cells/endpoint/ipamallocator": "address-lifecycle.txtar", "test/kube/waggle": `"PodCIDR_ChangesUnderRunningPods"`}}
	for command, want := range map[string]int{
		"go test ./cells/endpoint/ipamallocator":                                                         0,
		"go test ./cells/routes":                                                                         1,
		"go test -run 'TestScripts/life' ./cells/endpoint/ipamallocator":                                 0,
		"go test -run 'TestScripts/gateway' ./cells/endpoint/ipamallocator":                              1,
		"go test -count=1 -run TestNext -v ./cells/endpoint/ipamallocator":                               0,
		"go test -run 'TestNext|TestGone' ./cells/endpoint/ipamallocator":                                1,
		"WAGGLE_SEED=N go test -count=1 -run NAME PACKAGE":                                               0,
		"go test -run 'A|B|C' ./cells/endpoint/ipamallocator":                                            0,
		"cd test/kube && go test -run Prepared/PodCIDR ./waggle":                                         0,
		"cd test/kube && go test -run TestPrivilegedPods ./waggle":                                       1,
		"make image && cd test/kube && go test -run Prepared ./waggle":                                   1,
		`make test TIERS="lint hermetic"`:                                                                0,
		"make soak SOAK='hostile'":                                                                       0,
		"make soak SOAK='hostil'":                                                                        1,
		"make tests":                                                                                     1,
		"make test KERNELS_FLAGS='-kernels 6.1 -packages bpf,cells/endpoint/ipamallocator -run PassThe'": 0,
		"make test KERNELS_FLAGS='-kernels 6.1 -packages bpf,cells/routes -run Verifier'":                1,
		"make test KERNELS_FLAGS='-packages bpf -run Verify'":                                            1,
		"make test PACKAGES=./cells/routes":                                                              1,
		"go run ./test/tiers -list TIER":                                                                 1,
		"go build ./...":                                                                                 0,
	} {
		if got := tree.wrong(command); len(got) != want {
			t.Errorf("%s: found %q, want %d", command, got, want)
		}
	}
	text := "Text with `make one` and\n\n    make two  # and three\n    not a command\n\n```\nmake four\n```\n"
	if got := commands(text); !slices.Equal(got, []string{"make two", "not a command", "make four", "make one"}) {
		t.Errorf("commands: %q", got)
	}
}

func TestPages_TableCellsAreShort_Finds(t *testing.T) {
	t.Parallel()
	short, long := strings.Repeat("word ", mostWords), strings.Repeat("word ", mostWords)+"more"
	page := "# A\n\n" + long + "\n\n| a | b |\n|---|---|\n| " + short + "| a |\n| a \\| b | " + long + " |\n\n- B\n\n  | " + long + " | c |\n"
	if cells, found := longCells(page); cells != 9 || !slices.Equal(found, []string{long, long}) {
		t.Errorf("%d cells, and %q", cells, found)
	}
}

// read returns a file of the tree.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fenced = regexp.MustCompile("(?ms)^```.*?^```$")
	spans  = regexp.MustCompile("`([^`]+)`")
)

// commands returns the lines of a page's code blocks, without comments, and its code spans.
func commands(page string) (all []string) {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "    ") {
			all = append(all, line)
		}
	}
	for _, block := range fenced.FindAllString(page, -1) {
		lines := strings.Split(block, "\n")
		all = append(all, lines[1:len(lines)-1]...)
	}
	page = fenced.ReplaceAllString(page, "")
	for _, span := range spans.FindAllStringSubmatch(page, -1) {
		all = append(all, span[1])
	}
	for i, line := range all {
		line, _, _ = strings.Cut(line, " # ")
		all[i] = strings.TrimSpace(line)
	}
	return all
}

// longCells counts the table cells of a page and returns the ones with more than mostWords words.
func longCells(page string) (cells int, long []string) {
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(strings.Trim(line, "|"), " | ") {
			if cells++; len(strings.Fields(cell)) > mostWords {
				long = append(long, strings.TrimSpace(cell))
			}
		}
	}
	return cells, long
}

// pageTree lists the names that commands of a page may use.
type pageTree struct {
	targets []string            // of the Makefile
	steps   []string            // of hack/soak
	folders []string            // with Go files
	tests   map[string][]string // by folder
	words   map[string]string   // source of a folder's tests, and the names of its scripts
}

func readPageTree(t *testing.T) pageTree {
	t.Helper()
	tree := pageTree{tests: map[string][]string{}, words: map[string]string{}}
	for _, match := range regexp.MustCompile(`(?m)^([a-z/-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		tree.targets = append(tree.targets, match[1])
	}
	for _, match := range regexp.MustCompile(`(?m)^\t([a-z]+)\)`).FindAllStringSubmatch(read(t, "hack/soak"), -1) {
		tree.steps = append(tree.steps, match[1])
	}
	for _, f := range files(t) {
		if !slices.Contains(tree.folders, f.dir) {
			tree.folders = append(tree.folders, f.dir)
			scripts, err := filepath.Glob(filepath.Join(root(t), f.dir, "testdata", "*.txtar"))
			if err != nil {
				t.Fatal(err)
			}
			tree.words[f.dir] += strings.Join(scripts, "\n")
		}
		if !f.test() {
			continue
		}
		tree.words[f.dir] += string(f.source)
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(f.source, -1) {
			tree.tests[f.dir] = append(tree.tests[f.dir], string(match[1]))
		}
	}
	return tree
}

var (
	makeCall = regexp.MustCompile(`(?:^|&& |[A-Z]=\S+ )make ((?:[a-z-]+|[A-Z_]+=(?:'[^']*'|"[^"]*"|\S+)| )+)`)
	variable = regexp.MustCompile(`([A-Z_]+)=(?:'([^']*)'|"([^"]*)"|(\S+))`)
	folder   = regexp.MustCompile(`(?:^|\s)cd (\S+) &&`)
	argument = regexp.MustCompile(`(?:^|\s|=)\./(\S+)`)
	pattern  = regexp.MustCompile(`\s-run (?:'([^']*)'|"([^"]*)"|(\S+))`)
	goCall   = regexp.MustCompile(`(?:^|\s)go (test|run|build)\s`)
	unnamed  = regexp.MustCompile(`^[A-Z|]+$`) // such as NAME or A|B
)

// targetsOf returns the make targets in a command.
func targetsOf(command string) (targets []string) {
	for _, call := range makeCall.FindAllStringSubmatch(command, -1) {
		targets = append(targets, strings.Fields(variable.ReplaceAllString(call[1], ""))...)
	}
	return targets
}

// wrong returns an error for each name in a command that does not exist.
func (p pageTree) wrong(command string) (errs []string) {
	for _, target := range targetsOf(command) {
		if !slices.Contains(p.targets, target) {
			errs = append(errs, "the Makefile has no target "+target)
		}
	}
	for _, v := range variable.FindAllStringSubmatch(command, -1) {
		value := v[2] + v[3] + v[4]
		switch v[1] {
		case "SOAK":
			for _, step := range strings.Fields(value) {
				if !slices.Contains(p.steps, step) {
					errs = append(errs, "hack/soak has no step "+step)
				}
			}
		case "KERNELS_FLAGS":
			errs = append(errs, p.wrongFlags(value)...)
		}
	}
	command = regexp.MustCompile(`KERNELS_FLAGS='[^']*'`).ReplaceAllString(command, "")
	var dirs []string
	base := ""
	if in := folder.FindStringSubmatch(command); in != nil {
		base = in[1]
	}
	for _, arg := range argument.FindAllStringSubmatch(command, -1) {
		dir := path.Join(base, strings.TrimSuffix(arg[1], "/..."))
		if arg[1] == "..." {
			continue
		}
		if dirs = append(dirs, dir); !slices.Contains(p.folders, dir) {
			errs = append(errs, "there is no package "+dir)
		}
	}
	run := pattern.FindStringSubmatch(command)
	if goCall.MatchString(command) && run != nil && len(errs) == 0 {
		errs = append(errs, p.wrongPattern(run[1]+run[2]+run[3], dirs)...)
	}
	return errs
}

// wrongFlags checks flags of test/kernels.
func (p pageTree) wrongFlags(flags string) (errs []string) {
	fields := strings.Fields(flags)
	value := func(name string) string {
		if i := slices.Index(fields, name); i >= 0 && i+1 < len(fields) {
			return fields[i+1]
		}
		return ""
	}
	dirs := strings.Split(value("-packages"), ",")
	for _, dir := range dirs {
		if dir != "" && !slices.Contains(p.folders, dir) {
			errs = append(errs, "there is no package "+dir)
		}
	}
	if run := value("-run"); run != "" && len(errs) == 0 {
		errs = append(errs, p.wrongPattern(run, dirs)...)
	}
	return errs
}

// wrongPattern checks a regular expression for tests. Each of its alternatives must match a test of one of the folders.
func (p pageTree) wrongPattern(run string, dirs []string) (errs []string) {
	if unnamed.MatchString(run) {
		return nil
	}
	for _, alternative := range strings.Split(run, "|") {
		top, sub, _ := strings.Cut(alternative, "/")
		matched, err := regexp.Compile(top)
		if err != nil {
			return []string{fmt.Sprintf("-run %s: %v", run, err)}
		}
		if !slices.ContainsFunc(dirs, func(dir string) bool {
			return slices.ContainsFunc(p.tests[dir], matched.MatchString) && strings.Contains(p.words[dir], sub)
		}) {
			errs = append(errs, fmt.Sprintf("-run %s matches no test of %q", alternative, dirs))
		}
	}
	return errs
}
