//go:build !shortlimits

package heartbeat

// scale divides the limits of time. Releases have the whole limits.
const scale = 1
