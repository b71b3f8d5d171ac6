// Package plan is the agreement between the command that starts an emulated machine and the machine's first process: the
// paths in the machine's file system, the list of suites, and the events that the machine reports.
package plan

// Paths in a machine's file system.
const (
	Path       = "/plan.json"
	ModuleDir  = "/modules"
	TestDir    = "/tests"    // test binaries
	TreeDir    = "/tree"     // the folders of packages, with their testdata
	ProgramDir = "/programs" // programs under test

	AgentBefore = "/agent-before" // the agent of another revision
)

// ProgramsEnv names the folder with the programs under test, for tests that otherwise build them.
const ProgramsEnv = "PROGRAMS_UNDER_TEST"

// AgentBeforeEnv names the agent of another revision, for tests that replace the agent of a node.
const AgentBeforeEnv = "AGENT_BEFORE"

// ModulesEnv lists the modules, by space, that were loaded for a suite alone.
const ModulesEnv = "MODULES_UNDER_TEST"

// Plan is everything that the first process of a machine does.
type Plan struct {
	Modules []string // file names in ModuleDir in load order; loaded before the first suite
	Suites  []Suite  // in the order in which they run
}

// Suite is one run of a test binary.
type Suite struct {
	Package  string   // folder in the tree, with slashes
	Args     []string // of the test binary
	Env      []string
	Modules  []string // file names in ModuleDir in load order; loaded before the suite runs
	Programs []string // names in ProgramDir that the suite sees
}

// Actions of the events that end a suite. The "fail" of `go test -json` does not say whether it means the package or a test
// in which the package panicked.
const (
	Passed = "suite passed"
	Failed = "suite failed"
)

// Event is one line of `go test -json`, or the end of a suite.
type Event struct {
	Action, Package          string
	Test, Output, Key, Value string  `json:",omitempty"`
	Elapsed                  float64 // seconds of the machine's clock
}
