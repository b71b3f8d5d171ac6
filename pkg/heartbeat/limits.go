//go:build !shortlimits

package heartbeat

// scale divides the time limits. Releases use the full limits.
const scale = 1
