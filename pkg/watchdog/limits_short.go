//go:build shortlimits

package watchdog

// scale divides the time limits, so that tests need not wait minutes for a report of a stall. An agent with these limits may report a stall on a busy
// machine, so only tests that ignore false reports use it.
const scale = 10
