//go:build !shortlimits

package watchdog

// scale divides the time limits. Releases use the full limits.
const scale = 1
