//go:build shortlimits

package heartbeat

// scale divides the limits of time: a test need not wait for minutes until a stall is reported. An agent with these limits may report a
// stall on a busy machine, so only tests that ignore false reports use it.
const scale = 10
