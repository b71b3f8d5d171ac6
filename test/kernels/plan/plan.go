// Package plan is the protocol between the command that starts an emulated machine and the machine's first process: the paths in the machine's file system,
// the list of suites, and the events that the machine reports.
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

// ProgramsEnv is the variable with the folder of the programs under test, for tests that otherwise build them.
const ProgramsEnv = "PROGRAMS_UNDER_TEST"

// AgentBeforeEnv is the variable with the path of another revision's agent, for tests that replace the agent of a node.
const AgentBeforeEnv = "AGENT_BEFORE"

// ModulesEnv is the variable with the space-separated modules that were loaded for one suite only.
const ModulesEnv = "MODULES_UNDER_TEST"

// Plan is the work of a machine's first process.
type Plan struct {
	Modules []string // file names in ModuleDir, in load order; loaded before the first suite
	Suites  []Suite  // in execution order
}

// Suite is one run of a test binary.
type Suite struct {
	Package  string   // folder in the tree, with slashes
	Args     []string // of the test binary
	Env      []string
	Modules  []string // file names in ModuleDir, in load order; loaded before the suite runs
	Programs []string // names in ProgramDir that the suite can use
}

// Actions of the events that end a suite. The "fail" of `go test -json` is ambiguous: the package failed, or a test in which the package panicked.
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
